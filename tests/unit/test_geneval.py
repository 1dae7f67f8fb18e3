"""GenEval: which detections count, the verdict on an image, the summary; beside the official program's own records."""

from __future__ import annotations

import hashlib
import json
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.geneval.benchmark import COLORS, TAGS, GenEval, GenEvalSettings, kept, relations, verdict
from imageevalkit.benchmark.contract import Answers, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, measure
from imageevalkit.common.errors import CellFailure, UserError
from imageevalkit.evaluate.answerers import Answerers
from imageevalkit.extras.adopt.sources import find_images
from tests.support.function_judge import items
from tests.support.mirror import KIT, official_source, shared_mirror, use_official_data


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
            {"dog": [box(400, 0, 500, 100)], "bear": [box(0, 0, 100, 100)]},
            {},
            "expected dog left of target, found right of target",
        ),
    ],
)
def test_the_verdict_and_its_reasons(metadata: Any, objects: Any, colors: Any, reasons: str) -> None:
    assert verdict(metadata, objects, colors) == (not reasons, reasons)


def records() -> list[dict[str, Any]]:
    with (shared_mirror() / "/".join(KIT) / "benchmarks/geneval/results.jsonl").open(
        encoding="utf-8"
    ) as file:
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


def test_scores_of_records_name_who_has_detected() -> None:
    benchmark = GenEval(GenEvalSettings(detections="m.jsonl"))
    evaluator = Answerers(benchmark).evaluator
    assert evaluator.id.startswith("mmdet-records/official/") and evaluator.official
    assert evaluator.details["detections"] == "official records"
    assert not GenEval().notes(Scores([]))


def test_a_judge_cannot_take_the_place_of_the_detector() -> None:
    with pytest.raises(UserError, match=r"^benchmark geneval: .* not the judge 'openai:gpt-4o'"):
        GenEval(judge="openai:gpt-4o").check()
    GenEval().check()


def test_an_image_is_judged_as_by_the_official_function_on_random_detections() -> None:
    np = pytest.importorskip("numpy")
    source = official_source(
        "djghosh13/geneval", "af4902f24d3ca90ebbb446dd9891a59e0f82725f", "evaluation/evaluate_images.py"
    )
    begin, end = source.index("def compute_iou"), source.index("def main(")
    names = ["cat", "dog", "cup"]
    colors: dict[str, list[str]] = {}
    boxes: list[Any] = []
    space: dict[str, Any] = {
        "np": np,
        "json": SimpleNamespace(dumps=lambda value: value),
        "COLORS": list(COLORS),
        "POSITION_THRESHOLD": 0.1,
        "THRESHOLD": 0.3,
        "COUNTING_THRESHOLD": 0.9,
        "MAX_OBJECTS": 16,
        "NMS_THRESHOLD": 1.0,
        "classnames": names,
        "object_detector": None,
        "inference_detector": lambda model, path: boxes,
        "Image": SimpleNamespace(open=lambda path: None),
        "ImageOps": SimpleNamespace(exif_transpose=lambda image: image),
        "color_classification": lambda image, found, name: colors[name][: len(found)],
    }
    exec(compile(source[begin:end], "official", "exec"), space)
    draw, right = random.Random(5), 0
    for n in range(2_000):
        if n % 20 == 0:
            boxes = [np.array(random_boxes(draw)).reshape(-1, 5) for _ in names]
            colors = {name: draw.choices(COLORS[:2], k=3) for name in names}
            found = dict(zip(names, (of_class.tolist() for of_class in boxes), strict=True))
        tag, first, second = draw.choice(["counting", "colors"]), *draw.sample(names, 2)
        include: list[dict[str, Any]] = [
            {"class": name, "count": draw.choice((1, 1, 2))} for name in (first, second)
        ]
        for clause in include:
            if draw.random() < 0.3:
                clause["color"] = draw.choice(COLORS[:2])
        if draw.random() < 0.3:
            include[1]["position"] = [draw.choice(["left of", "right of", "above", "below"]), 0]
        metadata = {"tag": tag, "prompt": "", "include": include}
        if draw.random() < 0.3:
            metadata["exclude"] = [{"class": first, "count": draw.randint(1, 4)}]
        theirs, objects = space["evaluate_image"]("", metadata), kept(found, tag)
        assert objects == theirs["details"]
        correct, reason = verdict(metadata, objects, colors)
        assert (correct, sorted(reason.split())) == (theirs["correct"], sorted(theirs["reason"].split()))
        right += correct
    assert 100 < right < 1_000


