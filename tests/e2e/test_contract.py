"""The features of the benchmark contract: each is tried by a small benchmark, with a judge behind HTTP."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import io
import json
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from PIL import Image

from imageevalkit.benchmark.answerer import Answerer
from imageevalkit.benchmark.contract import JUDGE, Answers, Benchmark, Measurer, Sample, Scores, Unparsed
from imageevalkit.benchmark.question import QWEN_VL_UTILS, Answer, Picture, Question, ask, measure
from imageevalkit.common.errors import CellFailure
from imageevalkit.evaluate.scoring import evaluate_cell
from imageevalkit.jobs.plan import (
    COMPLETE,
    INCOMPLETE,
    EvaluateOrder,
    Job,
    Outcome,
    Plan,
    ReportOrder,
    job_words,
)
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.metrics import grouped, mean
from imageevalkit.registry import BenchmarkDataset
from imageevalkit.store.cell import Cell, output_root
from imageevalkit.store.items import Item, items_of
from imageevalkit.store.results import Evaluator, Metric, Result, Score, read_result
from tests.support.checkout import environ, make_checkout, run_command
from tests.support.generation import picture
from tests.support.image_server import KEY
from tests.support.judge_server import ReplyServer


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[ReplyServer]:
    """A judge behind an API, which says yes."""
    with ReplyServer() as server:
        monkeypatch.setenv("API_KEY", KEY)
        monkeypatch.setenv("BASE_URL", server.base_url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield server


def evaluate(benchmark: Benchmark, model: str = "m") -> tuple[Outcome, Result, list[dict[str, Any]]]:
    """Images of ``model`` for the benchmark, unless there are some, and what they are worth."""
    cell = Cell(model, benchmark.name)
    items = items_of(BenchmarkDataset(benchmark), cell)
    for item in items:
        item.path.parent.mkdir(parents=True, exist_ok=True)
        if not item.path.exists():
            picture(f"{model}{item.id}{item.prompt}", item.seed).save(item.path)
    outcome = evaluate_cell(cell, benchmark, items, ProgressWriter(), EvaluateOrder())
    scores = [json.loads(line) for line in cell.scores.read_text().splitlines()]
    return outcome, read_result(cell.result), scores


class Reworded(Benchmark):
    """Draws new words of the question for each attempt at each item, as TIIF-Bench does."""

    name, version, judge, headline, tries = "reworded", "1", "openai:judge-1", ("grade",), 3

    def samples(self) -> Iterable[Sample]:
        return [Sample(f"images/{n}.png", f"prompt {n}", n) for n in range(3)]

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        words = random.Random(f"{item.id} {answers.attempt('grade')}").sample(["dog", "cat", "owl", "fox"], 4)
        yield ask("grade", image, f"{item.prompt}: {' or '.join(words)}?")

    def parse(self, question: Question, answer: Answer) -> int:
        if not (answer.text or "").isdigit():
            raise Unparsed(f"'{answer.text}' is no grade")
        return int(answer.text or "")

    def score(self, item: Item, answers: Answers) -> Score:
        return Score({"grade": answers["grade"].value})

    def metrics(self, scores: Scores) -> Mapping[str, Metric]:
        return {"grade": mean(scores, "grade", top=2)}


def test_the_words_of_a_question_change_with_the_attempt_and_not_with_a_restart(judge: ReplyServer) -> None:
    replies: dict[str, list[str]] = {}

    def reply(request: Any) -> str:
        said = replies.setdefault(request.prompt[:8], [])
        said.append(request.prompt)
        return "1" if len(said) == 3 else "hm"

    judge.reply = reply
    assert evaluate(Reworded())[0].state == COMPLETE
    uninterrupted = dict(replies)
    assert [len(set(asked)) for asked in uninterrupted.values()] == [3, 3, 3]
    replies.clear()
    judge.choose = lambda request, attempt: "401" if len(judge.requests) % 3 == 0 else "ok"
    judge.requests.clear()
    cell = Cell("again", "reworded")
    for _ in range(40):  # the key is rejected again and again
        try:
            if evaluate(Reworded(), "again")[0].state == COMPLETE:
                break
        except CellFailure as error:
            assert "the next run continues" in str(error)
    assert replies == uninterrupted
    assert len(cell.judgements.read_text().splitlines()) == 9


class Twice(Reworded):
    """Asks the same words under two names, and reads the reply in two ways."""

    name = "twice"

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        return [ask(name, image, "Count them.") for name in ("count", "parity")]

    def parse(self, question: Question, answer: Answer) -> int:
        return int(answer.text or "") % (2 if question.name == "parity" else 100)

    def score(self, item: Item, answers: Answers) -> Score:
        assert all(answer.question.name == name for name, answer in answers.items())
        return Score({"grade": 0.0, **{name: answer.value for name, answer in answers.items()}})


def test_questions_in_the_same_words_are_asked_once_and_each_is_read_by_itself(judge: ReplyServer) -> None:
    judge.reply = lambda request: "7"
    for _ in ("at first", "from the records"):
        _, _, scores = evaluate(Twice())
        assert [score["values"] for score in scores] == [{"grade": 0.0, "count": 7, "parity": 1}] * 3
    assert len(judge.requests) == 3


class Gauge(Answerer):
    """Stands for a detector (boxes) or an encoder (a vector and a number); ``calls`` are the items it has seen."""

    calls: ClassVar[list[str]] = []

    def __init__(self, what: str) -> None:
        self._what = what

    @property
    def evaluator(self) -> Evaluator:
        return Evaluator(f"{self._what}/v1", official=True, details={"threshold": 0.3})

    def ask(self, questions: Sequence[Question], workers: int = 1) -> Iterator[Answer]:
        for question in questions:
            self.calls.append(f"{self._what} {question.item}")
            with Image.open(question.pictures[0].path) as image:
                red, green, _ = image.convert("RGB").getpixel((4, 4))  # type: ignore[misc]
            box = [{"label": "dog", "box": [0, 0, 4, 4.5], "confidence": red / 255}]
            yield Answer(question, json.dumps(box if self._what == "detector" else [red / 255, green / 255]))


class Measured(Benchmark):
    """As GenEval and HPSv2 at once: boxes, a vector, and a word of the judge about the same image."""

    name, version, judge, headline = "measured", "1", "openai:judge-1", ("right",)

    @property
    def measurers(self) -> Mapping[str, Measurer]:
        gauge = f"{__name__}:Gauge"
        return {
            "boxes": Measurer(gauge, {"what": "detector"}),
            "vector": Measurer(gauge, {"what": "encoder"}),
            "word": JUDGE,
        }

    def samples(self) -> Iterable[Sample]:
        return [Sample(f"images/{n}.png", f"prompt {n}", n) for n in range(3)]

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        return [
            measure("boxes", image, "dog"),
            measure("vector", image),
            ask("word", image, f"Is it {item.prompt}?"),
        ]

    def score(self, item: Item, answers: Answers) -> Score:
        of = {name: answer.value for name, answer in answers.items()}
        right = float(of["boxes"][0]["label"] == "dog" and of["word"] == "Yes")
        return Score({"right": right, "sum": sum(of["vector"])}, detail={"boxes": of["boxes"]})

    def metrics(self, scores: Scores) -> Mapping[str, Metric]:
        return {"right": mean(scores, "right"), "sum": mean(scores, "sum", top=2, interval=False)}


def test_boxes_vectors_and_words_about_one_image_come_of_several_measurers(judge: ReplyServer) -> None:
    Gauge.calls.clear()
    outcome, result, scores = evaluate(Measured())
    assert (outcome.state, result.metrics["right"].value) == (COMPLETE, 1.0)
    assert scores[2]["detail"]["boxes"] == [{"label": "dog", "box": [0, 0, 4, 4.5], "confidence": 44 / 255}]
    assert result.metrics["sum"].value == pytest.approx(sum(score["values"]["sum"] for score in scores) / 3)
    assert len(judge.requests) == 3
    assert Gauge.calls == [f"{what} images/{n}" for what in ("detector", "encoder") for n in range(3)]
    whole = result.evaluator
    assert whole.id.startswith("judge-1/openai/official/")
    assert {group: of["id"] for group, of in whole.details["answerers"].items() if group != "word"} == {
        "boxes": "detector/v1",
        "vector": "encoder/v1",
    }
    assert evaluate(Measured())[1].metrics == result.metrics
    assert (len(judge.requests), len(Gauge.calls)) == (3, 6)


class Absent(Gauge):
    """A metric model without its weights."""

    @property
    def evaluator(self) -> Evaluator:
        raise CellFailure(f"the weights of {self._what} are not here")


def test_all_that_measurers_lack_is_told_before_the_judge_is_asked(judge: ReplyServer) -> None:
    class Incomplete(Measured):
        @property
        def measurers(self) -> Mapping[str, Measurer]:
            absent = f"{__name__}:Absent"
            lacking = {name: Measurer(absent, {"what": name}) for name in ("boxes", "vector")}
            return {"word": JUDGE, **lacking}

    with pytest.raises(
        CellFailure, match=r"weights of boxes are not here; the weights of vector are not here"
    ):
        evaluate(Incomplete())
    assert judge.requests == []


class Edited(Benchmark):
    """As ImgEdit: the judge sees the source images before the one that was made of them."""

    name, version, task, judge, headline = "edited", "1", "edit", "openai:judge-1", ("kept",)
    pixels = QWEN_VL_UTILS
    inputs: Sequence[Any] = ()

    def samples(self) -> Iterable[Sample]:
        return [Sample("images/0.png", input_list=self.inputs)]

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        yield ask("kept", *self.sources(item), image, "Is the last image made of the others?")

    def score(self, item: Item, answers: Answers) -> Score:
        return Score({"kept": float(answers["kept"].value == "Yes")})

    def metrics(self, scores: Scores) -> Mapping[str, Metric]:
        return {"kept": mean(scores, "kept")}


def _png(image: Image.Image, **how: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", **how)
    return buffer.getvalue()


def test_the_source_images_of_an_item_are_shown_beside_the_one_that_was_made(
    judge: ReplyServer, tmp_path: Path
) -> None:
    plain, clear = tmp_path / "plain.jpg", tmp_path / "clear.png"
    picture("plain", 1).save(plain)
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(clear)
    memory, glass = picture("memory", 2), Image.new("RGBA", (8, 8), (0, 255, 0, 0))
    benchmark = Edited()
    benchmark.inputs = ["mix them", Image.open(plain), Image.open(clear), memory, glass]
    assert evaluate(benchmark)[0].state == COMPLETE
    [request] = judge.requests
    made = Cell("m", "edited").folder / "images/0.png"
    # the protocol lays transparency on white, which no server must be left to guess
    white = _png(Image.new("RGB", (8, 8), "white"), compress_level=1)
    shown = [plain.read_bytes(), white, _png(memory), white, made.read_bytes()]
    assert [part.data.decode() for part in request.files] == [
        hashlib.sha256(data).hexdigest() for data in shown
    ]
    picture("another", 3).save(plain)
    other = Edited()
    other.inputs = ["mix them", Image.open(plain), Image.open(clear), memory, glass]
    evaluate(other)
    assert len(judge.requests) == 2


class Spread(Benchmark):
    """As OneIG's diversity and TRIG's relations: over all images of a prompt, and over all models of a run."""

    name, version, judge, headline = "spread", "1", "openai:judge-1", ("spread",)

    def samples(self) -> Iterable[Sample]:
        return [Sample(f"images/{n}_{k}.png", f"prompt {n}", k, {"n": n}) for n in range(2) for k in range(3)]

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        yield ask("grade", image, f"Grade {item.model} {item.id}, 0-1.")

    def score(self, item: Item, answers: Answers) -> Score:
        return Score(
            {"grade": float(answers["grade"].value)}, {"n": item.data["n"]}, points=[Score({"x": 1})]
        )

    def metrics(self, scores: Scores) -> Mapping[str, Metric]:
        prompts = grouped(scores, lambda score: score.keys["n"]).values()
        grades = [[score.values["grade"] for score in prompt] for prompt in prompts]
        spread = [Score({"spread": max(of) - min(of)}).of_item(str(n)) for n, of in enumerate(grades)]
        return {"spread": mean(spread, "spread", interval=False)}

    def official_files(self, scores: Scores) -> Mapping[str, str | bytes]:
        return {"spread.png": _png(Image.new("RGB", (len(scores), 1), "red"))}

    def compare(self, scores: Mapping[str, Sequence[Score]]) -> Mapping[str, str | bytes]:
        means = {model: sum(score.values["grade"] for score in of) / len(of) for model, of in scores.items()}
        points = sum(len(score.points) for of in scores.values() for score in of)
        return {
            "means.json": json.dumps([means, points, self.settings.rules]),
            "means.png": _png(Image.new("RGB", (len(means), 1))),
        }


_SPREAD = f"""
import io, json
from PIL import Image
from imageevalkit.benchmark.contract import Benchmark, Sample
from imageevalkit.benchmark.question import ask
from imageevalkit.store.results import Score
from imageevalkit.metrics import grouped, mean

