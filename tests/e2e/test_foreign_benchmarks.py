"""Benchmarks that only a user's script measures: what it leaves in metrics.json, from eval.sh to the report."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from imageevalkit.common.errors import CellFailure
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


def result_of(checkout: Path) -> dict[str, Any]:
    return json.loads((checkout / CELL / "result.json").read_text())


def board_of(checkout: Path) -> list[dict[str, str]]:
    with (checkout / "output/leaderboard.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@needs_driver_env
def test_metrics_of_a_script_have_a_result_a_column_and_a_page_and_a_lack_of_them_its_reason(
    checkout: Path,
) -> None:
    set_script(
        checkout,
        "trap '' TERM; kill 0",  # it ends what it started, and nobody else
        leaves({"accuracy": 0.75, "parts": {"value": 62.5, "n": 40, "interval": [60, 65.5]}, "empty": None}),
    )
    for name, line in (("mute", "echo 0.75"), ("ends", "echo no GPU; exit 7"), ("torn", leaves("{"))):
        add_benchmark(checkout, name, "Few", FEW.replace('"few"', f'"{name}"').replace("/few/", f"/{name}/"))
        set_script(checkout, line, benchmark=name)
    run = run_eval(checkout, "--model_names", "slow-noise", "--ds_names", "few;mute;ends;torn")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "accuracy 0.7500; 4 of 4 judged" in run.stdout
    result = result_of(checkout)
    assert result["state"] == "complete"
    assert (result["coverage"]["expected"], result["coverage"]["judged"]) == (4, 4)
    assert result["headline"] == ["accuracy"]
    assert result["metrics"] == {
        "accuracy": {"value": 0.75, "n": 4, "interval": None, "scale": 1},
        "parts": {"value": 62.5, "n": 40, "interval": [60, 65.5], "scale": 100},
        "empty": {"value": None, "n": 4, "interval": None, "scale": 1},
    }
    evaluator = result["evaluator"]["id"]
    assert evaluator.startswith("script/")
    assert not result["evaluator"]["official"]
    rows = {row["metric"]: row for row in board_of(checkout)}
    assert rows["accuracy"]["score_name"] == f"few/accuracy@{evaluator}"
    assert (rows["accuracy"]["value"], rows["accuracy"]["headline"]) == ("0.75", "true")
    assert (rows["parts"]["ci_low"], rows["parts"]["n"]) == ("60", "40")
    board = (checkout / "output/leaderboard.md").read_text()
    assert f"few/accuracy@{evaluator}" in board
    page = (checkout / "output/report.html").read_text()
    assert f'"label":"few@{evaluator}' in page
    assert "prompt 3" in page
    # those without a score
    cell = CELL.replace("few", "mute")
    remedy = f"no score: let eval/mute.sh leave metrics.json in {cell}/ whenever it runs (docs/how-to/own-benchmark.md)"
    assert f"the script ended with status 0; {remedy}" in run.stdout
    assert not (checkout / cell / "result.json").exists()
    for said in (run.stdout, board):
        assert said.count("no score: let eval/mute.sh leave metrics.json") and "let eval/ends.sh" not in said
    for name, says in (
        ("ends", "left no outcome, exit status 7: no GPU"),
        ("torn", "metrics.json is no JSON"),
    ):
        assert says in run.stdout.split(f"slow-noise/{name}: failed in this run: ")[-1]
    assert board.count("failed in this run") == 2

    # malformed metrics fail the cell in one line, and lose nothing
    set_script(checkout, leaves('{"fine": 0.5, "accuracy": NaN}'))
    run = run_eval(checkout, *RUN)
    assert run.returncode == 1, run.stdout + run.stderr
    assert "metrics.json: metric 'accuracy': 'value' is NaN" in run.stdout
    assert "Traceback" not in run.stdout + run.stderr
    assert (checkout / CELL / "metrics.json").read_text() == '{"fine": 0.5, "accuracy": NaN}\n'
    assert result_of(checkout) == result


@needs_driver_env
def test_a_score_is_never_one_of_other_images_of_another_script_or_of_other_data(checkout: Path) -> None:
    set_script(checkout, "[ -e ran ] && exit 0", "touch ran", leaves({"accuracy": 0.5}))
    assert run_eval(checkout, *RUN).returncode == 0
    again = run_eval(checkout, *RUN, "--infer", "false")
    assert again.returncode == 0
    assert "the result of an earlier run is kept" in again.stdout
    assert [row["value"] for row in board_of(checkout)] == ["0.5"]

    own = checkout / CELL / "official/table.txt"
    own.parent.mkdir()
    own.write_text("of the script")
    set_script(
        checkout, "# another version", "[ -e again ] && exit 0", "touch again", leaves({"accuracy": 0.25})
    )
    assert run_eval(checkout, *RUN, "--infer", "false").returncode == 0
    rows = board_of(checkout)
    assert sorted(row["value"] for row in rows) == ["0.25", "0.5"]
    assert len({row["evaluator"] for row in rows}) == 2
    assert own.read_text() == "of the script"

    other = run_eval(checkout, *RUN, "--custom_model_kwargses", "side=64", "--overwrite")
    assert other.returncode == 0, other.stdout + other.stderr
    assert [row for row in board_of(checkout) if row["value"]] == []
    assert json.loads((checkout / CELL / "metrics.json").read_text()) == {"accuracy": 0.25}

    registered = checkout / "infer/custom_datasets/dataset_cls/t2i/few.py"
    registered.write_text(FEW.replace("prompt {i}", "another prompt {i}"))
    set_script(checkout, leaves({"accuracy": 0.5}))
    assert run_eval(checkout, *RUN, "--overwrite").returncode == 0
    assert result_of(checkout)["benchmark_version"] not in {row["benchmark_version"] for row in rows}


@needs_driver_env
def test_a_result_counts_the_images_that_the_script_finds(checkout: Path) -> None:
    set_script(checkout, leaves({"accuracy": 0.5}))
    for limit, counts in (("2", (2, 2)), ("1", (2, 2)), ("", (None, 4))):
        run = run_eval(checkout, *RUN, *(["--limit", limit] if limit else []))
        assert run.returncode == 0, run.stdout + run.stderr
        result = result_of(checkout)
        assert (result["limit"], result["coverage"]["judged"]) == counts, f"--limit {limit}"
    image = checkout / CELL / "images/2.png"
    image.write_bytes(image.read_bytes()[:-20])
    run = run_eval(checkout, *RUN, "--infer", "false")
    assert run.returncode == 3, run.stdout + run.stderr
    result = result_of(checkout)
    assert (result["coverage"]["corrupt"], result["coverage"]["judged"]) == (1, 3)
    assert (result["headline"], result["withheld"]) == ([], "incomplete: 1 corrupt")
    for path in (checkout / CELL / "images").iterdir():
        path.unlink()
    none = run_eval(checkout, *RUN, "--infer", "false")
    assert none.returncode == 1
    assert f"no image is behind {CELL}/metrics.json: 4 corrupt of 4 items" in none.stdout
    registered = checkout / "infer/custom_datasets/dataset_cls/t2i/few.py"
    registered.write_text(f"import no_such_package\n{FEW}")
    run = run_eval(checkout, *RUN, "--infer", "false")
    assert run.returncode == 1
    assert "No module named 'no_such_package'); install its packages there" in run.stdout
    assert "Traceback" not in run.stdout + run.stderr


@pytest.mark.parametrize(
    ("raw", "metric"),
    [
        (1, Metric(1, 7, None, 1)),
        (-3.5, Metric(-3.5, 7, None, 100)),
        (None, Metric(None, 7, None, 1)),
        ({"value": 0.5, "scale": 100}, Metric(0.5, 7, None, 100)),
        ({"value": 250, "scale": 500, "n": 0, "interval": None}, Metric(250, 0, None, 500)),
        ({"value": 0.5, "interval": [0.4, 0.6]}, Metric(0.5, 7, (0.4, 0.6), 1)),
    ],
)
def test_metrics_in_every_form(tmp_path: Path, raw: object, metric: Metric) -> None:
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps({"one": raw}))
    assert read_metrics(path, 7) == {"one": metric}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no JSON"),
        ("[1]", "holds no metrics"),
        ("{}", "holds no metrics"),
        ('{"a": "0.5"}', "metric 'a': 'value' is \"0.5\": value must be a number or null"),
        ('{"a": true}', "metric 'a': 'value' is true"),
        ('{"a": 1e999}', "metric 'a': 'value' is Infinity"),
        ('{"a": {"n": 3}}', "metric 'a': 'value' is missing"),
        ('{"a": {"value": 1, "n": -1}}', "metric 'a': 'n' is -1"),
        ('{"a": {"value": 1, "n": 1.5}}', "metric 'a': 'n' is 1.5"),
        ('{"a": {"value": 1, "interval": [2, 0]}}', "metric 'a': 'interval' is [2, 0]"),
        ('{"a": {"value": 1, "scale": 0}}', "metric 'a': 'scale' is 0"),
        ('{"a": {"value": 50, "scale": 1}}', "metric 'a': 50 is beyond its scale of 1"),
        ('{"fid": 250}', "metric 'fid': 250 is beyond its scale of 100"),
        ('{"a": {"value": 1, "std": 2}}', "metric 'a': 'std' is unknown"),
        ('{" ": 1}', "metric '': it has no name"),
        ("[" * 100_000, "is no JSON: it is nested too deep"),
    ],
)
def test_what_is_no_metric_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "metrics.json"
    path.write_text(text)
    with pytest.raises(CellFailure) as failure:
        read_metrics(path, 7)
    assert says in str(failure.value)
    assert "\n" not in str(failure.value)