def random_boxes(draw: random.Random) -> list[tuple[float, ...]]:
    """Now and then more of a class than count; no two of equal confidence, whose order would be up to the sort."""
    count = draw.choice((0, 1, 2, 3, 4, 20))
    confidences = draw.sample((0.3, 0.9, *(n / 40 + 0.01 for n in range(38))), count)
    corners = [(draw.randrange(90), draw.randrange(90)) for _ in confidences]
    return [
        (x, y, x + draw.randrange(30), y + draw.randrange(30), confidence)
        for (x, y), confidence in zip(corners, confidences, strict=True)
    ]


def test_records_that_are_no_verdicts_on_these_images_are_no_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_official_data("geneval", tmp_path, monkeypatch)
    [cup] = [one for one in items(GenEval()) if one.id == "images/00030/samples/00000"]
    right: dict[str, Any] = {
        "filename": "elsewhere/00007/samples/0000.png",  # folders in another order, with fewer digits
        "prompt": cup.prompt,
        "correct": True,
        "reason": "",
        "details": json.dumps({cup.data["metadata"]["include"][0]["class"]: [box(0, 0, 9, 9)]}),
    }
    file = tmp_path / "results.jsonl"

    def score(*records: dict[str, Any]) -> float:
        file.write_text("".join(f"{json.dumps(one)}\n" for one in records), encoding="utf-8")
        return GenEval(GenEvalSettings(detections=str(file))).score(cup, Answers({})).values["correct"]

    assert score(right, right) == 1
    named = GenEval(GenEvalSettings(detections=str(tmp_path / "<MODEL_NAME>")))
    file.rename(tmp_path / "m")
    assert named.score(cup, Answers({})).values["correct"] == 1
    sha256 = hashlib.sha256((tmp_path / "m").read_bytes()).hexdigest()
    [note] = named.notes(Scores([]))
    assert note.startswith(
        f"the detections come from {tmp_path}/m (SHA-256 {sha256}): the file does not prove"
    )
    for records, says in (
        ([{**right, "prompt": "a rewritten prompt"}], f"has no record of image 0 of '{cup.prompt}'"),
        ([{**right, "filename": "x/00007/samples/00001.png"}], "has no record of image 0"),
        ([{**right, "correct": False}], "by its details it is right, but not by its own verdict"),
        ([right, {**right, "details": "{}"}], "has two records of image 0"),
        ([{**right, "filename": "grid.png.txt"}], "'grid.png.txt' is no file as 00000.png"),
    ):
        with pytest.raises(CellFailure, match=f"^benchmark geneval: .*{re.escape(says)}"):
            score(*records)
    missing = GenEvalSettings(detections=str(tmp_path / "<MODEL_NAME>.jsonl"))
    with pytest.raises(CellFailure, match=r"m\.jsonl, which is no file"):
        GenEval(missing).score(cup, Answers({}))


@pytest.mark.parametrize(
    "text", ['{"objects": {}}', '{"objects": {"cup": [[1, 2, 3, 4, NaN]]}, "colors": {}}']
)
def test_what_is_no_detections_is_no_value(text: str) -> None:
    asked = measure("objects", "{}")
    with pytest.raises(Unparsed):
        GenEval().parse(asked, Answer(asked, text))


def test_images_in_the_official_folders_are_adopted_by_what_their_metadata_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_official_data("geneval", tmp_path, monkeypatch)
    made = items(GenEval())
    first = sorted(made, key=lambda one: one.id)[:16]
    for prompt in range(4):
        folder = tmp_path / f"theirs/{3 - prompt:05d}"  # folders in another order
        (folder / "samples").mkdir(parents=True)
        metadata = json.dumps(first[4 * prompt].data["metadata"] if prompt else {"prompt": "a long one"})
        (folder / "metadata.jsonl").write_text(metadata)
        (folder / "grid.png").write_bytes(b"")
        for n in range(4):
            (folder / f"samples/{n:04d}.png").write_bytes(b"")
    found = find_images(tmp_path / "theirs", first, [], GenEval().find_images)
    for item in first[4:]:
        name = f"{3 - item.data['index']:05d}/samples/{item.data['repetition']:04d}.png"
        assert found[item.id].path == tmp_path / "theirs" / name
    for item in first[:4]:
        assert found[item.id].path is None
    reasons = {found[item.id].reason for item in first[:4]}
    assert reasons == {f"{tmp_path}/theirs/00000/metadata.jsonl names another prompt: {first[12].prompt}"}


def test_any_first_images_are_of_all_tags_and_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_official_data("geneval", tmp_path, monkeypatch)
    first = items(GenEval(), limit=24)
    assert {one.data["metadata"]["tag"] for one in first} == {*TAGS}
    assert [one.seed for one in first[:4]] == [42, 43, 44, 45]
