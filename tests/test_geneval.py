"""GenEval: which detections count, the verdict on an image, the summary; beside the official program's own records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.geneval.benchmark import COLORS, GenEval, GenEvalSettings, kept, relations, verdict
from imageevalkit.benchmark.contract import Answers, ScoredItem, Scores
from imageevalkit.cell.items import Item
from tests.support.function_judge import items
from tests.support.mirror import official_source, shared_mirror, use_official_data

_KIT = "PenghaoYin/ImageEvalKit/85b5e1511b867688fa37edee304ee0adc953e941/benchmarks/geneval"


def box(*corners: float, confidence: float = 0.95) -> list[float]:
    return [*corners, confidence]


@pytest.mark.parametrize(
    ("one", "target", "expected"),
    [
        ((100, 200, 300, 500), (400, 220, 700, 480), ["left of"]),
        ((0, 0, 200, 200), (50, 0, 250, 200), []),  # near: no relation
        ((190, 190, 210, 210), (290, 290, 310, 310), ["left of", "above"]),
        ((668, 0, 1024, 615), (294, 530, 1024, 814), ["above"]),
        ((0, 0, 10, 10), (0, 0, 10, 10), []),
    ],
)
def test_relations_of_boxes(one: Any, target: Any, expected: list[str]) -> None:
    assert relations(box(*one), box(*target)) == expected


def test_an_object_counts_above_the_threshold_of_the_tag_and_the_16_most_confident_of_a_class() -> None:
    clocks = {"clock": [box(0, 0, 1, 1, confidence=c) for c in (0.90, 0.95, 0.91, 0.3)]}
    assert [one[4] for one in kept(clocks, "counting")["clock"]] == [0.95, 0.91]
    assert [one[4] for one in kept(clocks, "colors")["clock"]] == [0.95, 0.91, 0.90]
    many = {
        "bird": [box(0, 0, 1, 1, confidence=0.4 + n / 100) for n in range(20)],
        "cat": [box(0, 0, 1, 1, confidence=0.2)],
    }
    assert len(kept(many, "two_object")["bird"]) == 16 and kept(many, "two_object").keys() == {"bird"}


@pytest.mark.parametrize(
    ("metadata", "objects", "colors", "reasons"),
    [
        (
            {"include": [{"class": "clock", "count": 2}], "exclude": [{"class": "clock", "count": 3}]},
            {"clock": [box(0, 0, 1, 1)] * 2},
            {},
            "",
        ),
        (
            {"include": [{"class": "clock", "count": 2}], "exclude": [{"class": "clock", "count": 3}]},
            {"clock": [box(0, 0, 1, 1)] * 4},
            {},
            "expected clock<3, found 4",
        ),
        (
            {"include": [{"class": "cup", "count": 1, "color": "red"}]},
            {"cup": [box(0, 0, 1, 1)] * 2},
            {"cup": ["blue", "red"]},
            "expected red cup>=1, found 0 red; and 1 blue",
        ),
        (
            {
                "include": [
                    {"class": "bear", "count": 1},
                    {"class": "dog", "count": 1, "position": ["left of", 0]},
                ]
            },
            {"dog": [box(0, 0, 1, 1)]},
            {},
            "expected bear>=1, found 0\nno target for dog to be left of",
        ),
        (
            {
                "include": [
                    {"class": "bear", "count": 1},
                    {"class": "dog", "count": 1, "position": ["left of", 0]},
                ]
            },
            {"dog": [box(400, 0, 500, 100)], "bear": [box(0, 0, 100, 100)]},
            {},
            "expected dog left of target, found right of target",
        ),
    ],
)
def test_the_verdict_and_its_reasons(metadata: Any, objects: Any, colors: Any, reasons: str) -> None:
    assert verdict(metadata, objects, colors) == (not reasons, reasons)


def records() -> list[dict[str, Any]]:
    with (shared_mirror() / _KIT / "results.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def test_verdicts_of_2212_published_images_are_reproduced_from_their_boxes() -> None:
    same = 0
    for record in records():
        metadata, objects = json.loads(record["metadata"]), json.loads(record["details"])
        assert kept(objects, record["tag"]) == objects  # they are those that counted
        correct, reason = verdict(metadata, objects, {})
        if record["tag"] not in ("colors", "color_attr"):
            assert correct == record["correct"]
            # of two relations the official program prints a set, in any order
            assert sorted(reason.split()) == sorted(record["reason"].split())
            same += 1
        elif any(not objects.get(clause["class"]) for clause in metadata["include"]):
            assert not record["correct"] and not correct
    assert same == 1436


def test_published_records_give_the_published_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_official_data("geneval", tmp_path, monkeypatch)
    benchmark = GenEval(GenEvalSettings(detections=str(shared_mirror() / _KIT / "results.jsonl")))
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


def test_the_files_are_those_that_the_official_summary_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_official_data("geneval", tmp_path, monkeypatch)
    published = shared_mirror() / _KIT / "results.jsonl"
    benchmark = GenEval(GenEvalSettings(detections=str(published)))
    scored = Scores([_scored(benchmark, item) for item in items(benchmark)])
    ours = [json.loads(line) for line in benchmark.official_files(scored)["results.jsonl"].splitlines()]
    theirs = {"/".join(record["filename"].split("/")[-3:]): record for record in records()}
    assert len(ours) == len(theirs)
    for record in ours:
        other = theirs["/".join(record["filename"].split("/")[-3:])]
        assert {**record, "filename": ""} == {**other, "filename": ""}


def test_our_verdict_is_the_official_function_on_random_detections() -> None:
    import random

    import numpy as np

    source = official_source(
        "djghosh13/geneval", "af4902f24d3ca90ebbb446dd9891a59e0f82725f", "evaluation/evaluate_images.py"
    )
    begin, end = source.index("def compute_iou"), source.index("def evaluate_image(")
    colors: dict[str, list[str]] = {}
    space: dict[str, Any] = {
        "np": np,
        "COLORS": list(COLORS),
        "POSITION_THRESHOLD": 0.1,
        "color_classification": lambda image, found, name: colors[name][: len(found)],
    }
    exec(compile(source[begin:end], "official", "exec"), space)
    draw = random.Random(5)
    for _ in range(20_000):
        names = draw.sample(["cat", "dog", "cup"], 2)
        include = [
            {
                "class": name,
                "count": draw.randint(1, 3),
                **({"color": draw.choice(COLORS)} if draw.random() < 0.4 else {}),
            }
            for name in names
        ]
        if draw.random() < 0.5:
            include[1]["position"] = [draw.choice(["left of", "right of", "above", "below"]), 0]
        metadata = {"include": include}
        if draw.random() < 0.3:
            metadata["exclude"] = [{"class": names[0], "count": draw.randint(1, 4)}]
        objects, found = {}, {}
        for name in names:
            boxes = []
            for _ in range(draw.randint(0, 4)):
                x, y = draw.randint(0, 90), draw.randint(0, 90)
                boxes.append(box(x, y, x + draw.randint(0, 30), y + draw.randint(0, 30)))
            if boxes:
                objects[name] = boxes
                found[name] = [(np.array(one), None) for one in boxes]
            colors[name] = [draw.choice(COLORS) for _ in range(4)]
        correct, reason = space["evaluate"](None, found, metadata)
        ours = verdict(metadata, objects, colors)
        assert (ours[0], sorted(ours[1].split())) == (correct, sorted(reason.split()))


def test_records_of_another_benchmark_or_too_few_are_no_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_official_data("geneval", tmp_path, monkeypatch)
    short = tmp_path / "results.jsonl"
    short.write_text(
        json.dumps(
            {
                "filename": "x/00000/samples/00000.png",
                "tag": "single_object",
                "correct": True,
                "reason": "",
                "details": "{}",
            }
        )
        + "\n",
        encoding="utf-8",
    )
    benchmark = GenEval(GenEvalSettings(detections=str(short)))
    with pytest.raises(Exception, match=r"has no record of 00\d+/samples/0000\d.png"):
        for item in items(benchmark):
            benchmark.score(item, Answers({}))
