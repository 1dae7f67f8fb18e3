"""T2I-ReasonBench (arXiv 2508.17472): 800 prompts in four reasoning dimensions; the judge describes, then
grades.

``quirk`` comments mark odd behaviour of the official program. A fix would change published numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from imageevalkit.assets import asset_list
from imageevalkit.benchmark.contract import Answers, Benchmark, Sample, ScoredItem, Scores, Settings, Unparsed
from imageevalkit.benchmark.question import (
    QWEN_VL_UTILS,
    Answer,
    Message,
    Picture,
    PixelRule,
    Question,
    of_checkpoint,
)
from imageevalkit.common.text import csv_text
from imageevalkit.metrics import grouped, groups, mean, only_if, spread, weighted
from imageevalkit.store.items import Item
from imageevalkit.store.results import Metric, Score

_DESCRIPTION = "description"
_PROGRAM = "benchmarks/T2I-ReasonBench/evaluation/Qwen2.5-VL/eval_{}.py::eval.q{}"
_MAX_TOKENS = 1000
_GRADES = (0, 0.5, 1)
_LARGEST = 1e300  # official rules accept any grade, but the mean of larger grades may overflow
# "q1", "aq1", "sci_q1" are questions; the criteria and two remarks have other names
_ASKED = re.compile(r"(?:\w+_)?a?q\d+")
# the kit limits width x height, in pixels, of the image that the judge sees; the authors' program does not
_KIT_PIXELS = QWEN_VL_UTILS._replace(name="qwen_vl_utils, kit", limits=(256 * 28 * 28, 1280 * 28 * 28))
# quirk: the official program takes the text from the first "{" to the first "}", in one dimension to the last
# "}". A nested or a later "}" therefore makes it invalid JSON.
_FIRST, _LAST = re.compile(r"\{.*?\}", re.DOTALL), re.compile(r"\{.*\}", re.DOTALL)
# the official question shows an object with an extra quotation mark after this list, which a judge may copy
_LIST = re.compile(r'"score"\s*:\s*(\[[^\[\]]*\])')


class Block(NamedTuple):
    """A block of questions that the judge answers together.

    ``key`` is the block's key in the data, ``placeholder`` its place in the prompt, ``share`` the weight of
    its mean grade in the accuracy.
    """

    name: str
    key: str
    placeholder: str
    share: float = 0.0


class Dimension(NamedTuple):
    """A reasoning dimension. ``file`` is the stem of its prompt file and its image folder. ``program`` is the
    suffix of its question file. ``braces`` matches the JSON object in a reply.
    """

    file: str
    program: str
    blocks: Sequence[Block]
    braces: re.Pattern[str] = _FIRST


_QUALITY = Block("quality", "quality_evaluation", "qs_quality_question_criteria")
_REASON = Block("accuracy", "reason_evaluation", "qs_reason_question_criteria", 1.0)
_DETAILS = Block("details", "other_details_evaluation", "qs_detail_question_criteria", 0.3)
DIMENSIONS = {
    "entity": Dimension(
        "entity_reasoning",
        "entity",
        (Block("main", "entity_evaluation", "qs_entity_question_criteria", 0.7), _DETAILS, _QUALITY),
    ),
    "idiom": Dimension("idiom_interpretation", "idiom", (_REASON, _QUALITY)),
    "scientific": Dimension(
        "scientific_reasoning",
        "scientific",
        (Block("main", "scientific_evaluation", "qs_scientific_question_criteria", 0.7), _DETAILS, _QUALITY),
    ),
    "textual": Dimension("textual_image_design", "textual_image", (_REASON, _QUALITY), _LAST),
}


@dataclass(frozen=True)
class T2IReasonBenchSettings(Settings):
    """``pixels="kit"`` shows the judge at most 1,280 visual tokens, as the official kit does; "original" has
    no limit."""

    pixels: Literal["kit", "original"] = field(default="kit", metadata={"decides": True})


class T2IReasonBench(Benchmark):
    """The judge first describes the image. With this description as context it then answers each block of
    questions."""

    name, title = "t2ireasonbench", "T2I-ReasonBench"
    version = "t2ireasonbench-85b5e15"  # data and prompts are from the kit at this commit
    assets = asset_list(Path(__file__).with_name("assets.txt"))
    prompt_count = 800
    judge = "transformers:qwen2.5-vl-72b"
    headline = ("accuracy", "quality")
    item_values = ("accuracy", "quality", "main", "details")
    official_headline = ("accuracy_official", "quality_official")
    has_corrected_rules = True
    settings_class = T2IReasonBenchSettings

    settings: T2IReasonBenchSettings

    def __init__(self, settings: T2IReasonBenchSettings | None = None, judge: str = "") -> None:
        super().__init__(settings, judge)
        self.pixels: PixelRule = _KIT_PIXELS if self.settings.pixels == "kit" else QWEN_VL_UTILS
        # the official program stops at an unreadable reply, and accepts any number as a grade
        self.tries, self.unbounded = (1, ("*",)) if self.is_official else (3, ())

    def samples(self) -> Iterable[Sample]:
        """Returns the samples. Dimensions are interleaved, and within each dimension its tags."""
        return spread([spread(_tags(self._dimension(name)).values()) for name in DIMENSIONS])

    def _dimension(self, name: str) -> Iterable[Sample]:
        dimension = DIMENSIONS[name]
        prompts = self.read_json(f"prompts/{dimension.file}.json")
        asked = {
            row["id"]: row
            for row in self.read_json(f"deepseek_evaluation_qs/evaluation_{dimension.program}.json")
        }
        for row in prompts:
            n = row["id"]
            blocks = {block.name: asked[n][block.key] for block in dimension.blocks}
            data = {"dimension": name, "id": n, "tag": row["tag"], "blocks": blocks}
            yield Sample(f"{dimension.file}/{n:04d}.png", row["prompt"], data=data)

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        dimension = DIMENSIONS[item.data["dimension"]]
        texts = [
            self.prompts[_PROGRAM.format(dimension.program, n)] for n in range(1, len(dimension.blocks) + 2)
        ]
        first, sampling = Message("user", (image, texts[0])), of_checkpoint(self.backend, _MAX_TOKENS)
        yield Question(_DESCRIPTION, (first,), sampling)
        if _DESCRIPTION not in answers:
            return
        description = Message("assistant", (answers[_DESCRIPTION].value,))
        for block, text in zip(dimension.blocks, texts[1:], strict=True):
            asked = item.data["blocks"][block.name]
            # the official program inserts the block as Python prints it
            words = text.format(**{block.placeholder: asked})
            count = sum(bool(_ASKED.fullmatch(name)) for name in asked)
            messages = (first, description, Message("user", (words,)))
            yield Question(block.name, messages, sampling, data=(dimension.braces, count))

    def parse(self, question: Question, answer: Answer) -> Any:
        """Returns the description, or the grades of a block.

        Official rules read the list "score" of the JSON object between braces, with any length and values
        (quirk). Corrected rules search all JSON objects, then bare lists, and require a grade of 0, 0.5 or 1
        per question.
        """
        text = answer.text or ""
        if question.name == _DESCRIPTION:
            return text
        braces, count = question.data
        try:
            if self.is_official:
                listed = json.loads(next((found[0] for found in braces.finditer(text)), ""))["score"]
            else:
                listed = _first_list(text)
            grades = _floats(listed)
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            raise Unparsed("no JSON with scores", text) from None
        if not grades or not all(abs(grade) <= _LARGEST for grade in grades):
            raise Unparsed("no scores", text)
        if not self.is_official and not (len(grades) == count and set(grades) <= set(_GRADES)):
            raise Unparsed(f"not {count} scores of 0, 0.5 or 1", text)
        return list(listed)

    def score(self, item: Item, answers: Answers) -> Score:
        """Returns ``accuracy`` and ``quality``, both 0-1.

        ``accuracy`` is a mean grade; entity and scientific use 0.7 · main + 0.3 · details. ``quality`` is the
        mean grade of the image quality."""
        blocks = DIMENSIONS[item.data["dimension"]].blocks
        means = {block.name: _mean(answers[block.name].value) for block in blocks}
        shared = [block.share * means[block.name] for block in blocks if block.share]
        return Score(
            {"accuracy": sum(shared), **means},
            {key: item.data[key] for key in ("dimension", "id", "tag")},
            {name: answer.text for name, answer in answers.items()},
        )

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """Returns the metrics by name, in percent.

        * ``entity/accuracy``, ``entity/quality``, …: the mean of a dimension (official: rounded to 2 decimals).
        * ``accuracy``, ``quality``: the mean of the four dimensions, as in the authors' table. They have no
          value until each dimension has a score. ``…_official`` (official rules) have no value if a reply is
          unreadable, because the official program stops there.
        """
        ordered = sorted(scores, key=lambda score: score.keys["id"])
        found: dict[str, Metric] = {}
        equal = dict.fromkeys(DIMENSIONS, 1 / len(DIMENSIONS))
        stopped = any(one.image is not None and one.score is None for one in scores.items)
        for value in ("accuracy", "quality"):
            found[value] = weighted(ordered, value, "dimension", equal, percent=True)
            if self.is_official:
                found[f"{value}_official"] = only_if(not stopped, found[value])
        for name, mine in groups(ordered, "dimension", DIMENSIONS).items():
            for value in ("accuracy", "quality"):
                metric = mean(mine, value, percent=True)
                if self.is_official and metric.value is not None:
                    metric = replace(metric, value=round(metric.value, 2))
                found[f"{name}/{value}"] = metric
        return found

    def notes(self, scores: Scores) -> Sequence[str]:
        if self.settings.pixels == "original":
            return ()
        return [
            "the judge sees 256 to 1,280 visual tokens of an image, as in the official kit (pixels=original: all)"
        ]

    def official_files(self, scores: Scores) -> dict[str, str]:
        """``csv_result/<dimension>/<model>.csv``: a row per image, then the scores."""
        metrics, files = self.metrics(scores), {}
        of_dimension = grouped(scores.items, lambda one: one.item.data["dimension"])
        for name, dimension in DIMENSIONS.items():
            if f"{name}/accuracy" not in metrics:
                continue
            accuracy, quality = (metrics[f"{name}/{value}"].value for value in ("accuracy", "quality"))
            ordered = sorted(of_dimension[name], key=lambda one: one.item.data["id"])
            table = [
                _header(dimension),
                *(_row(dimension, one) for one in ordered if one.score),
                ["reasoning accuracy score: ", accuracy, "image quality score", quality],
            ]
            name_of_file = f"csv_result/{dimension.file}/{ordered[0].item.model}.csv"
            files[name_of_file] = csv_text(table, line_end="\r\n")
        return files


def _tags(samples: Iterable[Sample]) -> dict[Any, list[Sample]]:
    return grouped(samples, lambda sample: sample.data["tag"])


def _floats(grades: Iterable[Any]) -> list[float]:
    return [float(grade) for grade in grades]


def _mean(grades: Sequence[Any]) -> float:
    return sum(_floats(grades)) / len(grades)


def _first_list(text: str) -> Any:
    """Returns the list "score" of the first JSON object with such a list, else the first bare ``"score":
    [...]``.

    Raises ValueError if there is no such list.
    """
    decoder = json.JSONDecoder()
    for brace in re.finditer(r"\{", text):
        try:
            found, _ = decoder.raw_decode(text, brace.start())
        except ValueError:
            continue
        if isinstance(found.get("score"), list):
            return found["score"]
    if bare := _LIST.search(text):
        return json.loads(bare[1])
    raise ValueError("no scores")


def _header(dimension: Dimension) -> list[str]:
    """Returns the header of the official table, with its numbered answers and its names of the scores."""
    names = {"accuracy": "acc", "quality": "qual", "main": dimension.program, "details": "detail"}
    letters = {"accuracy": "a", "quality": "q", "main": dimension.program[0], "details": "d"}
    header = ["id", "prompt", "answer_1"]
    for n, block in enumerate(dimension.blocks, 2):
        header += [f"answer_{n}", f"score_{names[block.name]}"]
    return header + [f"score_{letters[block.name]}_avg" for block in dimension.blocks]


def _row(dimension: Dimension, one: ScoredItem) -> list[Any]:
    row = [one.item.path.name, one.item.prompt, one.replies[_DESCRIPTION]]
    values = [one.answers[block.name].value for block in dimension.blocks]
    # two of the official programs keep numbers as the judge wrote them
    if "details" in one.answers or any(isinstance(grade, str) for grades in values for grade in grades):
        values = [_floats(grades) for grades in values]
    for block, grades in zip(dimension.blocks, values, strict=True):
        row += [one.replies[block.name], grades]
    return row + [_mean(grades) for grades in values]
