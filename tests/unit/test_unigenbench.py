"""UniGenBench: the words of a question, the lists in a reply, the scores; beside the official program."""

from __future__ import annotations

import base64
import csv
import itertools
import json
import math
import random
import re
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.unigenbench.benchmark import UniGenBench, UniGenBenchLong, UniGenBenchSettings
from imageevalkit.benchmark.contract import Answers, ScoredItem, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, Question, ask
from imageevalkit.common.images import sha256_file
from imageevalkit.evaluate.scoring import evaluate_cell
from imageevalkit.extras.adopt.sources import find_images
from imageevalkit.jobs.plan import EvaluateOrder
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.judges.api import read_reply
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from imageevalkit.store.results import read_result
from tests.support.function_judge import evaluate, items, use_function_judge, write_images
from tests.support.mirror import KIT, use_official_data
from tests.support.official_programs import ClientOfOpenAI, request_to, run_program

_EVAL = "benchmarks/UniGenBench/eval"
ROW_0 = ["Style", "World Knowledge", "Attribute - Quantity"]
ROW_X = ["Attribute - Color", "Text Generation"]


def reply(scores: Any) -> str:
    analysis = ["seen"] * len(scores)
    return f"<description><analysis>{analysis}</analysis>\n<score>{scores}</score></description>"


def question(count: int) -> Question:
    return ask("points", "?", data=count)


