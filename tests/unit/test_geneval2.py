"""GenEval 2: what is asked, what a reply is worth, the metrics, the official files, their analysis, and the data."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.geneval2.analyse import analysis
from benchmarks.geneval2.benchmark import GenEval2, accepted
from imageevalkit import assets
from imageevalkit.benchmark.contract import Answers, Unparsed
from imageevalkit.benchmark.question import TRANSFORMERS, Answer, Picture, Question, Sampling
from imageevalkit.common.errors import CellFailure
from imageevalkit.jobs.plan import COMPLETE, INCOMPLETE
from imageevalkit.metrics import geometric_mean
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from imageevalkit.store.results import Metric
from tests.support.function_judge import Reply, evaluate, items, scores_of, use_function_judge, write_images
from tests.support.mirror import use_official_data

CELL = Cell("m", "geneval2")
TEMPLATES = {
    "evaluation.py::soft_tifa": "In a word: {}",
    "evaluation.py::tifa": "In a word: {}",
    "evaluation.py::vqa_score": "Is this '{}'?",
}
HOW_MANY = "How many croissants are there?"


class Prompt(NamedTuple):
    """A prompt and the questions, answers and skills of its atoms."""

    text: str
    atomicity: int
    atoms: Sequence[tuple[str, str, str]]


P1 = Prompt(
    "seven green croissants",
    3,
    [
        (HOW_MANY, "seven", "count"),
        ("Are they green?", "Yes", "attribute"),
        ("Are there any croissants?", "Yes", "object"),
    ],
)
P2 = Prompt(
    "two dogs chasing a cat",
    4,
    [
        ("How many dogs are there?", "two", "count"),
        ("Are there any dogs?", "Yes", "object"),
        ("Are they on the left?", "Yes", "position"),
        ("Do they chase?", "Yes", "verb"),
    ],
)
SOFT = {
    "images/000": {"vqa/0": 0.25, "vqa/1": 1.0, "vqa/2": 1.0, "vqascore": 0.6},
    "images/001": {"vqa/0": 0.9, "vqa/1": 0.8, "vqa/2": 0.95, "vqa/3": 0.5, "vqascore": 0.2},
}


def items_of(prompts: Sequence[Prompt]) -> list[Item]:
    """The items of prompts of our own, in the shape of the real ones."""
    return [
        Item(
            f"images/{index:03d}",
            CELL.folder / f"images/{index:03d}.png",
            42,
            prompt.text,
            None,
            {
                "prompt": prompt.text,
                "index": index,
                "atom_count": prompt.atomicity,
                "vqa_list": [[question, answer] for question, answer, _ in prompt.atoms],
                "skills": [skill for *_, skill in prompt.atoms],
            },
        )
        for index, prompt in enumerate(prompts)
    ]


def soft(question: Question, score: float, text: str = "?", outside: float | None = 0.0) -> Answer:
    """An answer in which the first accepted string has all the probability of the right ones."""
    first, *others = question.choices
    return Answer(question, text, probabilities={**dict.fromkeys(others, 0.0), first: score}, outside=outside)


def as_in_the_spec(question: Question) -> Answer:
    return soft(question, SOFT[question.item][question.name], question.choices[0])


@pytest.fixture
def geneval2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GenEval2:
    """Without its data, and with prompts of our own for the judge."""
    monkeypatch.setattr(assets, "BENCHMARKS", tmp_path / "benchmarks")
    monkeypatch.setattr(GenEval2, "assets", ())
    benchmark = GenEval2()
    vars(benchmark)["prompts"] = TEMPLATES
    return benchmark


# ---- what is asked -------------------------------------------------------------------------------------------


def questions_of(benchmark: GenEval2, prompt: Prompt) -> list[Question]:
    [item] = items_of([prompt])
    return list(benchmark.questions(item, Picture(item.path, "ab" * 32), Answers({})))


def test_every_atom_is_asked_once_and_the_prompt_once(geneval2: GenEval2) -> None:
    asked = questions_of(geneval2, P1)
    assert [(q.name, q.text) for q in asked] == [
        ("vqa/0", f"In a word: {HOW_MANY}"),
        ("vqa/1", "In a word: Are they green?"),
        ("vqa/2", "In a word: Are there any croissants?"),
        ("vqascore", "Is this 'seven green croissants'?"),
    ]
    assert asked[0].choices == ("seven", "Seven", " seven", " Seven", "7", " 7")
    assert {q.choices for q in asked[1:]} == {("Yes", "yes", " yes", " Yes")}
    for question in asked:
        [message] = question.messages
        assert message.role == "user"
        assert [type(part) for part in message.parts] == [Picture, str]
        assert question.sampling == Sampling(max_tokens=1, temperature=0.0)


def test_accepted_answers_of_the_spec() -> None:
    yes = ("Yes", "yes", " yes", " Yes")
    assert accepted(HOW_MANY, "seven") == ("seven", "Seven", " seven", " Seven", "7", " 7")
    assert accepted("Are the croissants green?", "Yes") == yes
    assert accepted(HOW_MANY, "ten")[4:] == ("10", " 10")
    assert accepted(HOW_MANY, "eleven")[4:] == ("other", " other")
    # only "How many" looks at the answer
    assert accepted("Are the croissants green?", "No") == yes
    assert accepted("how many croissants?", "seven") == yes
    assert accepted("How many", "Yes") == ("Yes", "Yes", " Yes", " Yes", "other", " other")


# first-token ids of w, W, ␣w, ␣W, d, ␣d: the specification's table, made from Qwen's rank file
COUNT_IDS = {
    "one": (603, 3966, 825, 3776, 16, 220),
    "two": (19789, 11613, 1378, 9043, 17, 220),
    "three": (27856, 19641, 2326, 14513, 18, 220),
    "four": (34024, 26972, 3040, 13322, 19, 220),
    "five": (52670, 37020, 4236, 20924, 20, 220),
    "six": (50364, 41460, 4743, 18680, 21, 220),
    "seven": (80185, 59528, 8094, 29948, 22, 220),
}


def test_the_official_judge_alone_is_asked_by_the_ids_of_the_spec(geneval2: GenEval2) -> None:
    words = [*COUNT_IDS, "eleven"]
    counts = P1._replace(atoms=[(HOW_MANY, word, "count") for word in words])
    asked = questions_of(geneval2, counts)
    assert [question.choice_ids for question in asked] == [*COUNT_IDS.values(), (), (9454, 9693, 9834, 7414)]
    # distinct, so that a soft score stays below 1
    assert all(len(set(question.choice_ids)) == len(question.choice_ids) for question in asked)
    assert {ids[-1] for ids in COUNT_IDS.values()} == {220}, "space and digit begin with the bare space"
    served = GenEval2(judge="vllm:qwen3-vl-8b")
    vars(served)["prompts"] = TEMPLATES
    assert {question.choice_ids for question in questions_of(served, counts)} == {()}


# ---- what a reply is worth -----------------------------------------------------------------------------------

COUNT = {"seven": 0.10, "Seven": 0.05, " seven": 0.0, " Seven": 0.0, "7": 0.60, " 7": 0.02}


@pytest.mark.parametrize(
    ("said", "correct"),
    [
        ("7", True),
        (" Seven", True),
        (" ", False),  # quirk 3: the bare space, though its probability counts
        ("", False),
        ("8", False),
    ],
)
def test_a_reply_to_a_count_question(geneval2: GenEval2, said: str, correct: bool) -> None:
    question = questions_of(geneval2, P1)[0]
    parsed = geneval2.parse(question, Answer(question, said, probabilities=COUNT, outside=0.01))
    assert parsed.pop("p") == pytest.approx(0.77, abs=1e-12)
    assert parsed.pop("p_corrected") == pytest.approx(0.75, abs=1e-12)
    assert parsed == {"argmax": said, "correct": correct, "outside": 0.01}


def test_a_string_that_stands_twice_counts_twice(geneval2: GenEval2) -> None:
    question = questions_of(geneval2, P1._replace(atoms=[("How many", "Yes", "count")]))[0]
    found = dict.fromkeys(question.choices, 0.0) | {"Yes": 0.25, " Yes": 0.1, " other": 0.05}
    parsed = geneval2.parse(question, Answer(question, "Yes", probabilities=found))
    assert parsed["p"] == parsed["p_corrected"] == pytest.approx(2 * (0.25 + 0.1) + 0.05)


@pytest.mark.parametrize("probabilities", [None, {k: v for k, v in COUNT.items() if k != "7"}])
def test_a_reply_without_probabilities_is_no_score(
    geneval2: GenEval2, probabilities: dict[str, float] | None
) -> None:
    question = questions_of(geneval2, P1)[0]
    with pytest.raises(Unparsed, match="returned no probabilit"):
        geneval2.parse(question, Answer(question, "7", probabilities=probabilities, outside=0.0))


# ---- metrics -------------------------------------------------------------------------------------------------


def metrics_of(benchmark: GenEval2, prompts: Sequence[Prompt], reply: Reply) -> dict[str, Metric]:
    return benchmark.metrics(scores_of(benchmark, items_of(prompts), reply))


def test_a_zero_takes_the_whole_geometric_mean_of_its_prompt(geneval2: GenEval2) -> None:
    found = metrics_of(geneval2, [P1], lambda q: soft(q, 0.0 if q.name == "vqa/2" else 0.9))
    assert found["soft_tifa_gm"].value == 0
    assert found["soft_tifa_am"].value == pytest.approx(60)


def test_corrected_scores_lack_the_bare_space(geneval2: GenEval2) -> None:
    def with_space(question: Question) -> Answer:
        bare = {string: 0.3 for string in question.choices if string == " 7"}
        found = soft(question, 0.6)
        return Answer(question, "7", probabilities={**(found.probabilities or {}), **bare}, outside=0.0)

    found = metrics_of(geneval2, [P1], with_space)
    assert found["soft_tifa_am"].value == pytest.approx(100 * (0.9 + 0.6 + 0.6) / 3)
    assert found["soft_tifa_am_corrected"].value == pytest.approx(60)
    assert found["soft_tifa_gm_corrected"].value == pytest.approx(60)


def anything(question: Question) -> Answer:
    """Each question's own number, the same in every run; one in 16 is an exact zero."""
    number = zlib.crc32(f"{question.item} {question.text}".encode()) % 4096
    return soft(question, number / 4096 if number >= 256 else 0.0, "yes" if number % 2 else "no")


