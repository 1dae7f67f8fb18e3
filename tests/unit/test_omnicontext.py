"""OmniContext: how replies are read, the passes, what the judge sees, and the averages."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks.omnicontext.benchmark import OmniContext, object_in, reduced
from imageevalkit import assets
from imageevalkit.assets import BenchmarkFiles
from imageevalkit.benchmark.contract import Answers, Settings, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, ask
from imageevalkit.common.images import sha256_file
from imageevalkit.judges.api import sent_picture
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from imageevalkit.store.results import Score
from tests.support import omnicontext_data
from tests.support.function_judge import items, write_images

OFFICIAL, CORRECTED = OmniContext(), OmniContext(Settings(rules="corrected"))
_FILE, _RULE = "omnicontext/prompt_generator.py::", "_prompts_0shot_in_context_generation_rule_"
_RULES = ("PF_Scene", "PF_Single_and_Multiple", "SC_Scene", "SC_Single_and_Multiple")
KEYS = (f"{_FILE}_context_no_delimit", *(f"{_FILE}{_RULE}{rule}" for rule in _RULES))


def grade(n: Any) -> str:
    return f'{{"score": {n}, "reasoning": "So."}}'


def read(benchmark: OmniContext, reply: str) -> Any:
    question = ask("following", "?")
    try:
        value = benchmark.parse(question, Answer(question, reply))
    except Unparsed:
        return None
    return value[0] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("reply", "official", "corrected"),
    [
        (grade(8), 8, 8),
        (f"```json\n{grade(8)}\n```", 8, 8),
        (grade(8.5), 8.5, 8.5),
        ("10", 10, 10),
        *((reply, None, None) for reply in ("11", "8.5", "[8]", "", "I cannot.", '{"score": 8, "reas')),
        ('{"score": 8/10, "reasoning": "a "b" c"}', None, None),
        (grade("[8]"), [8], 8),
        ("{score: 8, reasoning: fine}", [8], 8),
        (grade('"8"'), "8", None),
        (grade(-1), -1, None),
        (grade("null"), None, None),
        (grade(11), 11, None),
        ('{"score": 8}', None, 8),
    ],
)
def test_the_grade_in_a_reply(reply: str, official: Any, corrected: Any) -> None:
    assert (read(OFFICIAL, reply), read(CORRECTED, reply)) == (official, corrected)


def item(type: str = "scene_character") -> Item:
    path = Cell("m", "omnicontext").folder / "x.png"
    return Item(f"images/fullset/{type}/1", path, 42, None, None, {"key": "1", "type": type, "prompt": "p"})


def scored(*replies: str, type: str = "scene_character") -> Score:
    """Returns the score of a result. The replies are about following and consistency in turns."""
    names = [f"{name}/{n}" for n in range(3) for name in ("following", "consistency")]
    answers = {}
    for name, reply in zip(names, replies, strict=True):
        asked = ask(name, "?")
        answers[name] = Answer(asked, reply, value=OFFICIAL.parse(asked, Answer(asked, reply)))
    return OFFICIAL.score(item(type), Answers(answers))


@pytest.mark.parametrize(
    ("replies", "following", "consistency", "overall"),
    [
        ((7, 6, 9, 8, 5, 10), 5, 10, 7.0711),
        ((7, 6, 9, 8, 5, "sorry"), 5, 8, 6.3246),
        ((7, 6, 9, 8, "sorry", 10), 9, 8, 8.4853),
    ],
)
def test_the_last_grades_count_also_of_different_passes(
    replies: tuple[Any, ...], following: int, consistency: int, overall: float
) -> None:
    score = scored(*(one if isinstance(one, str) else grade(one) for one in replies))
    expected = {"overall": overall, "following": following, "consistency": consistency}
    assert score.values == pytest.approx(expected, abs=5e-5) and score.detail["guessed"] == 0


def test_a_grade_that_was_never_read_is_random_officially_and_is_told() -> None:
    never = scored(*["sorry"] * 6)
    draw = random.Random(item().id)
    assert [never.values[name] for name in ("following", "consistency")] == [
        draw.randint(0, 10) for _ in range(2)
    ]
    half = scored(grade(7), "sorry", grade(9), "sorry", grade(5), "sorry")
    assert half.values["following"] == 5 and half.detail["guessed"] == 1
    stopped = scored(*[grade("[8]")] * 6)
    assert stopped.values == {}
    [guesses, left_out] = OFFICIAL.notes([never, half, stopped])  # type: ignore[arg-type]
    assert guesses.startswith("3 of 6 grades are random numbers") and left_out.startswith(
        "1 images do not count"
    )


def test_types_weigh_the_same() -> None:
    grades = {
        "single_character": [(8, 8), (10, 5), (9, 4)],
        "single_object": [(10, 10), (0, 9)],
        "scene_character": [(6, 6)],
    }
    scores = [
        scored(*[grade(following), grade(consistency)] * 3, type=type)
        for type, pairs in grades.items()
        for following, consistency in pairs
    ]
    metrics = OFFICIAL.metrics(scores)  # type: ignore[arg-type]
    values = {name: metrics[name].value for name in ("following", "consistency", "overall")}
    assert values == pytest.approx({"following": 6.667, "consistency": 7.056, "overall": 6.008}, abs=5e-4)
    assert metrics["overall/single_character"].value == pytest.approx(7.024, abs=5e-4)
    assert metrics["overall/single"].value == pytest.approx((7.024 + 5) / 2, abs=5e-4)
    assert metrics["overall/multi"].value is None


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((3000, 2000), (1248, 832)),
        ((4032, 3024), (1168, 880)),
        ((1080, 1920), (768, 1360)),
        ((640, 427), (640, 416)),
        ((1024, 1024), (1024, 1024)),
    ],
)
def test_references_are_small_and_in_multiples_of_16(
    size: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert reduced(size) == expected


@pytest.mark.parametrize(("benchmark", "calls"), [(OFFICIAL, 6), (CORRECTED, 2)])
def test_the_judge_sees_all_references_and_then_the_result(
    benchmark: OmniContext, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assets, "BENCHMARKS", tmp_path)
    omnicontext_data.write(tmp_path / "omnicontext/data")
    monkeypatch.setattr(BenchmarkFiles, "prompts", lambda files: {key: key.split("::")[1] for key in KEYS})
    made = items(benchmark, 16)
    assert len(items(benchmark)) == 400 and len({one.data["type"] for one in made[:8]}) == 8
    one = next(item for item in made if item.data["type"] == "scene_object")
    write_images([one])
    asked = list(benchmark.questions(one, Picture(one.path, sha256_file(one.path), plain=False), Answers({})))
    assert len(asked) == calls and len({(q.name, q.repeat) for q in asked}) == calls
    following, consistency = (q.messages[0].parts for q in asked[:2])
    assert ("PF_Scene" in str(following[0])) == (benchmark is CORRECTED)
    assert "SC_Scene" in str(consistency[0])
    sources = [source.sha256 for source in benchmark.sources(one)]
    shown = [part for part in following[1:] if isinstance(part, Picture)]
    assert [picture.sha256 for picture in shown[:-1]] == sources and len(sources) >= 2
    kinds = {sent_picture(picture)[1] for picture in shown}
    assert kinds == {"image/jpeg" if benchmark is OFFICIAL else "image/png"}
    first = Image.open(io.BytesIO(sent_picture(shown[0])[0]))
    assert benchmark is CORRECTED or all(side % 16 == 0 for side in first.size)


def test_damaged_objects_are_repaired_as_for_gedit() -> None:
    assert object_in("{score: 7, reasoning: fine}") == {"score": [7], "reasoning": "fine"}
    assert object_in("[" * 100_000) is None
