"""The files of a cell: as their schemas say, and read again as tables, from whatever folder they lie in."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from PIL import Image

from imageevalkit.common.errors import UserError
from imageevalkit.metrics import mean, weighted
from imageevalkit.report import load_results, load_scores
from imageevalkit.report.__main__ import main
from imageevalkit.report.comparison import compare
from imageevalkit.report.tables import columns, read_cells
from imageevalkit.store.cell import Cell, output_root
from imageevalkit.store.results import Score, read_result
from tests.support.cells import Made, write_cell
from tests.support.checkout import needs_driver_env, run_eval
from tests.support.image_server import ImageServer
from tests.support.schemas import FILES, SCHEMAS, check_files

# ---- schemas


@pytest.mark.parametrize("name", sorted(set(FILES.values())))
def test_a_schema_is_one(name: str) -> None:
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)


@needs_driver_env
def test_what_runs_write_is_as_the_schemas_say(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other runs check more: tests/e2e/test_every_benchmark.py, test_prompt_rewriters.py, test_batches.py."""
    monkeypatch.delenv("IMAGEEVALKIT_OUTPUT")
    prompts = (checkout / "benchmarks/quicktext/data/prompts.jsonl").read_text().splitlines()
    words = ["--ds_names", "quicktext", "--limit", "12"]
    with ImageServer() as server:
        for number, faults in {0: ("429", "ok"), 1: ("refuse",), 2: ("garbage",)}.items():
            server.script(json.loads(prompts[number])["prompt"], *faults)
        words += ["--use_api", "true", "--custom_model_kwargses", "size=256x256,backoff=0.05,max_attempts=2"]
        run_eval(checkout, "--model_names", "served", *words, API_KEY="sk-1", BASE_URL=server.base_url)
    wanted = {"generation.jsonl", "judgements.jsonl", "scores.jsonl", "result.json", "fingerprints.jsonl"}
    assert check_files(checkout / "output/served/quicktext") == wanted


# ---- tables

SMALL = Image.new("RGB", (8, 8), "red")


def cell_of(model: str, values: Sequence[float], *, prompts: int = 0, keep: bool = True, **more: Any) -> Cell:
    """A cell of the benchmark "text" with those values; ``keep`` what each item gives, as the engine does."""
    made = [
        Made(f"images/{n:04}", f"prompt {n % prompts if prompts else n}", value=float(v))
        for n, v in enumerate(values)
    ]
    scores = [
        Score({"accuracy": float(v)}, {"prompt": one.prompt, "kind": n % 2}).of_item(one.id)
        for n, (one, v) in enumerate(zip(made, values, strict=True))
    ]
    cluster = "prompt" if prompts else None
    metrics = {"accuracy": mean(scores, "accuracy", cluster=cluster)}
    if keep:
        metrics["by kind"] = weighted(scores, "accuracy", "kind", {0: 0.25, 1: 0.75}, percent=True)
    cell = write_cell(model, "text", made, metrics, draw=lambda one: SMALL, **more)
    if keep:
        lines = [json.loads(line) for line in cell.scores.read_text().splitlines()]
        for line in lines:
            line["parts"] = {
                name: [[*part[1:]] for part in metric.parts if part.item == line["item"]]
                for name, metric in metrics.items()
            }
        cell.scores.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return cell


def test_results_are_the_rows_of_the_leaderboard(output: Path) -> None:
    cell_of("good", [1.0] * 20 + [0.5] * 10)
    cell_of("bad", [0.5] * 25 + [0.0] * 5)
    main([])
    with (output / "leaderboard.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    table = load_results(output)
    assert list(table.columns) == list(rows[0])
    assert [f"{one:.12g}" for one in table.value] == [f"{float(row['value']):.12g}" for row in rows]
    # best first
    assert list(table[table.headline].model) == ["good", "bad"]
    assert list(table[table.headline].group) == ["a", "b"]
    assert table.headline.dtype == bool and str(table.limit.dtype) == "Int64"


def test_scores_make_the_metrics_again(output: Path) -> None:
    rng = np.random.default_rng(1)
    cell_of("m", rng.random(40), prompts=10)
    cell_of("org/n", rng.random(40))
    results, scores = load_results(output), load_scores(output)
    shares = read_result(output / "m/text/result.json").metrics["by kind"].shares
    assert shares == {"0": 0.25, "1": 0.75}
    for model in ("m", "org/n"):
        mine = scores[scores.model == model]
        value = results[(results.model == model)].set_index("metric").value
        plain = mine[mine.metric == "accuracy"]
        assert plain.score.mean() == pytest.approx(value["accuracy"], rel=1e-12)
        groups = mine[mine.metric == "by kind"].groupby("group")
        means = groups.total.sum() / groups.weight.sum()
        assert sum(shares[group] * one for group, one in means.items()) == pytest.approx(value["by kind"])
        assert plain.cluster.nunique() == (10 if model == "m" else 40)


@pytest.mark.parametrize("below", ["", "org/n/text/result.json"])
def test_any_folder_of_results_can_be_asked(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    cell_of("org/n", [0.5] * 12)
    if not below:
        cell_of("m", [0.5] * 12)
    elsewhere = output.rename(tmp_path / "of a friend")
    monkeypatch.chdir(tmp_path)
    found = load_results(Path("of a friend") / below)
    assert set(found.model) == ({"m", "org/n"} if not below else {"org/n"})
    assert set(found.result) >= {"org/n/text/result.json"}
    assert set(load_scores(str(elsewhere / below)).model) == set(found.model)
    with pytest.raises(UserError, match="holds no results"):
        load_results(tmp_path / "nothing")
    assert output_root() == output


def test_files_of_old_versions_say_what_items_give_where_a_metric_is_their_mean(output: Path) -> None:
    rng = np.random.default_rng(2)
    one = rng.random(40)
    cell_of("old", one, prompts=10, keep=False)
    cell_of("new", np.clip(one - 0.05, 0, 1), prompts=10)
    _, cells = read_cells(output)
    found = {name: column for (_, name), column in columns(cells).items()}
    column = {one.name: one for one in found["accuracy"]}
    comparison = compare(column["old"], column["new"])
    assert comparison.paired and comparison.n == 10, "clusters are the prompts"
    assert comparison.is_significant and comparison.difference == pytest.approx(
        (one - np.clip(one - 0.05, 0, 1)).mean()
    )
    # a mean of something else says nothing of items
    raw = json.loads(Cell("old", "text").result.read_text())
    raw["metrics"]["accuracy"]["value"] += 0.001
    Cell("old", "text").result.write_text(json.dumps(raw))
    _, cells = read_cells(output)
    [column_of_two] = [column for (_, name), column in columns(cells).items() if name == "accuracy"]
    assert not compare(*column_of_two).paired


def test_a_file_that_lost_lines_is_not_taken_for_whole(output: Path) -> None:
    cell = cell_of("m", [1.0] * 20 + [0.0] * 10)
    lines = cell.scores.read_text().splitlines(keepends=True)
    cell.scores.write_text("".join(lines[:20]) + lines[20][:30])
    assert load_scores(output).empty
    for parts in ({"accuracy": [[1]]}, {"accuracy": [[1, -1]]}, None):
        record = json.loads(lines[0]) | {"parts": parts}
        cell.scores.write_text(json.dumps(record) + "\n" + "".join(lines[1:]))
        assert "accuracy" not in set(load_scores(output).metric)
