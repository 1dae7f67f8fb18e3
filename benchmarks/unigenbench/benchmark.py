"""UniGenBench (arXiv 2508.20751): 600 prompts in English and Chinese, judged on 1,813 test points per
language; and its long prompts, with 3,920.

``quirk`` comments mark odd behaviour of the official program. A fix would change published numbers.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from imageevalkit.assets import PromptsAsset, asset_list
from imageevalkit.benchmark.contract import (
    Answers,
    Benchmark,
    Sample,
    ScoredItem,
    Scores,
    Settings,
    Unparsed,
)
from imageevalkit.benchmark.question import Accepts, Answer, Encoding, Picture, Question, ask
from imageevalkit.common.text import csv_text
from imageevalkit.metrics import grouped, groups, mean_by, mean_of_means, only_if, points, spread
from imageevalkit.store.cell import portable_path
from imageevalkit.store.items import Item
from imageevalkit.store.results import Metric, Score

_PROMPTS = 600
_SEED = 3407
_QUESTION = "points"
_PROGRAM = "benchmarks/UniGenBench/eval/gemini_{}_eval.py::call_evaluation."
_MAX_TOKENS = 4096
# some gateways count Gemini's thinking tokens; with the official limit they cut off its reply
_MORE_TOKENS = 16384
_OFFLINE = "vllm:CodeGoat24/UniGenBench-EvalModel-"
# the errors raised by parsing a Python literal and by writing it as JSON
_UNREADABLE = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError)
# Row 509 of the long English prompts is no JSON, and the official program stops at it.
_LACKS_A_COMMA = ('"Grammar - Negation" "Attribute', '"Grammar - Negation", "Attribute')
# the encoding that the authors' client sends to their own judge
_JPEG = Encoding("JPEG", 95)


class Language(NamedTuple):
    """``points``, ``descriptions`` and ``theme`` are keys in the data file; ``primary`` lists the ten
    dimensions."""

    points: str
    descriptions: str
    theme: str
    primary: Sequence[str]


LANGUAGES = {
    "en": Language(
        "Testpoints",
        "Testpoint Description",
        "Primary Categories",
        (
            *("Style", "World Knowledge", "Attribute", "Action", "Relationship"),
            *("Compound", "Grammar", "Logical Reasoning", "Entity Layout", "Text Generation"),
        ),
    ),
    "zh": Language(
        "考点",
        "考点对应描述",
        "一级垂类",
        ("风格", "世界知识", "属性", "动作", "关系", "复合考点", "语法", "逻辑推理", "实体布局", "文本生成"),
    ),
}


@dataclass(frozen=True)
class UniGenBenchSettings(Settings):
    """``language`` "en" or "zh" limits generation and evaluation to one language."""

    language: Literal["both", "en", "zh"] = "both"


class UniGenBench(Benchmark):
    """4,800 images. The languages alternate, so any first N images cover both."""

    name, title = "unigenbench", "UniGenBench"
    hub_dataset = "CodeGoat24/UniGenBench"
    version = "unigenbench-85b5e15"  # data and prompts are from the kit at this commit
    item_values = ("met",)
    needs_all_items = "it scores test points, and prompts have different numbers of them"
    assets = asset_list(Path(__file__).with_name("assets.txt"))
    judge = "openai:gemini-2.5-pro"
    official_judges = (judge, f"{_OFFLINE}qwen3vl-32b-v1", f"{_OFFLINE}qwen-72b-v1")
    tries = 11  # the official program retries ten times
    has_corrected_rules = True
    settings_class = UniGenBenchSettings

    suffix = ""
    """The end of the names of data files and folders."""

    settings: UniGenBenchSettings

    def __init__(self, settings: UniGenBenchSettings | None = None, judge: str = "") -> None:
        super().__init__(settings, judge)
        chosen = self.settings.language
        self.languages = tuple(LANGUAGES) if chosen == "both" else (chosen,)
        self.prompt_count, self.images_per_prompt = _PROMPTS * len(self.languages), 4
        self.headline = self.languages
        if self.is_official:
            self.official_headline = tuple(f"{language}_official" for language in self.languages)

    def samples(self) -> Iterable[Sample]:
        files = [list(self._prompts(language)) for language in self.languages]
        for prompts in zip(*files, strict=True):
            for repetition in range(self.images_per_prompt):
                for language, (index, prompt, data) in zip(self.languages, prompts, strict=True):
                    file = f"test_prompts_{language}{self.suffix}/samples/{index}_{repetition}.png"
                    yield Sample(file, prompt, _SEED + repetition, data)

    def _prompts(self, language: str) -> Iterable[tuple[int, str, Mapping[str, Any]]]:
        """Returns (number, text, item data) of each prompt, the themes interleaved."""
        keys = LANGUAGES[language]
        prompts = []
        for row in self.read_csv(f"test_prompts_{language}{self.suffix}.csv", _PROMPTS):
            facts = json.loads(row[f"sub_dims_{language}"].replace(*_LACKS_A_COMMA))
            index = int(row["index"])
            data = {
                "language": language,
                "index": index,
                "theme": facts[keys.theme],
                "points": facts[keys.points],
                "descriptions": facts[keys.descriptions],
            }
            prompts.append((index, row[f"prompt_{language}"], data))
        return spread(grouped(prompts, lambda one: one[2]["theme"]).values())

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        data, program = item.data, _PROGRAM.format(item.data["language"])
        definitions = [self.prompts[f"{program}explanation_dict[{name}]"] for name in data["points"]]
        text = self.prompts[f"{program}system_prompt"].format(
            prompt=item.prompt,
            testpoint=data["points"],
            explanation=_listed(self.prompts[f"{program}explanation"], data["points"], definitions),
            test_explanation=_listed(
                self.prompts[f"{program}test_explanation"], data["points"], data["descriptions"]
            ),
        )
        offline = self.backend != "openai"
        # The authors' client for their own judge sends the image first and re-encodes it. Their client for
        # Gemini derives the media type from the file name, which ends in .png.
        shown = image._replace(media_type="image/png") if self.is_official else image
        parts = (image._replace(encoding=_JPEG), text) if offline else (text, shown)
        most = _MAX_TOKENS if self.is_official or offline else _MORE_TOKENS
        # the official program reads only the content, and asks again if it is empty
        accepts: Accepts = "any" if self.is_official else "ended"
        count = len(data["points"])
        return [ask(_QUESTION, *parts, max_tokens=most, temperature=None, data=count, accepts=accepts)]

    def parse(self, question: Question, answer: Answer) -> dict[str, Any]:
        """Returns the lists ``analysis`` and ``score`` of the reply, read as Python literals as
        officially."""
        text = answer.text or ""
        stated = _stated(text, question.data)
        try:
            # quirk: the official program stores the lists as JSON and reads them as Python, which has no true
            # or null. Half an emoji (a lone surrogate) stops that program; ensure_ascii=False makes it raise
            # here, too.
            stored = json.dumps(stated, ensure_ascii=not self.is_official)
            found: dict[str, Any] = ast.literal_eval(stored)
            if not isinstance(found["score"], list):
                raise ValueError("no list")
        except _UNREADABLE:
            why = "lists that the official program stores and cannot read again"
            raise Unparsed(why, text, final=self.is_official) from None
        if not self.is_official and not all(score in (0, 1) for score in found["score"]):
            raise Unparsed("a score that is neither 0 nor 1", text)
        return found

    def score(self, item: Item, answers: Answers) -> Score:
        """Returns the share of test points that the image meets; each test point is a point of the score."""
        data, value = item.data, answers[_QUESTION].value
        # quirk: 0.5 and "1" count as not met, like 0
        met = [int(score == 1) for score in value["score"]]
        primary = [name.partition("-")[0].strip() for name in data["points"]]
        return Score(
            {"met": sum(met) / len(met)},
            {key: data[key] for key in ("language", "index", "theme")},
            {
                name: f"{score}: {analysis}"
                for name, score, analysis in zip(data["points"], met, value["analysis"], strict=True)
            }
            if isinstance(value["analysis"], list)
            else {"analysis": value["analysis"]},
            [
                Score({"met": one}, {"primary": dimension, "point": name})
                for one, dimension, name in zip(met, primary, data["points"], strict=True)
            ],
        )

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """Returns the metrics in percent of test points. Intervals treat the images of a prompt as one
        cluster.

        * ``en``, ``zh``: the mean of the ten primary dimensions, as in the authors' leaderboard; dimensions
          without a score are ignored. ``en_official`` (official rules) has no value if an image is missing,
          or if a reply stops the official program.
        * ``en/Attribute``, ``en/Attribute - Size``: a primary dimension and a sub-dimension.
        """
        found: dict[str, Metric] = {}
        of_language = groups(points(scores), "language", self.languages)
        for language in self.languages:
            primary = LANGUAGES[language].primary
            mine = of_language.get(language, [])
            options: dict[str, Any] = {"percent": True, "cluster": "index"}
            found[language] = mean_of_means(mine, "met", "primary", primary, **options)
            if self.is_official:
                made = [one.item.data["language"] for one in scores.items if one.image is not None]
                whole = made.count(language) == _PROMPTS * self.images_per_prompt
                stops = any(_stops(one) for one in scores.items if one.item.data["language"] == language)
                found[f"{language}_official"] = only_if(whole and not stops, found[language])
            found |= mean_by(mine, "met", "primary", prefix=f"{language}/", order=primary, **options)
            sub = [point for point in mine if point.keys["point"] != point.keys["primary"]]
            found |= mean_by(sub, "met", "point", prefix=f"{language}/", **options)
        return found

    def official_files(self, scores: Scores) -> dict[str, str]:
        """``samples_en.csv`` or ``samples_en_long.csv``, …: a row per image with a judge's reply."""
        files = {}
        for language in self.languages:
            rows: list[list[Any]] = [["index", "prompt", "testpoint", "output", "result_json", "img_path"]]
            for one in sorted(scores.items, key=lambda one: (one.item.data["index"], one.item.id)):
                data = one.item.data
                if data["language"] != language or _QUESTION not in one.replies:
                    continue
                text, shown = None, {"prompt": one.item.prompt, "testpoint": data["points"]}
                with suppress(Unparsed, *_UNREADABLE):
                    shown |= _stated(one.replies[_QUESTION], len(data["points"]))
                    text = json.dumps(shown, ensure_ascii=False, indent=4)
                path = portable_path(one.image or one.item.path)
                rows.append(
                    [data["index"], one.item.prompt, data["points"], one.replies[_QUESTION], text, path]
                )
            files[f"samples_{language}{self.suffix}.csv"] = csv_text(rows)
        return files

    def find_images(self, source: Path, items: Sequence[Item]) -> Mapping[str, Any] | None:
        """Finds images in the kit's and in the authors' layout: one language alone, or folders ``en`` and
        ``zh``."""
        from imageevalkit.benchmark.image_files import find_named

        alone = ["{item.path.stem}"] if len(self.languages) == 1 else []
        folder = f"{{language}}{self.suffix}"
        return find_named(source, items, ["{item.id}", f"{folder}/{{item.path.stem}}", *alone])


