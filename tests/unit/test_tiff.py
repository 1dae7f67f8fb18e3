"""TIIF-Bench: what is asked, how replies are read, the tables; beside the authors' published judgements."""

from __future__ import annotations

import itertools
import json
import operator
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.tiff.benchmark import GROUPS, TYPES, Tiff, TiffSettings
from imageevalkit.benchmark.contract import Answers, ScoredItem, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, Question, ask
from imageevalkit.common.images import sha256_file
from imageevalkit.extras.adopt.sources import find_images
from imageevalkit.judges.api import read_reply
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from imageevalkit.store.results import Metric
from tests.support.function_judge import evaluate, items, use_function_judge, write_images
from tests.support.mirror import KIT, official_folder, official_source, use_official_data
from tests.support.official_programs import ClientOfOpenAI, request_to, run_program

_EVAL = "benchmarks/TIIF-Bench/eval"
_AUTHORS = ("A113N-W3I/TIIF-Bench", "3aae7504d2546516eaec2fea82fde9ae445dfea3")

# right answers and questions of the published judgements of sd35, testmini, by type: short; long
_PUBLISHED = """
2d_spatial_relation 21/24 23/24
3d_spatial_relation 18/24 19/24
action+2d 28/36 29/36
action+3d 33/39 31/39
action+color 22/26 21/26
action+texture 23/29 22/29
color+2d 19/20 19/20
color+3d 13/20 14/20
color+texture 22/25 19/25
comparison 19/24 23/24
comparison+2d 10/16 12/16
comparison+3d 8/16 7/16
comparison+color 18/21 14/21
comparison+texture 8/20 9/20
differentiation 21/25 18/25
differentiation+2d 10/16 7/16
differentiation+3d 8/17 10/17
differentiation+color 17/21 17/21
differentiation+texture 8/20 13/20
negation 14/24 17/24
negation+2d 10/16 12/16
negation+3d 11/17 12/17
negation+color 12/18 10/18
negation+texture 12/18 12/18
numeracy 34/48 28/48
numeracy+2d 18/27 16/27
numeracy+3d 22/32 22/32
numeracy+color 32/40 26/40
numeracy+texture 33/44 23/44
real_world 174/268 179/268
shape+2d 9/20 11/20
shape+3d 14/20 12/20
shape+color 36/50 39/50
shape+texture 32/50 33/50
style 22/30 19/30
text 157/221 95/221
texture+2d 18/21 15/21
texture+3d 12/18 16/18
texture+color 24/25 22/25
"""


def scored(benchmark: Tiff, kind: str, wording: str, right: int, count: int, n: int = 0) -> ScoredItem:
    """An image about which ``right`` of ``count`` questions were answered as expected."""
    questions = [f"{kind} {number}?" for number in range(count)]
    data = {"type": kind, "wording": wording, "row": n, "questions": questions, "expected": ["yes"] * count}
    id = f"{kind}_prompts/{wording}_description/{n}"
    item = Item(id, Cell("m", "tiff").folder / f"{id}.png", 42, "a prompt", None, data)
    said = ["yes"] * right + ["no"] * (count - right)
    answer = Answer(ask("questions", "?"), "\n".join(said), value=said)
    answers = Answers({"questions": answer})
    return ScoredItem(
        item, item.path, answers, {"questions": answer.text or ""}, benchmark.score(item, answers).of_item(id)
    )


def published(benchmark: Tiff) -> Scores:
    rows = [line.split() for line in _PUBLISHED.split("\n") if line]
    return Scores(
        [
            scored(benchmark, kind, wording, *map(int, cell.split("/")))
            for kind, *cells in rows
            for wording, cell in zip(("short", "long"), cells, strict=True)
        ]
    )


def shown(metrics: dict[str, Metric], names: Sequence[str]) -> list[str]:
    return [f"{metrics[name].value:.4f}" for name in names]


def test_published_judgements_give_the_published_table() -> None:
    metrics = Tiff().metrics(published(Tiff()))
    names = [*GROUPS, "basic", "advanced"]
    assert len(TYPES) == 39
    published_means = {
        "short": "0.8000 0.8123 0.7308 0.7391 0.6687 0.6059 0.7104 0.7333 0.6493 0.7810 0.6751",
        "long": "0.7700 0.8376 0.7425 0.7462 0.6214 0.6186 0.4299 0.6333 0.6679 0.7834 0.6520",
    }
    for wording, means in published_means.items():
        assert " ".join(shown(metrics, [f"{wording}/{name}" for name in names])) == means
    assert shown(metrics, ["short", "long", "mean_accuracy"]) == ["0.7166", "0.6742", "0.7000"]


