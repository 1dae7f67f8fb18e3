"""GenExam: how replies are read, what the judge sees, the scores, and the official program's files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from benchmarks.genexam.benchmark import GRADES, SUBJECTS, GenExam, GenExamSettings
from imageevalkit.benchmark.contract import Answers, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Encoding, Picture, ask
from imageevalkit.common.images import decode, sha256_file
from imageevalkit.judges.api import sent_picture
from imageevalkit.store.results import Score
from tests.support.function_judge import items, scores_of, write_images
from tests.support.genexam_data import use_data
from tests.support.official_programs import request_to

CORRECTED = GenExamSettings(rules="corrected")


def said(answers: list[Any], *grades: Any) -> str:
    """A reply in the required form."""
    return json.dumps(
        {
            "description": "A figure.",
            "answers": [{"reasoning": "so", "answer": one} for one in answers],
            "global_evaluation": {
                label: {"reasoning": "so", "score": grade}
                for label, grade in zip(GRADES.values(), grades, strict=True)
            },
        }
    )


GOOD = said([1, 1], 2, 2, 2)


def parsed(reply: str, settings: GenExamSettings | None = None, points: int = 2) -> Any:
    question = ask("exam", "?", data=points)
    try:
        return GenExam(settings).parse(question, Answer(question, reply))
    except Unparsed as error:
        return "final" if error.final else None


@pytest.mark.parametrize(
    ("reply", "reads"),
    [
        (GOOD, True),
        (f"Sure!\n```json\n{GOOD[:-1]},}}\n```\nDone.", True),
        (repr(json.loads(GOOD)), True),
        (f"```\n{GOOD}\n```", False),
        (f"Sure! {GOOD}", False),
        (GOOD[:-1] + ', "x": true,}', False),
        *((one, False) for one in ("", "[]", "{}", GOOD.replace('"Spelling"', '"spelling"'))),
        *((said(one, 2, 2, 2), False) for one in ([1], [1, 2], [1, "1"], [1, 1, 1], [1, None])),
        (said([True, 1.0], 2, 2, 2), True),
    ],
)
def test_which_replies_are_read(reply: str, reads: bool) -> None:
    expected = {"answers": [1, 1], **dict.fromkeys(GRADES, 2)} if reads else None
    assert (parsed(reply), parsed(reply, CORRECTED)) == (expected, expected)


@pytest.mark.parametrize(
    ("grade", "official"), [(3, 3), (1.5, 1.5), ("2", "final"), (None, "final"), (True, True)]
)
def test_only_corrected_rules_check_grades(grade: Any, official: Any) -> None:
    found = parsed(said([1, 0], grade, 2, 2))
    assert (found if found == "final" else found["spelling"]) == official
    assert parsed(said([1, 0], grade, 2, 2), CORRECTED) is None


@pytest.mark.parametrize(
    ("weights", "answers", "grades", "correct", "strict", "relaxed"),
    [
        ((0.4, 0.35, 0.1, 0.15), [1, 1, 1, 1], (2, 2, 2), 1.0, 1, 1.0),
        ((0.4, 0.35, 0.1, 0.15), [1, 1, 1, 1], (2, 1, 2), 1.0, 0, 0.95),
        ((0.4, 0.35, 0.1, 0.15), [1, 1, 0, 1], (2, 2, 2), 0.9, 0, 0.93),
        ((0.08, 0.1, 0.12, 0.25, 0.16, 0.29), [1, 1, 1, 0, 1, 0], (1, 2, 1), 0.46, 0, 0.522),
        ((0.5, 0.5), [0, 0], (0, 0, 0), 0.0, 0, 0.0),
        ((0.5, 0.5), [True, True], (3, 2, 2), 1.0, 0, 1.05),
        ((0.5, 0.5), [1, 1], (1.5, 2, 2), 1.0, 0, 0.975),
    ],
)
def test_worked_examples_of_items(
    weights: Any, answers: Any, grades: Any, correct: Any, strict: Any, relaxed: Any
) -> None:
    points = [{"question": f"Is it {n}?", "score": weight} for n, weight in enumerate(weights)]
    data = {"scoring_points": points, **dict.fromkeys(("subject", "difficulty", "img_type", "taxonomy"), "x")}
    question = ask("exam", "?", data=len(answers))
    answer = Answer(question, "", value=parsed(said(answers, *grades), points=len(answers)))
    item: Any = SimpleNamespace(data=data)
    score = GenExam().score(item, Answers({"exam": answer}))
    assert [score.values[name] for name in ("semantic_correctness", "strict", "relaxed")] == [
        correct,
        strict,
        relaxed,
    ]


def metrics(*found: tuple[str, float, float]) -> dict[str, float | None]:
    """The metrics of items, each with its subject, strict and relaxed score."""
    scores = Scores([])
    for subject, strict, relaxed in found:
        keys = {"subject": subject, "difficulty": "easy", "img_type": "maps"}
        values = {
            "strict": strict,
            "relaxed": relaxed,
            "semantic_correctness": 1.0,
            **dict.fromkeys(GRADES, 2),
        }
        scores.append(Score(values, keys))
    return {name: metric.value for name, metric in GenExam().metrics(scores).items()}


def test_worked_examples_of_averages() -> None:
    found = metrics(("Music", 1, 1.0), ("Music", 0, 0.65), ("Music", 0, 0.45), ("History", 1, 1.0))
    named = [found[f"strict{one}"] for one in ("/Music", "", "_subjects")]
    assert named == [pytest.approx(one) for one in (100 / 3, 50.0, 200 / 3)]
    named = [found[f"relaxed{one}"] for one in ("/Music", "", "_subjects")]
    assert named == [pytest.approx(one) for one in (70.0, 77.5, 85.0)]
    # GPT-Image-2's perfect images of each subject, as published
    sizes = (156, 118, 102, 77, 111, 66, 41, 151, 65, 113)
    perfect = (139, 82, 75, 64, 88, 56, 34, 76, 42, 90)
    counts = zip(SUBJECTS, sizes, perfect, strict=True)
    row = metrics(*((name, int(n < right), 0.0) for name, size, right in counts for n in range(size)))
    assert (row["strict"], row["strict_subjects"]) == (pytest.approx(74.6), pytest.approx(75.7, abs=0.05))


def test_one_item_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_data(tmp_path, monkeypatch)
    whole, mini = ([*GenExam(one).samples()] for one in (None, GenExamSettings(subset="mini")))
    assert (len(whole), len(mini), sum(len(one.data["scoring_points"]) for one in whole)) == (1000, 250, 7022)
    assert Counter(one.data["subject"] for one in mini)["Music"] == 14
    made = items(GenExam())
    item = next(one for one in made if one.data["id"] == "Music_11")
    write_images([item])
    Image.new("RGBA", (1664, 929), (9, 99, 9, 0)).save(item.path)
    image = Picture(item.path, sha256_file(item.path), pixels=GenExam().pixels, plain=False)
    [question] = GenExam().questions(item, image, Answers({}))
    request = request_to("gpt-5", question)
    asked = {key: request[key] for key in request if key not in ("model", "messages")}
    assert asked == {"max_completion_tokens": 16384, "reasoning_effort": "low", "verbosity": "medium"}
    text, *pictures = request["messages"][0]["content"]
    assert str([one["question"] for one in item.data["scoring_points"]]) in text["text"]
    assert item.prompt in text["text"]
    assert [one["image_url"]["detail"] for one in pictures] == ["high", "high"]
    # what has neither detail nor floor keeps the request of older versions
    old = Picture(item.path, "ab", encoding=Encoding("JPEG", 95))
    assert json.dumps(old.request) == '["ab", null, ["JPEG", 95, null], false]'
    assert question.pictures[0].request[2:] == [["JPEG", None, 768, "floor"], "pillow", "high"]
    data, kind = sent_picture(question.pictures[0])
    assert (kind, decode(data).size) == ("image/jpeg", (768, 428))
    [white] = GenExam(CORRECTED).questions(
        item, image._replace(pixels=GenExam(CORRECTED).pixels), Answers({})
    )
    corners = [
        decode(sent_picture(one.pictures[0])[0]).convert("RGB").getpixel((0, 0)) for one in (question, white)
    ]
    assert corners[1] == (255, 255, 255) != corners[0]
    assert question.pictures[1].path.name == "Music_11.png"

    scores = scores_of(GenExam(), [item], lambda one: said([1] * one.data, 2, 2, 2))
    [content] = GenExam().official_files(scores).values()
    found = json.loads(content)
    assert [*found][:4] == ["description", "answers", "global_evaluation", "id"]
    assert (found["gt_img_path"], "image_path" in found) == ("data/images/Music/Music_11.png", False)
