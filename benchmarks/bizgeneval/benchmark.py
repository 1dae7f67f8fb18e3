"""BizGenEval (arXiv 2603.25732): 400 prompts for business documents, each with 20 statements about its image.

A judge decides all statements at once. ``quirk`` comments mark odd behaviour of the official program. A fix
would change published numbers.
"""

from __future__ import annotations

import ast
import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imageevalkit.assets import asset_list
from imageevalkit.benchmark.contract import Answers, Benchmark, Sample, ScoredItem, Scores, Settings, Unparsed
from imageevalkit.benchmark.question import Accepts, Answer, Message, Picture, Question, Sampling
from imageevalkit.common.text import csv_text
from imageevalkit.metrics import grouped, groups, mean_by, mean_of_means, spread
from imageevalkit.store.items import Item
from imageevalkit.store.results import Metric, Score

DOMAINS = ("slides", "webpage", "poster", "chart", "scientific_figure")
DIMENSIONS = ("layout", "attribute", "text", "knowledge")
PENALTIES = {"hard": 0.2, "easy": 0.2, "all": 0.1}
"""The penalty of an error, by the part of the statements: 10 statements are hard, 10 are easy."""
VALUES = (*PENALTIES, "accuracy")
_COUNT = 20
_RATIOS = {"16:9": 16 / 9, "9:16": 9 / 16, "4:3": 4 / 3, "3:4": 3 / 4, "3:2": 3 / 2, "2:3": 2 / 3}
_TEXT = "evaluation/evaluate_prompt.py::{}"
# the system text and the template of each kind of statements; charts and figures have a stricter text
_TEXTS = {
    "attribute": ("ATTRIBUTE_PROMPT_SYSTEM_V2", "ATTRIBUTE_USER_TEMPLATE_V2"),
    "layout": ("LAYOUT_PROMPT_SYSTEM_V1", "LAYOUT_USER_TEMPLATE"),
    "text": ("TEXT_EVALUATION_PROMPT_SYSTEM_V2", "TEXT_EVALUATION_USER_TEMPLATE"),
    "text1": ("TEXT_EVALUATION_PROMPT_SYSTEM_V1", "TEXT_EVALUATION_USER_TEMPLATE"),
    "knowledge": ("KNOWLEDGE_PROMPT_SYSTEM_V1", "KNOWLEDGE_USER_TEMPLATE_V1"),
}
_RESULT = re.compile(r'"result"\s*:\s*(true|false|True|False|"true"|"false"|1|0)')
_UNREADABLE = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError)


@dataclass(frozen=True)
class BizGenEvalSettings(Settings):
    """``max_pixels`` is the largest width × height to ask of a model; 0: the model's own size. ``stride``: the sides
    are multiples of it. The authors' programs have 1,048,576 and 16 for SD3.5, 4,194,304 and 16 or 8 for FLUX.
    """

    max_pixels: int = field(default=2048 * 2048, metadata={"decides": True})
    stride: int = field(default=32, metadata={"decides": True})

    def __post_init__(self) -> None:
        if self.stride < 1 or (self.max_pixels and self.max_pixels < self.stride**2):
            raise ValueError("stride is at least 1, and max_pixels at least its square, or 0")