def test_unseen_probability_is_told_and_bounds_the_score(geneval2: GenEval2) -> None:
    scores = {"vqa/0": 0.0, "vqa/1": 1.0, "vqa/2": 0.9, "vqascore": 0.5}

    def top_tokens(question: Question) -> Answer:
        if question.item == "images/001":
            return as_in_the_spec(question)
        return soft(question, scores[question.name], outside=0.12 if question.name == "vqascore" else 0.05)

    run = scores_of(geneval2, items_of([P1, P2]), top_tokens)
    found = geneval2.metrics(run)
    second = geometric_mean([0.9, 0.8, 0.95, 0.5])
    assert found["soft_tifa_gm"].value == pytest.approx(100 * second / 2)
    upper = (geometric_mean([0.05, 1.0, 0.95]) + second) / 2
    assert found["soft_tifa_gm_upper"].value == pytest.approx(100 * upper)
    assert found["soft_tifa_am_upper"].value == pytest.approx(100 * (2.0 / 3 + 0.7875) / 2)
    assert found["vqascore_upper"].value == pytest.approx(100 * (0.62 + 0.2) / 2)
    assert found["outside_mass"].value == pytest.approx((3 * 0.05 + 0.12) / 9)
    assert (found["outside_mass_max"].value, found["outside_mass_max"].scale) == (0.12, 1.0)
    [note] = geneval2.notes(run)
    assert "a mean 3.00% of the probability, and at most 12.00%," in note


