"""UniGenBench: the words of a question, the lists in a reply, the scores; beside the official program."""

from __future__ import annotations

import ast
import json
import random
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.unigenbench.benchmark import LANGUAGES, UniGenBench, UniGenBenchSettings
from imageevalkit.benchmark.contract import Answers, ScoredItem, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, Question, ask
from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item
from tests.support.function_judge import items
from tests.support.mirror import official_source, use_official_data

_KIT = ("PenghaoYin/ImageEvalKit", "85b5e1511b867688fa37edee304ee0adc953e941")
ROW_0 = ["Style", "World Knowledge", "Attribute - Quantity"]
ROW_X = ["Attribute - Color", "Text Generation"]


def reply(scores: Any) -> str:
    analysis = ["seen"] * len(scores)
    return f"<description><analysis>{analysis}</analysis>\n<score>{scores}</score></description>"


def question(count: int) -> Question:
    return ask("points", "?", data=count)


def scored(benchmark: UniGenBench, images: list[tuple[list[str], str]]) -> Scores:
    """Of images with such test points and replies, four to a prompt."""
    found = []
    for n, (names, text) in enumerate(images):
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
        "en/Style": "100.00",
        "en/World Knowledge": "66.67",
        "en/Attribute": "57.14",
        "en/Text Generation": "25.00",
        "en/Attribute - Quantity": "33.33",
        "en/Attribute - Color": "75.00",
    }
    assert metrics["en"].value is None  # until all ten have a score


def test_the_whole_is_the_mean_of_the_ten() -> None:
    benchmark = UniGenBench(UniGenBenchSettings(language="en"))
    images = [([name], reply([int(n < 7)])) for n, name in enumerate(LANGUAGES["en"].primary)]
    assert benchmark.metrics(scored(benchmark, images))["en"].value == pytest.approx(70.0)


def program() -> str:
    return official_source(*_KIT, "benchmarks/UniGenBench/eval/gemini_en_eval.py")


def official_value(text: str, count: int) -> list[Any] | None:
    """The scores that the official programs count of a reply, by the lines of theirs that read it."""
    try:
        found = {}
        for tag in ("analysis", "score"):
            match = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
            found[tag] = ast.literal_eval(match.group(1).strip())  # type: ignore[union-attr]
        if count != len(found["analysis"]) or count != len(found["score"]):
            return None
        stored = json.dumps(found, ensure_ascii=False, indent=4)
        scores = ast.literal_eval(stored)["score"]
        return scores if isinstance(scores, list) else None
    except Exception:
        return None


def test_the_lines_that_read_a_reply_are_those_of_the_official_program() -> None:
    source = program()
    for line in (
        "re.search(r'<analysis>(.*?)</analysis>', text, re.DOTALL)",
        "re.search(r'<score>(.*?)</score>', text, re.DOTALL)",
        "len(testpoint) != len(analysis) or len(testpoint) != len(score)",
        "ast.literal_eval(row['result_json'])['score']",
        "if score == 1:",
    ):
        assert line in source


def test_replies_are_read_as_the_official_program_reads_them() -> None:
    benchmark, draw, read = UniGenBench(), random.Random(3), 0
    values = ["1", "0", "0.5", "'1'", "True", "None", "[1]", "1.0", "1e999", "{1}", "2", "x", "b'1'"]
    for _ in range(100_000):
        lists = []
        for _ in range(2):
            likely = values[:2] if draw.random() < 0.7 else values
            inner = ", ".join(draw.choice(likely) for _ in range(draw.randint(1, 3)))
            lists.append(f"{draw.choice('[([')}{inner}{draw.choice('])]')}")
        text = f"<analysis>{lists[0]}</analysis><score> {lists[1]}\n</score>"
        if draw.random() < 0.1:
            text = text.replace("</score>", "")
        count = draw.randint(1, 3)
        asked = question(count)
        try:
            ours = benchmark.parse(asked, Answer(asked, text))["score"]
        except Unparsed:
            ours = None
        assert ours == official_value(text, count), text
        read += ours is not None
    assert read > 1_000


def test_the_official_program_counts_our_file(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    source = official_source(*_KIT, "benchmarks/UniGenBench/eval/calculate_score.py")
    benchmark = UniGenBench(UniGenBenchSettings(language="en"))
    made = scored(benchmark, IMAGES)
    file = tmp_path / "samples_en.csv"
    file.write_text(benchmark.official_files(made)["samples_en.csv"], encoding="utf-8")
    out: list[str] = []
    space = {"print": lambda *words: out.append(" ".join(map(str, words)))}
    code = source.replace('"./results/flux_output.csv"', repr(str(file)))
    exec(compile(code, "official", "exec"), space)
    theirs = dict(re.findall(r"- (.+?): \d+/\d+ = ([\d.]+)%", "\n".join(out)))
    ours = {
        name.removeprefix("en/"): f"{metric.value:.2f}"
        for name, metric in benchmark.metrics(made).items()
        if "/" in name
    }
    assert {name.strip(): value for name, value in theirs.items()} == ours
    assert len(pd.read_csv(file)) == 8


def test_the_question_is_the_official_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_official_data("unigenbench", tmp_path, monkeypatch)
    for language, judge in (("en", "openai:gemini-2.5-pro"), ("zh", "vllm:QwenVL")):
        benchmark = UniGenBench(UniGenBenchSettings(language=language), judge)  # type: ignore[arg-type]
        item = next(one for one in items(benchmark) if one.data["index"] == 0)
        [asked] = benchmark.questions(item, Picture(item.path, "ab" * 32), Answers({}))
        [message] = asked.messages
        text = next(part for part in message.parts if isinstance(part, str))
        theirs = official_text(language, item)
        assert text == theirs
        # the authors' client of their own judge shows a JPEG first
        offline = language == "zh"
        assert isinstance(message.parts[0], Picture) == offline
        assert (asked.pictures[0].encoding is not None) == offline
        assert (asked.sampling.max_tokens, asked.sampling.temperature) == (4096, None)


def official_text(language: str, item: Item) -> str:
    """What the official program makes of the same row, by its own lines."""
    source = official_source(*_KIT, f"benchmarks/UniGenBench/eval/gemini_{language}_eval.py")
    begin = source.index("    explanation_dict = {")
    end = source.index("base64_image = local_image_to_data_url")
    body = source[begin:end].replace("while True:", "if True:")
    space: dict[str, Any] = {
        "prompt": item.prompt,
        "testpoint": item.data["points"],
        "test_desc": item.data["descriptions"],
    }
    exec(compile("if True:\n" + body, "official", "exec"), space)
    return str(space["system_prompt"])


def test_both_languages_have_all_images_and_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_official_data("unigenbench", tmp_path, monkeypatch)
    made = items(UniGenBench())
    assert len(made) == 4800 and {one.seed for one in made} == {3449, 3450, 3451, 3452}
    counts: dict[str, int] = defaultdict(int)
    for one in made:
        counts[one.data["language"]] += len(one.data["points"])
    assert counts == {"en": 7252, "zh": 7252}
    assert {one.data["language"] for one in made[:2]} == {"en", "zh"}
