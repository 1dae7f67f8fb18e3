"""GenEval's official programs read our files and print our metrics."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.geneval.benchmark import TAGS, GenEval, GenEvalSettings
from imageevalkit.benchmark.contract import Answers, ScoredItem, Scores
from imageevalkit.store.items import Item
from tests.support.function_judge import items
from tests.support.mirror import official_source, shared_mirror, use_official_data

_RECORDS = "PenghaoYin/ImageEvalKit/85b5e1511b867688fa37edee304ee0adc953e941/benchmarks/geneval/results.jsonl"


def test_published_records_give_the_published_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_official_data("geneval", tmp_path, monkeypatch)
    benchmark = GenEval(GenEvalSettings(detections=str(shared_mirror() / _RECORDS)))
    made = items(benchmark)
    metrics = benchmark.metrics(Scores([_scored(benchmark, item) for item in made]))
    assert len(made) == 2212
    assert f"{metrics['overall'].value:.5f}" == "0.57406"
    shown = {name: f"{metric.value or 0:.2%}" for name, metric in metrics.items() if name != "overall"}
    assert shown == {
        "single_object": "98.75%",
        "two_object": "75.00%",
        "counting": "45.62%",
        "colors": "88.56%",
        "position": "12.25%",
        "color_attr": "24.25%",
        "images": "55.97%",
        "prompts": "74.86%",
    }


def _scored(benchmark: GenEval, item: Item) -> ScoredItem:
    score = benchmark.score(item, Answers({})).of_item(item.id)
    return ScoredItem(item, item.path, Answers({}), {}, score)


def _beginning(line: str) -> str:
    """Up to the file names, which are each tree's own."""
    return line.partition(',"tag":')[2]


def test_our_file_is_the_official_one_and_the_official_summary_of_it_our_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas")
    use_official_data("geneval", tmp_path, monkeypatch)
    published = shared_mirror() / _RECORDS
    benchmark = GenEval(GenEvalSettings(detections=str(published)))
    scored = [_scored(benchmark, item) for item in items(benchmark)]
    ours = benchmark.official_files(Scores(scored))["results.jsonl"]
    theirs = published.read_text(encoding="utf-8")
    assert {_beginning(line) for line in ours.splitlines()} == {_beginning(x) for x in theirs.splitlines()}
    gaps = Scores([one if n % 7 else one._replace(score=None) for n, one in enumerate(scored)])
    for some in (Scores(scored), gaps):
        metrics = benchmark.metrics(some)
        (tmp_path / "results.jsonl").write_text(benchmark.official_files(some)["results.jsonl"])
        printed = official_summary(tmp_path / "results.jsonl")
        percent = {name: f"{metric.value or 0:.2%}" for name, metric in metrics.items()}
        assert f"Total images: {len(some)}\n" in printed
        assert f"% correct images: {percent['images']}\n% correct prompts: {percent['prompts']}\n" in printed
        for tag in TAGS:
            right = sum(int(one.values["correct"]) for one in some if one.keys["tag"] == tag)
            assert f"{tag:<16} = {percent[tag]} ({right} / {metrics[tag].n})\n" in printed
        assert f"Overall score (avg. over tasks): {metrics['overall'].value:.5f}" in printed


def official_summary(results: Path) -> str:
    """Returns the output of the official program for the records in ``results``."""
    for name in ("summary_scores.py", "object_names.txt"):
        source = official_source(
            "djghosh13/geneval", "af4902f24d3ca90ebbb446dd9891a59e0f82725f", f"evaluation/{name}"
        )
        (results.parent / name).write_text(source, encoding="utf-8")
    command = [sys.executable, str(results.parent / "summary_scores.py"), str(results)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