# ---- a cell --------------------------------------------------------------------------------------------------


def test_worked_example_through_the_engine(geneval2: GenEval2, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = use_function_judge(as_in_the_spec, monkeypatch)
    made = items_of([P1, P2])
    write_images(made)
    outcome, result = evaluate(geneval2, made)
    assert outcome.state == COMPLETE
    assert len(asked) == 9
    assert {picture.pixels for question in asked for picture in question.pictures} == {TRANSFORMERS}
    assert result.headline == ["soft_tifa_gm"]
    value = {name: metric.value or 0.0 for name, metric in result.metrics.items()}
    assert value["soft_tifa_am"] == pytest.approx(76.875, abs=1e-9)
    assert value["soft_tifa_gm"] == pytest.approx(69.7343853, abs=5e-8)
    assert (value["vqascore"], value["tifa"]) == (pytest.approx(40), 100)
    assert {name: f"{v:.2f}" for name, v in value.items() if "/" in name} == {
        "skill/object": "90.00",
        "skill/attribute": "100.00",
        "skill/count": "57.50",
        "skill/position": "95.00",
        "skill/verb": "50.00",
        "atomicity/3": "63.00",
        "atomicity/4": "76.47",
    }
    assert (result.evaluator.id[:25], result.evaluator.official) == ("qwen3-vl-8b/transformers/", True)
    records = [json.loads(line) for line in CELL.scores.read_text().splitlines()]
    assert records[0]["values"] == pytest.approx(
        {"soft_tifa_gm": 62.99605249, "soft_tifa_am": 75.0, "tifa": 100.0, "vqascore": 60.0}
    )
    assert records[0]["keys"] == {"atomicity": 3}
    assert "points" not in records[0]
    assert records[0]["detail"] == {
        HOW_MANY: 'seven: 0.2500, said "seven"',
        "Are they green?": 'Yes: 1.0000, said "Yes"',
        "Are there any croissants?": 'Yes: 1.0000, said "Yes"',
        "VQAScore": 'Yes: 0.6000, said "Yes"',
    }
    evaluate(geneval2, made)
    assert len(asked) == 9, "everything was on record"


def test_a_missing_item_withholds_the_headline_and_leaves_no_official_score(
    geneval2: GenEval2, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_function_judge(as_in_the_spec, monkeypatch)
    made = items_of([P1, P2])
    write_images(made[:1])
    outcome, result = evaluate(geneval2, made)
    assert outcome.state == INCOMPLETE
    assert result.headline == []
    assert result.metrics["soft_tifa_am"].value == pytest.approx(75)
    _, result = evaluate(geneval2, made, official=True)
    assert result.headline == ["soft_tifa_gm_official"]
    assert result.metrics["soft_tifa_gm_official"].value is None
    assert {path.name for path in CELL.official.iterdir()} == {"image_filepaths.json"}
    assert [*json.loads((CELL.official / "image_filepaths.json").read_text())] == [P1.text]


def test_the_whole_benchmark_leaves_the_official_files(official: GenEval2) -> None:
    made = items(official)
    run = scores_of(official, made, anything)
    found = official.metrics(run)
    assert found["soft_tifa_gm_official"] == found["soft_tifa_gm"]
    lists: dict[str, Any] = {
        name: json.loads(text) for name, text in official.official_files(run).items() if text
    }
    by_line = sorted(made, key=lambda item: item.data["index"])
    assert [*lists["image_filepaths.json"]] == [item.prompt for item in by_line]
    for name in ("soft_tifa", "tifa"):
        lengths = [len(scores) for scores in lists[f"score_lists_{name}.json"]]
        assert lengths == [len(item.data["vqa_list"]) for item in by_line]
    assert {score for scores in lists["score_lists_tifa.json"] for score in scores} == {0, 1}
    assert {len(scores) for scores in lists["score_lists_vqascore.json"]} == {1}
    assert found["soft_tifa_gm"].value == pytest.approx(
        100 * sum(map(geometric_mean, lists["score_lists_soft_tifa.json"])) / 800, rel=1e-12
    )


# ---- the analysis of score lists -----------------------------------------------------------------------------

DATA = [
    {"prompt": "a", "atom_count": 3, "skills": ["count", "attribute", "object"]},
    {"prompt": "b", "atom_count": 4, "skills": ["count", "object", "position", "verb"]},
]
LISTS = [[0.25, 1, 1], [0.9, 0.8, 0.95, 0.5]]
# as the official soft_tifa_analysis.py prints it, which has no word for atomicities that do not occur
ANALYSIS = """\
Per Atom Type Analysis (Soft-TIFA AM)
Object:
90.0
Attribute:
100.0
Count:
57.5
Position:
95.0
Verb:
50.0

Per Atomicity Analysis (Soft-TIFA GM)
Results for Atomicity=3
63.0
Results for Atomicity=4
76.47
"""


def test_analysis_of_score_lists_made_elsewhere() -> None:
    printed = analysis(LISTS, DATA)
    assert printed.startswith(ANALYSIS)
    *_, dash, _, total, am, gm = printed.splitlines()
    assert (dash, total) == ("–", "Total over 2 prompts")
    assert float(am.removeprefix("AM: ")) == pytest.approx(76.875)
    assert float(gm.removeprefix("GM: ")) == pytest.approx(69.7343853, abs=5e-8)


@pytest.mark.parametrize(
    ("lists", "says"),
    [
        ([[0.5], [math.nan]], "a score is a number that is not"),
        (LISTS[:1], "it has scores of 1 prompts, but there are 2"),
        ([[0.5], [0.25]], "one score per prompt, as from VQAScore"),
    ],
)
def test_score_lists_that_are_none_of_these_prompts(lists: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        analysis(lists, DATA)


# ---- the data ------------------------------------------------------------------------------------------------


@pytest.fixture
def official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GenEval2:
    """On the real data."""
    use_official_data("geneval2", tmp_path, monkeypatch)
    return GenEval2()


def test_images_are_named_after_the_line_of_the_data_file(official: GenEval2) -> None:
    made = items(official)
    lines = (official.data / "geneval2_data.jsonl").read_text(encoding="utf-8").splitlines()
    for item in made:
        assert item.path.name == f"{item.data['index']:03d}.png"
        assert f'"prompt": "{item.prompt}"' in lines[item.data["index"]]
    assert sorted(item.data["index"] for item in made) == [*range(800)]
    assert {item.seed for item in made} == {42}


@pytest.mark.parametrize(
    ("damage", "says"), [("", "holds 799 records, not 800"), ('{"prompt": "cut', "is invalid")]
)
def test_a_damaged_data_file_is_one_line(official: GenEval2, damage: str, says: str) -> None:
    path = official.data / "geneval2_data.jsonl"
    kept = path.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]
    path.write_text("".join(kept) + damage, encoding="utf-8")
    with pytest.raises(CellFailure) as caught:
        items(official)
    message = str(caught.value)
    assert f"{path} {says}" in message and "\n" not in message
