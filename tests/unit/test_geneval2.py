"""GenEval 2: what is asked, what a reply is worth, the metrics, the official files, their analysis, and the data."""

from __future__ import annotations

import json
import math
import random
import sys
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.geneval2.analyse import analysis, main
from benchmarks.geneval2.benchmark import SKILLS, GenEval2, accepted
from imageevalkit import assets
from imageevalkit.benchmark.contract import Answers, Scores, Unparsed
from imageevalkit.benchmark.question import TRANSFORMERS, Answer, Picture, Question, Sampling
from imageevalkit.common.errors import CellFailure, UserError
from imageevalkit.jobs.plan import COMPLETE, INCOMPLETE
from imageevalkit.metrics import geometric_mean
from imageevalkit.store.cell import REPO, Cell
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


def test_braces_in_a_prompt_change_nothing(geneval2: GenEval2) -> None:
    assert questions_of(geneval2, P1._replace(text="{} {0}"))[-1].text == "Is this '{} {0}'?"


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
        ("seven", True),
        ("SEVEN", True),
        (" Seven", True),
        (" 7", True),
        (" ", False),  # quirk 3: the bare space, though its probability counts
        ("", False),
        ("7 ", False),
        ("\tseven", False),
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


@pytest.mark.parametrize(
    "probabilities",
    [None, {}, {k: v for k, v in COUNT.items() if k != "7"}, {**COUNT, "7": math.nan}],
)
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


def test_a_subset_lists_only_what_occurs_and_has_no_official_score(geneval2: GenEval2) -> None:
    found = metrics_of(geneval2, [P1], as_in_the_spec)
    groups = {name for name in found if "/" in name}
    assert groups == {"skill/count", "skill/attribute", "skill/object", "atomicity/3"}
    for method in ("soft_tifa_gm", "soft_tifa_am", "tifa", "vqascore"):
        assert found[method].value is not None
        assert found[f"{method}_official"].value is None
    assert all(metric.scale == 100 for metric in found.values())


def test_without_scores_the_headline_is_there_and_empty(geneval2: GenEval2) -> None:
    found = geneval2.metrics(Scores([]))
    assert found["soft_tifa_gm"].value is None
    assert found["soft_tifa_gm_official"].value is None
    assert not [name for name in found if "/" in name]