def scored(benchmark: UniGenBench, images: list[tuple[list[str], str]], first: int = 0) -> Scores:
    """Of images with such test points and replies, four to a prompt; ``first`` is the number of the first one."""
    found = []
    for n, (names, text) in enumerate(images, first):
        id = f"test_prompts_en/samples/{n // 4}_{n % 4}"
        data = {"language": "en", "index": n // 4, "theme": "Art", "points": names, "descriptions": names}
        item = Item(id, Cell("m", "unigenbench").folder / f"{id}.png", 3449, "two pandas", None, data)
        answers, score = Answers({}), None
        try:
            asked = question(len(names))
            answer = Answer(asked, text, value=benchmark.parse(asked, Answer(asked, text)))
            answers = Answers({"points": answer})
            score = benchmark.score(item, answers).of_item(id)
        except Unparsed:
            pass
        found.append(ScoredItem(item, item.path, answers, {"points": text}, score))
    return Scores(found)


IMAGES = [
    (ROW_0, reply([1, 1, 0])),
    (ROW_0, reply([1, 0, 0])),
    (ROW_0, reply([1, 1, 1])),
    (ROW_0, "I cannot see it."),
    (ROW_X, reply([1, 0])),
    (ROW_X, reply([1, 1])),
    (ROW_X, reply([0, 0])),
    (ROW_X, reply([1, 0])),
]


def test_points_are_pooled_over_images() -> None:
    benchmark = UniGenBench(UniGenBenchSettings(language="en"))
    metrics = benchmark.metrics(scored(benchmark, IMAGES))
    shown = {name: f"{metric.value:.2f}" for name, metric in metrics.items() if metric.value is not None}
    assert shown == {
        "en": "62.20",
        "en/Style": "100.00",
        "en/World Knowledge": "66.67",
        "en/Attribute": "57.14",
        "en/Text Generation": "25.00",
        "en/Attribute - Quantity": "33.33",
        "en/Attribute - Color": "75.00",
    }
    assert metrics["en_official"].value is None  # of so few images
    assert benchmark.metrics(scored(benchmark, []))["en"].value is None


class AskedAgain(BaseException):
    """An exception that no official program catches."""


def test_replies_are_read_as_the_official_programs_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    analyses = [
        "['seen']",
        "['null, {x}']",
        "['两只\\n']",
        r"['\ud83d']",
        "('a')",
        "[None]",
        "[no]",
        "['a', 'b']",
    ]
    scores = ["1", "0", "0.5", "'1'", "True", "None", "[1]", "1e999", "{1}", "2", "x", "b'1'", "1,0"]
    lists = [*itertools.product(analyses, ["[1]", "(0)"]), *(("['seen']", f"[{score}]") for score in scores)]
    lists.append(("['a', 'b']", "[1, 0]"))
    texts = [f"<analysis>{one}</analysis>so: <score> {other}\n</score>" for one, other in lists]
    texts += [texts[0].replace(part, "<score>") for part in ("</score>", "<analysis>")]
    replies = [*itertools.product(texts, (1, 2))]

    said: list[str] = []

    def reply(request: Any) -> str:
        if not said:
            raise AskedAgain
        return said.pop()

    modules: dict[str, Any] = {"openai": ClientOfOpenAI(reply).module, "pandas": SimpleNamespace()}
    judge = run_program(*KIT, f"{_EVAL}/gemini_en_eval.py", monkeypatch, **modules)
    judge["local_image_to_data_url"] = lambda path: ""
    rows, accepted = [], set[int]()
    for n, (text, count) in enumerate(replies):
        said.append(text)
        stored: Any = math.nan  # what pandas reads in place of "null"
        with suppress(AskedAgain, TypeError):  # TypeError: of bytes; it ends the official program
            args = (0, "a cat", ROW_0[:count], ROW_0, "", "0_0.png", "", "")
            found = judge["call_evaluation"](args)["result_json"]
            accepted.add(n)
            stored = json.dumps(found, ensure_ascii=False, indent=4)
        rows.append({"testpoint": str([f"{n} {k}" for k in range(count)]), "result_json": stored})
    table = SimpleNamespace(read_csv=lambda path: SimpleNamespace(iterrows=lambda: enumerate(rows)))
    counts = run_program(*KIT, f"{_EVAL}/calculate_score.py", monkeypatch, pandas=table)["small_class_stats"]

    benchmark, read = UniGenBench(), 0
    for n, (text, count) in enumerate(replies):
        asked = question(count)
        try:
            ours = [[int(x == 1), 1] for x in benchmark.parse(asked, Answer(asked, text))["score"]]
        except Unparsed as error:
            ours = []
            assert error.final == (n in accepted), text
        assert ours == [counts[f"{n} {k}"] for k in range(count) if f"{n} {k}" in counts], text
        read += bool(ours)
    assert 10 < read < len(replies) / 2


def test_no_reply_is_asked_for_after_one_that_the_official_program_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stores these lists and cannot read them again: the image has no score, unless the user asks again."""
    use_official_data("unigenbench", tmp_path, monkeypatch)
    benchmark = UniGenBench(UniGenBenchSettings(language="en"))
    values = ["1", "True", "None", "1e999", "b'1'", "dict", "text"]
    made = items(benchmark, len(values))
    write_images(made)
    first = {}
    for item, value in zip(made, values, strict=True):
        count = len(item.data["points"])
        scores = {"dict": str(dict.fromkeys(range(count), 1)), "text": f"'{'1' * count}'"}
        shown = scores.get(value, f"[{', '.join([value] * count)}]")
        first[item.id] = f"<analysis>{['seen'] * count}</analysis><score>{shown}</score>"

    def say(asked: Question) -> str:
        [item] = [one for one in made if one.id == asked.item]
        return first.pop(item.id, reply([1] * len(item.data["points"])))

    asked, found = use_function_judge(say, monkeypatch), []
    for retry in (False, False, True, False):
        order = EvaluateOrder(retry_unparsed=retry)
        evaluate_cell(Cell("m", benchmark.name), benchmark, made, ProgressWriter(), order)
        coverage = read_result(Cell("m", benchmark.name).result).coverage
        found.append((len(asked), coverage.judged, coverage.unparsed))
    assert found == [(7, 1, 6), (7, 1, 6), (13, 7, 0), (13, 7, 0)]


@pytest.mark.parametrize(("content", "finish"), [("", "length"), (None, "content_filter")])
def test_a_reply_without_content_is_asked_for_again(
    content: str | None, finish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = UniGenBench(UniGenBenchSettings(language="en"))
    asked = question_of(benchmark)
    choice = {"message": {"content": content, "refusal": "No."}, "finish_reason": finish}
    answer = read_reply(asked, json.dumps({"choices": [choice]}).encode(), 0, None)
    assert isinstance(answer, Answer)
    with pytest.raises(Unparsed) as error:
        benchmark.parse(asked, answer)
    assert not error.value.final and benchmark.tries == 11

    client = ClientOfOpenAI(lambda request: content if len(client.asked) == 1 else reply([1]))
    modules: dict[str, Any] = {"openai": client.module, "pandas": SimpleNamespace()}
    program = run_program(*KIT, f"{_EVAL}/gemini_en_eval.py", monkeypatch, **modules)
    program["local_image_to_data_url"] = lambda path: ""
    row = program["call_evaluation"]((0, "a cat", ROW_0[:1], ROW_0, "", "0_0.png", "", ""))
    assert (len(client.asked), row["result_json"]["score"]) == (2, [1])


def test_a_reply_that_stops_the_official_program_leaves_no_official_score() -> None:
    benchmark = UniGenBench(UniGenBenchSettings(language="en"))
    others = scored(benchmark, [*IMAGES * 299, *IMAGES[:7]]).items
    stops = "<analysis>['', '']</analysis><score>[b'', b'']</score>"
    for text, is_counted in ((reply([1, 0]), True), (stops, False), ("\ud83d", False)):
        last = scored(benchmark, [(ROW_X, text)], len(others)).items
        metrics = benchmark.metrics(Scores([*others, *last]))
        assert (metrics["en_official"].value is not None) == is_counted, text
        assert metrics["en"].value is not None


def judged_row(language: str, item: Item) -> tuple[Any, ...]:
    """Returns the input of an official program for an image, without the judge's reply."""
    data = item.data
    return data["index"], item.prompt, data["points"], data["descriptions"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_question_is_the_official_one(
    language: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_official_data("unigenbench", tmp_path, monkeypatch)
    benchmark = UniGenBench(UniGenBenchSettings(language=language))
    made = items(benchmark)[::25]
    write_images(made)

    def refuse(request: Any) -> str:
        raise AskedAgain

    client = ClientOfOpenAI(refuse)
    modules: dict[str, Any] = {"openai": client.module, "pandas": SimpleNamespace()}
    program = run_program(*KIT, f"{_EVAL}/gemini_{language}_eval.py", monkeypatch, **modules)
    points = set()
    for item in made:
        points |= {*item.data["points"]}
        [asked] = benchmark.questions(item, Picture(item.path, sha256_file(item.path)), Answers({}))
        with pytest.raises(AskedAgain):
            program["call_evaluation"]((*judged_row(language, item), "", str(item.path), "", ""))
        assert request_to("gemini-2.5-pro", asked) == client.asked[-1]
    assert len(points) == 27


def test_the_authors_own_judge_is_shown_a_jpeg_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_official_data("unigenbench", tmp_path, monkeypatch)
    judge = "vllm:CodeGoat24/UniGenBench-EvalModel-qwen3vl-32b-v1"
    benchmark = UniGenBench(UniGenBenchSettings(language="en"), judge)
    assert benchmark.judge in benchmark.official
    [item] = items(benchmark, 1)
    write_images([item])
    [asked] = benchmark.questions(item, Picture(item.path, sha256_file(item.path)), Answers({}))
    ours = request_to("UnifiedReward", asked)

    told: list[Any] = []

    def evaluate_batch(payload: list[Any], url: str) -> list[Any]:
        told.extend(payload)
        raise AskedAgain

    modules: dict[str, Any] = {
        "vllm_request": SimpleNamespace(evaluate_batch=evaluate_batch),
        "pandas": SimpleNamespace(),
    }
    program = run_program(*KIT, f"{_EVAL}/offline_model_en_eval.py", monkeypatch, **modules)
    with pytest.raises(AskedAgain):
        program["call_evaluation"]((*judged_row("en", item), str(item.path), ""))
    client = run_program(*KIT, f"{_EVAL}/vllm_request.py", monkeypatch)["VLMessageClient"]("")
    assert ours["messages"] == client.build_messages(told[0])
    assert ours.keys() == {"model", "messages", "max_tokens"} and ours["max_tokens"] == 4096


def question_of(benchmark: UniGenBench) -> Question:
    """The question about an image with the test points ROW_X, without the official words."""
    names = (
        "explanation",
        "test_explanation",
        "system_prompt",
        *(f"explanation_dict[{one}]" for one in ROW_X),
    )
    vars(benchmark)["prompts"] = {f"{_EVAL}/gemini_en_eval.py::call_evaluation.{name}": "" for name in names}
    [one] = scored(benchmark, [(ROW_X, reply([1, 0]))]).items
    [asked] = benchmark.questions(one.item, Picture(one.item.path, "ab" * 32), Answers({}))
    return asked


def test_corrected_rules_leave_gemini_room_to_think() -> None:
    benchmark = UniGenBench(UniGenBenchSettings(language="en", rules="corrected"))
    assert question_of(benchmark).sampling.max_tokens == 16384
    for text in (reply([1, 0.5]), reply([1, "1"])):
        with pytest.raises(Unparsed, match="neither 0 nor 1"):
            benchmark.parse(question(2), Answer(question(2), text))


def test_the_official_program_writes_and_prints_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas")
    use_official_data("unigenbench", tmp_path, monkeypatch)
    benchmark = UniGenBench(UniGenBenchSettings(language="en"))
    made = [one for one in items(benchmark) if one.data["index"] < 3]
    made.sort(key=lambda one: one.id)
    write_images(made)
    pixels = {base64.b64encode(one.path.read_bytes()).decode(): one for one in made}

    def said(item: Item) -> str:
        draw = random.Random(item.id)
        if item.id.endswith("1_2"):
            return 'No, "never"'
        scores = [item.id.endswith("0_3") or draw.randint(0, 1) for _ in item.data["points"]]
        return reply(scores).replace("seen", "seen 😀")

    def in_request(request: dict[str, Any]) -> str:
        url = request["messages"][0]["content"][1]["image_url"]["url"]
        return said(pixels[url.removeprefix("data:image/png;base64,")])

    source = benchmark.data / "test_prompts_en.csv"
    with (
        source.open(encoding="utf-8", newline="") as file,
        (tmp_path / "three.csv").open("w", newline="") as part,
    ):
        csv.writer(part).writerows(itertools.islice(csv.reader(file), 4))
    client = ClientOfOpenAI(in_request)
    program = run_program(*KIT, f"{_EVAL}/gemini_en_eval.py", monkeypatch, openai=client.module)
    printed: list[str] = []
    program["print"] = lambda *words: printed.append(" ".join(map(str, words)))
    program["Pool"] = lambda processes: SimpleNamespace(imap=map, close=list, join=list)
    monkeypatch.chdir(tmp_path)
    program["main"](str(made[0].path.parent), "", "", str(tmp_path / "three.csv"))

    use_function_judge(lambda asked: said(next(one for one in made if one.id == asked.item)), monkeypatch)
    outcome, result = evaluate(benchmark, made)
    assert outcome.state == "incomplete" and result.coverage.unparsed == 2
    theirs, ours = (
        list(csv.DictReader(path.open(encoding="utf-8", newline="")))
        for path in (
            tmp_path / "results/samples_en.csv",
            Cell("m", "unigenbench").official / "samples_en.csv",
        )
    )
    assert len(ours) == 12
    for one in (*theirs, *ours):
        one["img_path"] = Path(one["img_path"]).name
    assert ours == theirs
    rates = dict(re.findall(r"- (.+?): \d+/\d+ = ([\d.]+)%", "\n".join(printed)))
    metrics = {name.removeprefix("en/"): one.value for name, one in result.metrics.items() if "/" in name}
    assert {name.strip(): value for name, value in rates.items()} == {
        n: f"{v:.2f}" for n, v in metrics.items()
    }


def test_images_made_elsewhere_are_found_in_the_official_layouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_official_data("unigenbench", tmp_path, monkeypatch)
    both = items(UniGenBench(), 20)
    for language, below in (("both", ""), ("both", "images/"), ("zh", ""), ("en", None)):
        benchmark = UniGenBench(UniGenBenchSettings(language=language))  # type: ignore[arg-type]
        made, source = items(benchmark, 20), tmp_path / f"{language}{below}"
        expected = {}
        for item in made:
            folder = "" if below is None else f"{below}{item.data['language']}"
            expected[item.id] = source / folder / item.path.name
            expected[item.id].parent.mkdir(parents=True, exist_ok=True)
            expected[item.id].write_bytes(b"")
        found = find_images(source, made, [], benchmark.find_images)
        assert {id: place.path for id, place in found.items()} == expected
        # one folder cannot be of both languages
        assert bool(UniGenBench().find_images(source, both)) == (below is not None)


@pytest.mark.parametrize(("benchmark", "count"), [(UniGenBench(), 7252), (UniGenBenchLong(), 4 * 3920)])
def test_both_languages_have_all_images_and_seeds(
    benchmark: UniGenBench, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_official_data(benchmark.name, tmp_path, monkeypatch)
    made = items(benchmark)
    assert len(made) == 4800 and {one.seed for one in made} == {3449, 3450, 3451, 3452}
    counts: dict[str, int] = defaultdict(int)
    for one in made:
        counts[one.data["language"]] += len(one.data["points"])
    assert counts == {"en": count, "zh": count}
    assert {one.data["language"] for one in made[:2]} == {"en", "zh"}


def test_a_long_prompt_lists_a_point_twice_and_has_the_comma_that_its_row_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The official program stops at that row."""
    benchmark = UniGenBenchLong(UniGenBenchSettings(language="en"))
    use_official_data(benchmark.name, tmp_path, monkeypatch)
    made = {int(one.data["index"]): one for one in items(benchmark)}
    assert made[509].data["points"][1:3] == ["Grammar - Negation", "Attribute - Color"]
    answer = Answer(question(5), "", value={"analysis": [""] * 5, "score": [1, 0, 1, 1, 0]})
    score = benchmark.score(made[509], Answers({"points": answer}))
    met = defaultdict(list)
    for point in score.points:
        met[point.keys["primary"]].append(point.values["met"])
    assert met == {"Action": [1], "Grammar": [0], "Attribute": [1, 1, 0]}
    twice = next(name for name in made[163].data["points"] if made[163].data["points"].count(name) == 2)
    [asked] = benchmark.questions(made[163], Picture(tmp_path / "1.png", "0" * 64), Answers({}))
    assert asked.text.count(f"\n{twice}: ") == 4