class BizGenEval(Benchmark):
    """Every wrong statement lowers the score of an image, so five wrong ones of ten leave nothing."""

    name, title = "bizgeneval", "BizGenEval"
    version = "bizgeneval-39e1bdc"  # data and rules are from microsoft/BizGenEval at this commit
    assets = asset_list(Path(__file__).with_name("assets.txt"))
    prompt_count = 400
    judge = "openai:gemini-3-flash-preview"
    headline = ("hard", "easy")
    item_values = VALUES
    hub_dataset = "microsoft/BizGenEval"
    has_corrected_rules = True
    settings_class = BizGenEvalSettings

    settings: BizGenEvalSettings

    def __init__(self, settings: BizGenEvalSettings | None = None, judge: str = "") -> None:
        super().__init__(settings, judge)
        self.tries = 1 if self.is_official else 3
        if self.is_official:
            self.official_headline = ("hard_official", "easy_official")

    def samples(self) -> Iterable[Sample]:
        rows = self.read_jsonl("bizgeneval.jsonl", self.prompt_count)
        for row in spread(grouped(rows, lambda row: (row["domain"], row["dimension"])).values()):
            name = f"{row['domain']}_{row['dimension']}_{row['id']}"
            size = size_of(row, self.settings) if self.settings.max_pixels else None
            yield Sample(f"images/{name}.png", row["prompt"], data={"name": name, **row}, size=size)

    def find_images(self, source: Path, items: Sequence[Item]) -> Mapping[str, Any] | None:
        """Finds images by the official names."""
        from imageevalkit.benchmark.image_files import find_named

        return find_named(source, items, ["{name}"])

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        system, template = (self.prompts[_TEXT.format(name)] for name in _TEXTS[item.data["eval_tag"]])
        listed = "\n".join(f"{n}. {text}" for n, text in enumerate(item.data["questions"], 1))
        messages = (
            Message("system", (system,)),
            Message("user", (template.format(checklist=listed), image)),
        )
        # the thinking level of the official program, in the words of Gemini's OpenAI endpoint
        extra = {"reasoning_effort": "minimal"} if "gemini" in self.judge else {}
        accepts: Accepts = "text" if self.is_official else "ended"
        yield Question("statements", messages, Sampling(None, 0.0, extra=extra), accepts=accepts)

    def parse(self, question: Question, answer: Answer) -> list[bool]:
        """Returns whether each of the 20 statements is right.

        By official rules a missing or unreadable verdict means wrong, also the numbers 1 and 0 (quirk).
        Corrected rules need a verdict on every statement.
        """
        reply = answer.text or ""
        found = records_in(reply, self.is_official)
        if not isinstance(found, Mapping) or not found:
            raise Unparsed("no JSON object of verdicts", reply)
        records = [found.get(str(n)) for n in range(1, _COUNT + 1)]
        given = [record.get("result") if isinstance(record, dict) else None for record in records]
        if self.is_official:
            return [isinstance(one, str | bool) and _verdict(one) is True for one in given]
        verdicts = [_verdict(one) for one in given]
        if None in verdicts:
            raise Unparsed(f"no verdict on statement {verdicts.index(None) + 1}", reply)
        return [bool(one) for one in verdicts]

    def score(self, item: Item, answers: Answers) -> Score:
        """Returns 1 - penalty · errors of the hard, easy and all statements, at least 0, and the share right."""
        right, data = answers["statements"].value, item.data
        parts = {"hard": data["hard_qidxs"], "easy": data["easy_qidxs"], "all": range(1, _COUNT + 1)}
        values = {
            part: max(0.0, 1.0 - PENALTIES[part] * sum(not right[n - 1] for n in numbers))
            for part, numbers in parts.items()
        }
        return Score(
            {**values, "accuracy": sum(right) / _COUNT},
            {"domain": data["domain"], "dimension": data["dimension"]},
            {"wrong": [n for n, one in enumerate(right, 1) if not one], "judge": answers["statements"].text},
        )

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """Returns the metrics in percent; ``n`` counts images.

        * ``hard``, ``easy``, ``all``, ``accuracy``: the mean of the domains. ``hard/slides``, ``hard/layout``, …:
          of a domain or dimension. ``hard/dimensions``: the mean of the dimensions.
        * ``hard_official``, ``easy_official``: a reply without verdicts counts as 20 errors (quirk).
        """
        found = {}
        for value in VALUES:
            found[value] = mean_of_means(scores, value, "domain", DOMAINS, percent=True)
            found[f"{value}/dimensions"] = mean_of_means(scores, value, "dimension", DIMENSIONS, percent=True)
            for key, order in (("domain", DOMAINS), ("dimension", DIMENSIONS)):
                found |= mean_by(scores, value, key, prefix=f"{value}/", order=order, percent=True)
        if self.is_official:
            wrong = [_nothing(one.item) for one in scores.items if one.image and not one.score]
            for value in ("hard", "easy"):
                whole = mean_of_means([*scores, *wrong], value, "domain", DOMAINS, percent=True)
                found[f"{value}_official"] = whole
        return found

    def official_files(self, scores: Scores) -> dict[str, str]:
        """``<domain>_<dimension>_<id>.json``: the verdicts on an image; ``summary_by_….csv``: the means, 0-1."""
        files = {
            f"{one.item.data['name']}.json": json.dumps(_verdicts_file(one), indent=2)
            for one in scores.items
            if one.score
        }
        for key, order in (("domain", DOMAINS), ("dimension", DIMENSIONS)):
            rows = [["Split", *(name.replace("_", " ").title() for name in order), "Average"]]
            for value in ("easy", "hard", "all"):
                means = {  # exact, as in the official program: the last digit depends on it
                    name: statistics.mean(score.values[value] for score in part)
                    for name, part in groups(scores, key, order).items()
                }
                shown = (f"{means[name]:.4f}" if name in means else "" for name in order)
                rows.append([value, *shown, f"{statistics.mean(means.values()):.4f}" if means else ""])
            files[f"summary_by_{key}.csv"] = csv_text(rows, "\r\n")
        return files