def question(count: int) -> Question:
    return ask("questions", "?", data=count)


def test_replies_are_read_as_the_official_function_reads_them() -> None:
    source = official_source(*KIT, f"{_EVAL}/eval_with_vlm.py")
    begin, end = source.index("class OutputFormatError"), source.index("def main(")
    space: dict[str, Any] = {"re": re}
    exec(compile(source[begin:end], "official", "exec"), space)
    read = 0
    replies = (
        "yes",
        "YES,\nnope",
        "1. yes\n no.",
        "**Yes**\nno",
        "No\n\nyes",
        "yes\tno",
        "yes\r\nno",
        "noé\nyes",
        "because: yes",
        "",
    )
    for reply, count in itertools.product(replies, (1, 2)):
        try:
            theirs = space["extract_yes_no"](reply, ["?"] * count)
        except space["OutputFormatError"]:
            theirs = None
        try:
            ours = Tiff().parse(question(count), Answer(question(count), reply))
        except Unparsed:
            ours = None
        assert ours == theirs, repr(reply)
        read += ours is not None
    assert 5 < read < 15


def test_the_template_is_drawn_by_item_and_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_official_data("tiff", tmp_path, monkeypatch)
    benchmark = Tiff()
    made = items(benchmark)
    assert len(made) == 554

    def drawn(item: Item, attempt: int = 0) -> str:
        answers = Answers({}, {"questions": attempt})
        [one] = benchmark.questions(item, Picture(item.path, "ab" * 32), answers)
        return one.variant

    # the same draw whenever it is asked for, another with the attempt and the item
    assert drawn(made[0]) == drawn(made[0])
    names = {"raw_prompt", "raw_prompt_1", "raw_prompt_2"}
    assert {drawn(made[0], n) for n in range(20)} == {drawn(one) for one in made[:20]} == names


@pytest.mark.parametrize(("rules", "counts"), [("official", True), ("corrected", False)])
def test_officially_the_content_counts_whatever_else_a_reply_says(rules: Any, counts: bool) -> None:
    """The official program asks again after an empty reply, too: no answers can be read in it."""
    benchmark = Tiff(TiffSettings(rules=rules))
    vars(benchmark)["prompts"] = defaultdict(str)
    data = {"questions": ["Is it red?"], "expected": ["yes"]}
    item = Item("1", Path("1.png"), 42, "a cat", None, data)
    [asked] = benchmark.questions(item, Picture(item.path, "ab" * 32), Answers({}))
    for content, finish in (("yes", "content_filter"), ("", "length"), (None, "length")):
        choice = {"message": {"content": content}, "finish_reason": finish}
        reply = read_reply(asked, json.dumps({"choices": [choice]}).encode(), 0, None)
        assert isinstance(reply, Answer) == counts, (content, finish)


def test_the_official_program_asks_the_same_and_writes_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_official_data("tiff", tmp_path, monkeypatch)
    benchmark = Tiff()
    made = items(benchmark, 100)
    write_images(made)

    def said(questions: Sequence[str]) -> str:
        return "\n\n".join(
            f"{random.Random(one).choice(['Yes', 'no'])}, {n}" for n, one in enumerate(questions)
        )

    replies = {"\n".join(q.strip() for q in one.data["questions"]): one.data["questions"] for one in made}

    def reply(request: dict[str, Any]) -> str:
        text = request["messages"][1]["content"][0]["text"]
        return said(next(questions for joined, questions in replies.items() if f"\n{joined}\n" in text))

    client = ClientOfOpenAI(reply)
    program = run_program(*KIT, f"{_EVAL}/eval_with_vlm.py", monkeypatch, openai=client.module)
    wordings = {}
    for item in made:
        [question] = benchmark.questions(item, Picture(item.path, sha256_file(item.path)), Answers({}))
        n = ("raw_prompt", "raw_prompt_1", "raw_prompt_2").index(question.variant)
        program["random"] = SimpleNamespace(choice=operator.itemgetter(n))
        text = program["format_questions_prompt"](program["raw_prompt"], item.data["questions"])
        program["generate_with_prompt"](text, item.path, client, model="gpt-5")
        assert request_to("gpt-5", question) == client.asked[-1]
        wordings[item.id] = question.text
    assert len({*wordings.values()}) > 50

    program["random"] = random
    folder = made[0].path.parents[2]
    arguments = {
        "jsonl_dir": str(benchmark.data / "testmini_eval_prompts"),
        "image_dir": str(folder),
        "eval_model": "m",
        "output_dir": str(tmp_path / "results"),
        "sample_idx_file": None,
        "postfix": "_prompts",
        "model": "gpt-5",
        "api_key": "",
        "base_url": "",
    }
    program["main"](SimpleNamespace(**arguments))
    use_function_judge(lambda question: said(replies[_questions_in(question.text, replies)]), monkeypatch)
    assert evaluate(benchmark, made, limit=100)[0].state == "complete"
    theirs = files_below(tmp_path / "results/m")
    assert files_below(folder / "official") == theirs and len(theirs) == 100