{inspect.getsource(_png)}
{inspect.getsource(Spread)}"""


def report(checkout: Path) -> str:
    """Returns the printed report of the checkout on the results of this test."""
    job = Job("report", "report", [], [], [], always=True, order=ReportOrder([]))
    settings = {"spread": {"rules": "corrected"}}
    plan = Plan(str(checkout / "log/run"), False, [job], settings=settings).save()
    environment = environ(checkout, IMAGEEVALKIT_OUTPUT=str(output_root()))
    command = [sys.executable, "-m", "imageevalkit.report", *job_words(plan, "report")]
    return run_command(command, checkout, environment, status=0).stdout


def test_the_report_writes_what_a_benchmark_says_of_models_that_were_measured_alike(
    judge: ReplyServer, tmp_path: Path
) -> None:
    checkout = make_checkout(tmp_path / "checkout")
    code = checkout / "benchmarks/spread/benchmark.py"
    code.parent.mkdir()
    code.write_text(f"from __future__ import annotations\n{_SPREAD}")
    judge.reply = lambda request: "1" if "Grade a" in request.prompt else "0"
    judge.choose = lambda request, attempt: "bad_image" if "Grade c images/0_0" in request.prompt else "ok"
    assert [evaluate(Spread(), model)[0].state for model in "abc"] == [COMPLETE, COMPLETE, INCOMPLETE]
    assert read_result(Cell("a", "spread").result).metrics["spread"] == Metric(0.0, 2)
    with Image.open(Cell("a", "spread").official / "spread.png") as image:
        assert image.size == (6, 1)
    report(checkout)
    [folder] = (output_root() / "comparisons/spread").iterdir()
    assert json.loads((folder / "means.json").read_text()) == [{"a": 1.0, "b": 0.0}, 12, "corrected"]
    with Image.open(folder / "means.png") as image:
        assert image.size == (2, 1)
    assert not list(output_root().rglob("*.part"))

    code.write_text(code.read_text().replace("/ len(of)", "/ 0"))
    assert "benchmark spread: compare() fails: ZeroDivisionError" in report(checkout)


def load(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> Benchmark:
    """The one benchmark in ``code``, as a file in ``folder``."""
    file = folder / "benchmark.py"
    file.write_text(code)
    spec = importlib.util.spec_from_file_location(f"loaded_{folder.name}", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    [cls] = (c for c in vars(module).values() if isinstance(c, type) and c.__module__ == spec.name)
    made: Benchmark = cls()
    return made


_YES_NO = """
from imageevalkit.benchmark.shapes import YesNo