class UniGenBenchLong(UniGenBench):
    """The authors' long prompts, with test points of their own: no score compares with the short ones'."""

    name, title = "unigenbench-long", "UniGenBench, long prompts"
    version = "unigenbench-long-49d0bce"  # data are from the authors at this commit, prompts from the kit
    assets = (
        *asset_list(Path(__file__).with_name("assets_long.txt")),
        *(one for one in UniGenBench.assets if isinstance(one, PromptsAsset)),
    )
    suffix = "_long"


def _listed(header: str, names: Sequence[str], texts: Sequence[str]) -> str:
    pairs = zip(names, texts, strict=True)
    return "".join([header, *(f"\n{name}: {text}" for name, text in pairs), "\n」"])


def _stated(text: str, count: int) -> dict[str, Any]:
    """Returns the lists that the official program stores. Raises Unparsed if that program would ask again."""
    try:
        found = {name: _literal(name, text) for name in ("analysis", "score")}
        if any(len(part) != count for part in found.values()):
            raise Unparsed(f"not {count} analyses and scores", text)
    except _UNREADABLE:
        raise Unparsed("no lists of analyses and scores", text) from None
    return found


def _stops(one: ScoredItem) -> bool:
    """Returns whether the official program stops at a reply because it cannot write the reply to its file."""
    text = one.replies.get(_QUESTION, "")
    try:
        text.encode()
        if one.score is None:  # with a score, parse() has already written and read the lists
            json.dumps(_stated(text, len(one.item.data["points"])), ensure_ascii=False).encode()
    except Unparsed:
        return False
    except _UNREADABLE:
        return True
    return False


def _literal(tag: str, text: str) -> Any:
    """Returns the Python literal inside ``<tag>``. Raises ValueError without the tag, and ``literal_eval``'s
    errors."""
    found = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    if found is None:
        raise ValueError(f"no {tag}")
    return ast.literal_eval(found[1].strip())
