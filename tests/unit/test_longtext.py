"""LongText-Bench and quicktext: what a reader is asked, the score, the metrics, and the prompts.

Worked examples and official numbers are data here, not re-derived.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.longtext.benchmark import LongText, units
from benchmarks.quicktext.benchmark import QuickText
from imageevalkit import assets
from imageevalkit.benchmark.contract import Answers, Benchmark, Scores
from imageevalkit.benchmark.question import QWEN_VL_UTILS, Answer, Picture, Question, Sampling
from imageevalkit.jobs.plan import COMPLETE
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from imageevalkit.store.results import Metric
from tests.support.function_judge import evaluate, items, scores_of, use_function_judge, write_images
from tests.support.mirror import use_official_data

CATEGORIES = ["sign", "label", "print", "webpage", "slide", "poster", "caption", "dialogue"]
Text = tuple[Sequence[str], str, str]
"""What is expected, what was read, and the language."""


PROMPT = "benchmarks/LongText/textbench/evaluate_text_reward.py::ImageEvaluator.qwen_prompt"


@pytest.fixture
def read_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LongText]:
    """Makes a benchmark that is read by ``judge``, without its data."""

    def make(judge: str, cls: type[LongText] = LongText) -> LongText:
        monkeypatch.setattr(assets, "BENCHMARKS", tmp_path)
        monkeypatch.setattr(cls, "assets", ())
        benchmark = cls(judge=judge)
        vars(benchmark)["prompts"] = {PROMPT: "Read it."}
        return benchmark

    return make


def item(expected: Sequence[str], language: str, n: int = 0, prompt_id: int = 0, **keys: str) -> Item:
    groups = {"category": "sign", "length": "short", **keys, "language": language, "prompt_id": prompt_id}
    path = Cell("m", "longtext").folder / f"images/{n}.jpg"
    return Item(f"images/{n}", path, 43, "a sign", None, {**groups, "expected": expected})


def scores(texts: Sequence[Text], judge: str = "ppocr") -> Scores:
    """Returns the scores of images with such texts, each image with its own prompt."""
    made = [item(expected, language, n, n) for n, (expected, _, language) in enumerate(texts)]
    return scores_of(LongText(judge=judge), made, lambda asked: texts[int(asked.item.rpartition("/")[2])][1])


def counts(expected: Sequence[str], read: str, language: str) -> tuple[float, ...]:
    """How many units match, are expected, and were read."""
    [score] = scores([(expected, read, language)])
    return tuple(score.values[name] for name in ("match", "total", "read"))


# ---- what is asked -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("judge", "sampling"),
    [
        ("transformers:qwen2.5-vl-7b", Sampling(1024, temperature=None)),
        ("vllm:qwen2.5-vl-7b", Sampling(1024, 0.0, extra={"repetition_penalty": 1.05})),
        ("openai:gpt-4o", Sampling(1024, 0.0)),
        ("ppocr", Sampling(0)),
    ],
)
@pytest.mark.parametrize("cls", [LongText, QuickText])
def test_one_message_with_the_image_first(
    read_by: Callable[..., LongText], cls: type[LongText], judge: str, sampling: Sampling
) -> None:
    picture = Picture(Path("a.jpg"), "ab" * 32)
    [asked] = read_by(judge, cls).questions(item(["x"], "en"), picture, Answers({}))
    [message] = asked.messages
    assert message == ("user", (picture,) if judge == "ppocr" else (picture, "Read it."))
    assert asked.sampling == sampling


def test_a_judge_reads_in_a_cell(read_by: Callable[..., LongText], monkeypatch: pytest.MonkeyPatch) -> None:
    made = [item(["FRESH BREWS", "Daily"], "en"), item(["欢迎光临"], "zh", 1)]
    texts = {made[0].id: "No text recognized.", made[1].id: "欢迎光临"}
    asked = use_function_judge(lambda question: texts[question.item], monkeypatch)
    write_images(made)
    outcome, result = evaluate(read_by(""), made)
    assert outcome.state == COMPLETE
    assert {picture.pixels for question in asked for picture in question.pictures} == {QWEN_VL_UTILS}
    assert (result.metrics["en"].value, result.metrics["zh"].value) == (0, 1)
    assert result.headline == ["en", "zh"]
    assert result.evaluator.id.startswith("qwen2.5-vl-7b/transformers/") and result.evaluator.official
    records = [json.loads(line) for line in Cell("m", "longtext").scores.read_text().splitlines()]
    assert records[0]["values"] == {"recall": 0, "match": 0, "total": 3, "read": 0}
    assert records[0]["keys"] == {"language": "en", "category": "sign", "length": "short", "prompt_id": 0}
    assert records[0]["detail"] == {"expected": "FRESH BREWS\nDaily", "read": ""}


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("FRESH BREWS\nEvery Morning", "FRESH BREWS\nEvery Morning"),
        ("No text recognized.", ""),
        ("a\nNo text recognized.\nb", "a\n\nb"),
        ("no text recognized.", "no text recognized."),
        ("", ""),
    ],
)
def test_the_official_clean_up_with_its_quirk(said: str, read: str) -> None:
    question = Question("read the text", (), Sampling(0))
    assert LongText(judge="openai:gpt-4o").parse(question, Answer(question, said)) == read
    assert LongText(judge="ppocr").parse(question, Answer(question, said)) == said


# ---- the score -----------------------------------------------------------------------------------------------

EN_A: Text = (
    ["FRESH BREWS, EVERY MORNING, EVERY DAY", "Don't stop!"],
    "Fresh brews every morning\nday – dont stop now",
    "en",
)
EN_B: Text = (["CENTRAL PARK - 2 BLOCKS"], "No text recognized", "en")


def test_worked_examples_of_the_spec() -> None:
    assert counts(*EN_A) == (7, 8, 8)
    assert counts(*EN_B) == (0, 4, 3)
    assert counts(["本地烘焙，始于1998"], "本地烘培 始于1989", "zh") == (9, 10, 10)
    assert counts(["开放 Wi-Fi"], "开放 WIFI", "zh") == (4, 6, 6)
    assert counts(["No Entry"], "No text recognized.", "en") == (0, 2, 0)


# (expected, read, language, match, total): match and total as the official summary script printed them
OFFICIAL = [
    (["Café Noël", "crème brûlée"], "CAFÉ NOËL creme brulee", "en", 2, 4),
    (["9-5 daily", "two-block walk"], "9 5 daily twoblock walk", "en", 3, 4),
    (["Hello World"], "", "en", 0, 2),
    (["No Entry"], "No text recognized", "en", 1, 2),
    (["naïve Über straße"], "NAÏVE über strasse", "en", 2, 3),
    (["欢迎光临"], "欢迎 光临", "zh", 4, 4),
    (["二〇二五年 〇"], "二零二五年〇", "zh", 4, 4),
    (["好好学习"], "好学习习习", "zh", 3, 4),
    (["关于Note"], "No text recognized", "zh", 4, 6),
    (["你好"], "No text recognized.你好", "zh", 2, 2),
]


@pytest.mark.parametrize(("expected", "read", "language", "match", "total"), OFFICIAL)
def test_counts_equal_the_official_script(
    expected: list[str], read: str, language: str, match: int, total: int
) -> None:
    assert counts(expected, read, language)[:2] == (match, total)


def test_white_list_is_exact() -> None:
    accented = "àâäéèêëîïôöùûüç"
    inside = "一龥azAZ09" + accented + accented.upper()
    outside = "\u4dff\u9fa6〇áñõøßœÿ_@-'’.０Ａあ한я"
    assert "".join(units(inside + outside, "zh")) == inside
    assert units(inside + outside, "en") == [inside.lower()]
    assert units("cafe\u0301", "en") == ["cafe"], "composed accents only"


def test_nothing_to_compare_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing that can be compared"):
        counts(["!?", "——"], "text", "en")


# ---- metrics -------------------------------------------------------------------------------------------------


def values(found: Mapping[str, Metric]) -> dict[str, float | None]:
    return {name: metric.value for name, metric in found.items()}


def test_the_average_is_micro_not_macro() -> None:
    assert LongText().metrics(scores([EN_A, EN_B]))["en"].value == pytest.approx(7 / 12)
    assert LongText().metrics(Scores([])) == {"en": Metric(None, 0), "zh": Metric(None, 0)}


def test_surplus_text_is_free_but_costs_precision() -> None:
    for read, precision in (("one two", 1), ("two one " * 3, 1 / 3), ("", None)):
        found = LongText().metrics(scores([(["one two"], read, "en")]))
        assert found["en"].value == bool(read)
        assert found["en/precision"].value == (precision and pytest.approx(precision))


def test_only_groups_that_occur_are_listed() -> None:
    found = LongText().metrics(scores([(["二人"], "二x大的", "zh")]))
    groups = {"zh": 0.5, "zh/precision": 0.25, "zh/sign": 0.5, "zh/short": 0.5}
    assert values(found) == {"en": None, **groups}


# ---- the prompts ---------------------------------------------------------------------------------------------


@pytest.fixture
def longtext(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LongText:
    """On the official prompts."""
    use_official_data("longtext", tmp_path, monkeypatch)
    return LongText()


def total(data: Mapping[str, Any]) -> int:
    return len(units(" ".join(data["expected"]), data["language"]))


def test_longtext_is_the_whole_benchmark(longtext: LongText) -> None:
    made = items(longtext)
    assert len({one.path for one in made}) == 1280
    prompts = {(one.data["language"], one.data["prompt_id"]): one for one in made}
    assert Counter(language for language, _ in prompts) == {"en": 160, "zh": 160}
    ids = {*range(80), *range(100, 140), *range(160, 200)}
    assert {i for language, i in prompts if language == "zh"} == ids
    per_group = Counter(
        (language, p.data["category"], p.data["length"]) for (language, _), p in prompts.items()
    )
    assert per_group == {(g, c, n): 10 for g in ("en", "zh") for c in CATEGORIES for n in ("short", "long")}
    for (language, _), one in prompts.items():
        assert any("\u4e00" <= c <= "\u9fa5" for c in one.prompt or "") == (language == "zh")
    units_of: Counter[str] = Counter()
    for one in made:
        units_of[one.data["language"]] += total(one.data)
    assert units_of == {"en": 17052, "zh": 31776}, "as the specification counts"


def test_longtext_paths_and_seeds(longtext: LongText) -> None:
    made = items(longtext)
    assert [(one.id, one.seed) for one in made[:4]] == [
        ("images/text_prompts/0000_1", 43),
        ("images/text_prompts_zh/0000_1", 43),
        ("images/text_prompts/0000_2", 44),
        ("images/text_prompts_zh/0000_2", 44),
    ]
    assert made[-1].id == "images/text_prompts_zh/0199_4"
    assert all(one.path.suffix == ".jpg" for one in made)
    # the official evaluator finds the prompt by the digits before the underscore
    assert all(int(one.path.name.split("_")[0]) == one.data["prompt_id"] for one in made)


def test_quicktext_needs_nothing_but_the_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    benchmark: Benchmark = QuickText()
    assert (benchmark.judge, benchmark.assets) == ("ppocr", ())
    made = items(benchmark)
    assert [one.id for one in made[:3]] == ["images/en/00", "images/zh/00", "images/en/01"]
    assert {one.seed for one in made} == {43}
    assert Counter(one.data["language"] for one in made) == {"en": 24, "zh": 24}
    assert Counter(one.data["category"] for one in made) == dict.fromkeys(CATEGORIES, 6)