class Spelling(YesNo):
    name = "spelling"
    version = "1"
    judge = "openai:judge-1"
    by = ("language",)
    question = "Does the image show the words '{words}' without a mistake? Answer yes or no."
"""


def prompts_in(folder: Path, count: int) -> list[dict[str, Any]]:
    """Prompts in the file of ``folder``."""
    rows = [
        {"prompt": f"prompt {n}", "words": f"w{n}", "language": ("en", "zh")[n % 2]} for n in range(count)
    ]
    (folder / "prompts.json").write_text(json.dumps(rows))
    return rows


def test_a_yes_or_no_benchmark_on_prompts_of_its_own_is_a_dozen_lines(
    judge: ReplyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts_in(tmp_path, 4)
    judge.reply = lambda request: "No" if "w3" in request.prompt else "Yes, it does."
    assert len(_YES_NO.splitlines()) <= 20
    outcome, result, scores = evaluate(load(tmp_path, _YES_NO, monkeypatch))
    assert outcome.state == COMPLETE
    assert {name: (of.value, of.n) for name, of in result.metrics.items()} == {
        "accuracy": (0.75, 4),
        "accuracy/language/en": (1.0, 2),
        "accuracy/language/zh": (0.5, 2),
    }
    assert scores[3]["values"] == {"accuracy": 0} and scores[3]["detail"] == {"answer": "No"}
    asked = "Does the image show the words 'w0' without a mistake? Answer yes or no."
    assert asked in {request.prompt for request in judge.requests}


_GRADES = """
from imageevalkit.benchmark.shapes import Grades