def many(count: int) -> list[Prompt]:
    rng = random.Random(5)
    prompts = []
    for line in range(count):
        atoms = [(f"Is it {n}?", "Yes", rng.choice(SKILLS)) for n in range(rng.randrange(3, 12))]
        prompts.append(Prompt(f"prompt {line}", 3 + line * 8 // count, atoms))
    return prompts


def anything(question: Question) -> Answer:
    """Each question's own number, the same in every run; one in 16 is an exact zero."""
    number = zlib.crc32(f"{question.item} {question.text}".encode()) % 4096
    return soft(question, number / 4096 if number >= 256 else 0.0, "yes" if number % 2 else "no")


def test_a_full_run_has_the_official_scores(geneval2: GenEval2) -> None:
    run = scores_of(geneval2, items_of(many(800)), anything)
    found = geneval2.metrics(run)
    for method in ("soft_tifa_gm", "soft_tifa_am", "tifa", "vqascore"):
        assert found[f"{method}_official"] == found[method]
        assert found[method].n == 800
    assert [found[f"atomicity/{k}"].n for k in range(3, 11)] == [100] * 8
    assert geneval2.metrics(Scores(run.items[1:]))["soft_tifa_gm_official"].value is None


def test_the_order_of_the_images_changes_no_digit(geneval2: GenEval2) -> None:
    run = scores_of(geneval2, items_of(many(80)), anything)
    shuffled = Scores(random.Random(1).sample(run.items, 80))
    assert geneval2.metrics(shuffled) == geneval2.metrics(run)


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


def test_a_backend_that_sees_everything_leaves_nothing_to_tell(geneval2: GenEval2) -> None:
    run = scores_of(geneval2, items_of([P1, P2]), as_in_the_spec)
    names = geneval2.metrics(run)
    assert not [name for name in names if name.startswith("outside") or name.endswith("_upper")]
    assert not geneval2.notes(run)


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


def test_a_token_that_begins_two_answers_counts_twice_and_the_cell_has_a_result(
    geneval2: GenEval2, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice(question: Question) -> Answer:
        shared = dict.fromkeys(question.choices, 0.0) | dict.fromkeys(question.choices[:2], 0.9)
        return Answer(question, question.choices[0], probabilities=shared, outside=0.0)

    use_function_judge(twice, monkeypatch)
    made = items_of([P1, P2])
    write_images(made)
    outcome, result = evaluate(geneval2, made)
    assert outcome.state == COMPLETE
    for name in ("soft_tifa_gm", "soft_tifa_am_corrected", "vqascore", "skill/count", "atomicity/3"):
        assert result.metrics[name].value == pytest.approx(180)


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


def test_an_atom_without_reply_is_an_unjudged_item_not_a_zero(
    geneval2: GenEval2, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent_once(question: Question) -> Answer | None:
        lost = (question.item, question.name) == ("images/001", "vqa/2")
        return None if lost else as_in_the_spec(question)

    made = items_of([P1, P2])
    write_images(made)
    use_function_judge(silent_once, monkeypatch)
    _, result = evaluate(geneval2, made)
    assert (result.coverage.judged, result.coverage.judge_failed) == (1, 1)
    assert result.metrics["soft_tifa_am"].value == pytest.approx(75)
    asked = use_function_judge(as_in_the_spec, monkeypatch)
    _, result = evaluate(geneval2, made)
    assert [(q.item, q.name) for q in asked] == [("images/001", "vqa/2")]
    assert result.metrics["soft_tifa_am"].value == pytest.approx(76.875)


def test_the_whole_benchmark_leaves_the_official_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_official_data("geneval2", tmp_path / "benchmarks", monkeypatch)
    asked = use_function_judge(anything, monkeypatch)
    made = items(GenEval2())
    write_images(made)
    outcome, result = evaluate(GenEval2(), made)
    assert outcome.state == COMPLETE
    assert len(asked) == 6012 + 800
    assert result.metrics["soft_tifa_gm_official"] == result.metrics["soft_tifa_gm"]
    assert set(result.provenance["data_sha256"]) >= {"geneval2_data.jsonl", "evaluation.py::soft_tifa"}

    lists: dict[str, Any] = {path.name: json.loads(path.read_text()) for path in CELL.official.iterdir()}
    by_line = sorted(made, key=lambda item: item.data["index"])
    images = lists["image_filepaths.json"]
    assert [(prompt, Path(path)) for prompt, path in images.items()] == [(i.prompt, i.path) for i in by_line]
    for name in ("soft_tifa", "tifa"):
        scores = lists[f"score_lists_{name}.json"]
        assert [len(s) for s in scores] == [len(item.data["vqa_list"]) for item in by_line]
    soft_tifa = lists["score_lists_soft_tifa.json"]
    questions = {(question.item, question.name): question for question in asked}
    for item, scores in zip(by_line, soft_tifa, strict=True):
        expected = [anything(questions[item.id, f"vqa/{n}"]).probabilities for n in range(len(scores))]
        assert scores == [sum((p or {}).values()) for p in expected]
    assert {score for scores in lists["score_lists_tifa.json"] for score in scores} == {0, 1}
    assert {len(scores) for scores in lists["score_lists_vqascore.json"]} == {1}
    assert result.metrics["soft_tifa_gm"].value == pytest.approx(
        100 * sum(map(geometric_mean, soft_tifa)) / 800, rel=1e-12
    )


def test_images_of_the_repository_are_named_from_its_root(
    geneval2: GenEval2, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGEEVALKIT_OUTPUT", str(REPO / "output"))
    made = [
        Item(item.id, Cell("m", "geneval2").folder / f"{item.id}.png", 42, item.prompt, None, item.data)
        for item in items_of([P1, P2._replace(text="two “cats”")])
    ]
    files = geneval2.official_files(scores_of(geneval2, made, as_in_the_spec))
    assert json.loads(files["image_filepaths.json"]) == {
        P1.text: "output/m/geneval2/images/000.png",
        "two “cats”": "output/m/geneval2/images/001.png",
    }


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
        ({}, "it is no JSON list with a list of scores"),
        ([1], "it is no JSON list with a list of scores"),
        ([[]], "it is no JSON list with a list of scores"),
        ([[0.5], [math.nan]], "a score is a number that is not"),
        ([[0.5], [-0.1]], "a score is a number that is not"),
        ([[0.5], [True]], "a score is a number that is not"),
        ([[0.5], ["0.5"]], "a score is a number that is not"),
        (LISTS[:1], "it has scores of 1 prompts, but there are 2"),
        ([], "it has scores of 0 prompts, but there are 2"),
        ([LISTS[1], LISTS[0]], "prompt 0 has 4 scores, but 3 atoms"),
        ([[0.5], [0.25]], "one score per prompt, as from VQAScore"),
    ],
)
def test_score_lists_that_are_none_of_these_prompts(lists: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        analysis(lists, DATA)


def test_a_file_that_holds_no_score_lists_is_one_line(
    official: GenEval2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lists.json"
    monkeypatch.setattr(sys, "argv", ["analyse", "--score_data", str(path)])
    for text, says in ((None, "cannot be read"), ("{", "Expecting"), ("[[1]]", "scores of 1 prompts")):
        if text:
            path.write_text(text)
        with pytest.raises(UserError, match=rf"lists\.json.* {says}") as caught:
            main()
        assert "\n" not in str(caught.value)


# ---- the data ------------------------------------------------------------------------------------------------

# atomicity: atoms by skill (count, object, attribute, position, verb), as the specification counts
ATOMS = {
    3: (142, 142, 77, 5, 1),
    4: (205, 205, 83, 42, 4),
    5: (225, 225, 115, 47, 9),
    6: (261, 261, 128, 85, 4),
    7: (292, 292, 142, 84, 12),
    8: (300, 300, 178, 107, 17),
    9: (300, 300, 227, 141, 15),
    10: (300, 300, 264, 151, 24),
}


@pytest.fixture
def official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GenEval2:
    """On the real data."""
    use_official_data("geneval2", tmp_path, monkeypatch)
    return GenEval2()


def test_facts_of_the_spec(official: GenEval2) -> None:
    entries = [item.data for item in items(official)]
    assert len({item.prompt for item in items(official)}) == 800
    lengths = Counter(len(entry["vqa_list"]) for entry in entries)
    assert lengths == {3: 59, 4: 21, 5: 101, 6: 105, 7: 75, 8: 113, 9: 128, 10: 143, 11: 55}
    surplus = Counter(len(entry["vqa_list"]) - entry["atom_count"] for entry in entries)
    assert surplus == {0: 246, 1: 330, 2: 190, 3: 34}
    for atomicity, expected in ATOMS.items():
        skills = Counter(s for entry in entries if entry["atom_count"] == atomicity for s in entry["skills"])
        names = ("count", "object", "attribute", "position", "verb")
        assert tuple(skills[name] for name in names) == expected
    answers = Counter(answer for entry in entries for _, answer in entry["vqa_list"])
    counts = {"one": 812, "two": 179, "three": 237, "four": 204, "five": 205, "six": 204, "seven": 184}
    assert answers == {"Yes": 3987, **counts}
    for entry in entries:
        questions = [question for question, _ in entry["vqa_list"]]
        assert len(set(questions)) == len(questions) == len(entry["skills"])
        for question, skill in zip(questions, entry["skills"], strict=True):
            assert question.startswith("How many") == (skill == "count")
    assert not any(set('{}"') & set(item.prompt or "") for item in items(official))
    prompts = official.prompts
    assert prompts["evaluation.py::soft_tifa"] == prompts["evaluation.py::tifa"]
    assert all(text.count("{}") == 1 for text in prompts.values())


def test_images_are_named_after_the_line_of_the_data_file(official: GenEval2) -> None:
    made = items(official)
    lines = (official.data / "geneval2_data.jsonl").read_text(encoding="utf-8").splitlines()
    for item in made:
        assert item.path.name == f"{item.data['index']:03d}.png"
        assert f'"prompt": "{item.prompt}"' in lines[item.data["index"]]
    assert sorted(item.data["index"] for item in made) == [*range(800)]
    assert {item.seed for item in made} == {42}


def test_the_first_items_cover_every_atomicity(official: GenEval2) -> None:
    made = items(official)
    for limit in (8, 16, 50, 100):
        counts = Counter(item.data["atom_count"] for item in made[:limit])
        assert set(counts) == {*range(3, 11)}
        assert max(counts.values()) - min(counts.values()) <= 1
    assert [item.data["index"] for item in made[:9]] == [0, 100, 200, 300, 400, 500, 600, 700, 1]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (None, "cannot be read"),
        ("", "holds 799 records, not 800"),
        ('{"prompt": "cut', "is invalid"),
    ],
)
def test_a_damaged_data_file_is_one_line(official: GenEval2, damage: str | None, says: str) -> None:
    path = official.data / "geneval2_data.jsonl"
    kept = path.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]
    path.unlink() if damage is None else path.write_text("".join(kept) + damage, encoding="utf-8")
    with pytest.raises(CellFailure) as caught:
        items(official)
    message = str(caught.value)
    assert f"{path} {says}" in message and "\n" not in message