def _questions_in(text: str, known: Iterable[str]) -> str:
    return next(joined for joined in known if f"\n{joined}\n" in text)


def files_below(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(("model", "short", "long", "of_types"), [("sd35", "0.7166", "0.6742", "0.7000")])
def test_the_authors_published_replies_give_their_table(
    model: str, short: str, long: str, of_types: str
) -> None:
    folder = f"eval-results/testmini_subset_eval_results/testmini_subset_eval_results_GPT-4o/{model}"
    judged = {name: json.loads(text) for name, text in official_folder(*_AUTHORS, folder).items()}
    benchmark, found = Tiff(), []
    for name, record in judged.items():
        kind, wording, _ = name.split("/")
        rows = {"row": record["line_idx"], "questions": record["questions"], "expected": record["gt_answers"]}
        data = {"type": kind, "wording": wording, **rows}
        item = Item(name, Cell("m", "tiff").folder / f"{name}.png", 42, "a prompt", None, data)
        asked = question(len(record["questions"]))
        answer = Answer(asked, record["model_output"])
        value = benchmark.parse(asked, answer)
        assert value == record["model_pred"]
        answers = Answers({"questions": replace(answer, value=value)})
        score = benchmark.score(item, answers).of_item(item.id)
        found.append(ScoredItem(item, item.path, answers, {"questions": record["model_output"]}, score))
    scores = Scores(found)
    metrics = benchmark.metrics(scores)
    assert shown(metrics, ["short", "long", "mean_accuracy"]) == [short, long, of_types]
    files = benchmark.official_files(scores)
    assert {name: json.loads(text) for name, text in files.items()} == judged


def test_corrected_rules_ask_in_the_same_words_without_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_official_data("tiff", tmp_path, monkeypatch)
    for judge, temperature in (("openai:gpt-4o", 0.0), ("openai:gpt-5", 1.0)):  # gpt-5 takes no other
        benchmark = Tiff(TiffSettings(rules="corrected"), judge)
        asked = [
            question
            for item in items(benchmark, 20)
            for question in benchmark.questions(item, Picture(item.path, "ab" * 32), Answers({}))
        ]
        assert {(one.variant, one.sampling.temperature) for one in asked} == {("raw_prompt", temperature)}
        assert {one.pictures[0].media_type for one in asked} == {None}  # what the file is


@pytest.mark.parametrize("layout", ["{type}_prompts/{wording}_description", "{type}/m/{wording}_description"])
def test_images_made_elsewhere_are_found_in_both_layouts(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_official_data("tiff", tmp_path, monkeypatch)
    benchmark = Tiff()
    made, source = items(benchmark, 30), tmp_path / "made"
    expected = {}
    for item in made:
        expected[item.id] = source / layout.format(**item.data) / f"{item.data['row']}.webp"
        expected[item.id].parent.mkdir(parents=True, exist_ok=True)
        expected[item.id].write_bytes(b"")
    found = find_images(source, made, [], benchmark.find_images)
    assert {id: place.path for id, place in found.items()} == expected


def test_both_splits_have_all_prompts_and_never_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_official_data("tiff", tmp_path, monkeypatch)
    mini, whole = items(Tiff()), items(Tiff(TiffSettings(split="test")))
    assert (len(mini), len(whole)) == (554, 5076)
    assert sum(len(one.data["questions"]) for one in mini) == 2892
    assert not {one.id for one in mini} & {one.id for one in whole}
    assert {one.seed for one in mini} == {42}
    one = Tiff(TiffSettings(wording="long"))
    assert len(items(one)) == 277
    assert "mean_accuracy" not in one.metrics(Scores([scored(one, "style", "long", 1, 2)]))