class Looks(Grades):
    name, version, judge = "looks", "1", "openai:judge-1"
    images_per_prompt, by = 2, ("language",)
    grades, scale = ("Beauty", "Detail"), (1, 5)
    question = "Grade beauty and detail of this image of {prompt} from 1 to 5."
"""


def test_grades_in_a_reply_are_means_with_the_scale_that_they_have(
    judge: ReplyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts_in(tmp_path, 2)
    judge.reply = lambda request: (
        "Beauty: 4\nDetail: 2" if "prompt 0" in request.prompt else "beauty=5, detail 3/5"
    )
    outcome, result, _ = evaluate(load(tmp_path, _GRADES, monkeypatch))
    assert (outcome.state, result.coverage.expected) == (COMPLETE, 4)
    values = {name: (of.value, of.scale) for name, of in result.metrics.items()}
    assert (values["overall"], values["Beauty"], values["Detail"]) == ((3.5, 5), (4.5, 5), (2.5, 5))
    assert values["Detail/language/zh"] == (3.0, 5)


def test_prompts_that_cannot_be_used_are_named_before_anything_is_asked(
    judge: ReplyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = prompts_in(tmp_path, 3)
    del rows[2]["language"]
    benchmark = load(tmp_path, _YES_NO, monkeypatch)
    for text, says in (
        (json.dumps(rows), r", entry 2 \(counted from 0\) lacks language"),
        ('{"a": 1}', r" holds {'a': 1}, and must be a list of objects"),
        ('[{"prompt": a}]', r" is invalid \(Expecting value"),
    ):
        (tmp_path / "prompts.json").write_text(text)
        with pytest.raises(CellFailure, match=rf"^benchmark spelling: \S*prompts\.json{says}"):
            evaluate(benchmark)
    assert judge.requests == []