def size_of(row: Mapping[str, Any], settings: BizGenEvalSettings) -> tuple[int, int]:
    """Returns the (width, height) that the official program asks for: that of the document, within the limits.

    A prompt without a document has the largest size of its aspect ratio, or a square.
    """
    stride, most = settings.stride, settings.max_pixels
    if row["reference_image_wh"]:
        width, height = map(int, row["reference_image_wh"].split("x"))
    else:
        ratio = _RATIOS.get(row["aspect_ratio"], 1.0)
        height = int((most / ratio) ** 0.5)
        width = int(height * ratio)
    if width * height > most:
        scale = (most / (width * height)) ** 0.5
        width, height = max(1, int(width * scale)), max(1, int(height * scale))
    width, height = (max(stride, round(side / stride) * stride) for side in (width, height))
    while width * height > most and max(width, height) > stride:
        if width >= height:
            width -= stride
        else:
            height -= stride
    return width, height


def records_in(reply: str, is_official: bool) -> Any:
    """Returns the verdicts in a reply by number; None if there are none."""
    text = reply.strip()
    if text.startswith("```"):
        text = re.sub(r"\s*```\s*$", "", re.sub(r"^```(?:json)?\s*", "", text, flags=re.IGNORECASE)).strip()
    inner = re.search(r"\{.*\}", text, re.DOTALL)
    part = inner[0].strip() if inner else text
    words = {"True": "true", "False": "false", "None": "null"}
    as_json = re.sub(r"\b(True|False|None)\b", lambda found: words[found[1]], part)
    for candidate in (text, part, as_json):
        with suppress(*_UNREADABLE):
            return json.loads(candidate)
    as_python = re.sub(r"\bnull\b", "None", part)
    for word in ("True", "False"):
        as_python = re.sub(rf"\b{word}\b", word, as_python, flags=re.IGNORECASE)
    with suppress(*_UNREADABLE):
        return ast.literal_eval(as_python)
    # quirk: of a damaged object the first 20 verdicts count in their order, whatever their numbers are
    verdicts = _RESULT.findall(reply)
    if is_official and len(verdicts) >= _COUNT:
        return {str(n): {"result": one.strip('"')} for n, one in enumerate(verdicts[:_COUNT], 1)}
    return None


def _verdict(value: Any) -> bool | None:
    text = str(value).strip().lower() if isinstance(value, str | bool | int) else ""
    return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(text)


def _nothing(item: Item) -> Score:
    keys = {"domain": item.data["domain"], "dimension": item.data["dimension"]}
    return Score(dict.fromkeys(VALUES, 0.0), keys, item=item.id)


def _verdicts_file(one: ScoredItem) -> dict[str, Any]:
    """Returns the content of the official program's file about an image."""
    data, right = one.item.data, one.answers["statements"].value
    found = records_in(one.replies["statements"], True)
    meta = {}
    for n, (text, verdict) in enumerate(zip(data["questions"], right, strict=True), 1):
        record = found.get(str(n))
        is_there = isinstance(record, dict)
        reason = record.get("reason", "") if is_there else "missing_from_output"
        meta[str(n)] = {"result": verdict, "raw_description": text, "reason": reason}
    accuracy = sum(right) / _COUNT
    return {
        "meta_info": meta,
        "prompt": data["prompt"],
        "accuracy": accuracy,
        "is_correct": accuracy == 1,
        "n_questions": _COUNT,
    }
