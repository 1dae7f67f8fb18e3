"""Benchmarks that only a user's script measures: what it leaves in metrics.json, from eval.sh to the report."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from imageevalkit.store.results import Metric, read_metrics
from tests.support.checkout import (
    SLOW_NOISE,
    add_benchmark,
    add_model,
    make_checkout,
    needs_driver_env,
    run_eval,
)

FEW = '''
class Few:
    """Written as the extension guide says."""

    def __init__(self):
        self.dataset_name = "few"
        self.dataset_task = "t2i"
        self.data = [
            {"prompt": f"prompt {i}", "seed": i, "image_save_path": f"<MODEL_NAME>/few/images/{i}.png"}
            for i in range(4)
        ]
'''
RUN = ("--model_names", "slow-noise", "--ds_names", "few")
CELL = "output/slow-noise/few"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = make_checkout(tmp_path / "checkout")
    add_model(folder, "slow-noise", "SlowNoise", SLOW_NOISE)
    add_benchmark(folder, "few", "Few", FEW)
    return folder


def set_script(checkout: Path, *lines: str, benchmark: str = "few") -> None:
    (checkout / f"eval/{benchmark}.sh").write_text("\n".join([*lines, ""]))


def leaves(metrics: object) -> str:
    """Returns the line of a script that leaves ``metrics`` where the guide says; a text is left as it is."""
    text = metrics if isinstance(metrics, str) else json.dumps(metrics)
    return f"echo '{text}' > \"output/$1/$(basename $0 .sh)/metrics.json\""


def board_of(checkout: Path) -> list[dict[str, str]]:
    with (checkout / "output/leaderboard.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@needs_driver_env
def test_metrics_of_a_script_have_a_result_a_column_and_a_page_and_a_lack_of_them_its_reason(
    checkout: Path,
) -> None:
    good = leaves(
        {"accuracy": 0.75, "parts": {"value": 62.5, "n": 40, "interval": [60, 65.5]}, "empty": None}
    )
    set_script(checkout, "trap '' TERM; kill 0", good)  # it ends what it started, and nobody else
    faults = {
        "mute": (
            "echo 0.75",
            "the script ended with status 0; no score: let eval/mute.sh leave metrics.json in",
        ),
        "ends": ("echo ran >>ran; echo no GPU; exit 7", "left no outcome, exit status 7: no GPU"),
        "torn": (leaves("{"), "metrics.json is no JSON"),
    }
    for name, (line, _) in faults.items():
        add_benchmark(checkout, name, "Few", FEW.replace('"few"', f'"{name}"').replace("/few/", f"/{name}/"))
        set_script(checkout, line, benchmark=name)
    run = run_eval(
        checkout, "--model_names", "slow-noise", "--ds_names", ";".join(["few", *faults]), status=1
    )
    assert "accuracy 0.7500; 4 of 4 judged" in run.stdout
    result = json.loads((checkout / CELL / "result.json").read_text())
    assert result["state"] == "complete"
    assert (result["coverage"]["expected"], result["coverage"]["judged"]) == (4, 4)
    assert result["headline"] == ["accuracy"]
    assert result["metrics"] == {
        "accuracy": {"value": 0.75, "n": 4, "interval": None, "scale": 1},
        "parts": {"value": 62.5, "n": 40, "interval": [60, 65.5], "scale": 100},
        "empty": {"value": None, "n": 4, "interval": None, "scale": 1},
    }
    evaluator = result["evaluator"]["id"]
    assert evaluator.startswith("script/") and not result["evaluator"]["official"]
    rows = {row["metric"]: row for row in board_of(checkout)}
    assert rows["accuracy"]["score_name"] == f"few/accuracy@{evaluator}"
    assert (rows["accuracy"]["value"], rows["accuracy"]["headline"]) == ("0.75", "true")
    # those without a score
    for name, (_, says) in faults.items():
        assert says in run.stdout
        assert not (checkout / CELL.replace("few", name) / "result.json").exists()
    assert (checkout / "ran").read_text() == "ran\n", (
        "a script may take hours, and judge money: it is run once"
    )


@needs_driver_env
def test_a_score_is_never_one_of_other_images_or_of_another_script(checkout: Path) -> None:
    set_script(checkout, leaves({"accuracy": 0.5}))
    assert run_eval(checkout, *RUN).returncode == 0
    another = ("# another version", "[ -e again ] && exit 0", "touch again", leaves({"accuracy": 0.25}))
    set_script(checkout, *another)
    assert run_eval(checkout, *RUN, "--infer", "false").returncode == 0
    rows = board_of(checkout)
    assert sorted(row["value"] for row in rows) == ["0.25", "0.5"]
    assert len({row["evaluator"] for row in rows}) == 2
    run_eval(checkout, *RUN, "--custom_model_kwargses", "side=64", "--overwrite", status=0)
    assert [row for row in board_of(checkout) if row["value"]] == []
    assert json.loads((checkout / CELL / "metrics.json").read_text()) == {"accuracy": 0.25}


def test_metrics_in_every_form(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    for raw, metric in (
        (1, Metric(1, 7, None, 1)),
        (-3.5, Metric(-3.5, 7, None, 100)),
        ({"value": 250, "scale": 500, "n": 0, "interval": None}, Metric(250, 0, None, 500)),
        ({"value": 0.5, "interval": [0.4, 0.6]}, Metric(0.5, 7, (0.4, 0.6), 1)),
    ):
        path.write_text(json.dumps({"one": raw}))
        assert read_metrics(path, 7) == {"one": metric}
