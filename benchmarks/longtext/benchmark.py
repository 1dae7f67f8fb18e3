"""LongText-Bench: long texts in images, 160 English and 160 Chinese prompts, four images each.

The score is how many of the expected words (en) or characters (zh) can be read in the image. The rules are those of the
official evaluator, quirks included: ``quirk`` comments name what a reader would otherwise mend, and with it change
published numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from imageevalkit.assets import asset_list
from imageevalkit.benchmark.contract import Answers, Benchmark, Sample, Scores
from imageevalkit.benchmark.question import (
    QWEN_VL_UTILS,
    Answer,
    Message,
    Picture,
    Question,
    measure,
    of_checkpoint,
)
from imageevalkit.cell.items import Item
from imageevalkit.cell.results import Metric, Score
from imageevalkit.metrics import groups, mean, mean_by

LANGUAGES = ("en", "zh")
_STEMS = {"en": "text_prompts", "zh": "text_prompts_zh"}
_PROMPT = "benchmarks/LongText/textbench/evaluate_text_reward.py::ImageEvaluator.qwen_prompt"
_QUESTION = "read the text"

_ACCENTED = "àâäéèêëîïôöùûüç"
_LETTERS = f"\u4e00-\u9fa5A-Za-z0-9{_ACCENTED}{_ACCENTED.upper()}"
_IGNORED = {"en": re.compile(rf"[^{_LETTERS}\s]"), "zh": re.compile(rf"[^{_LETTERS}]")}
# quirk: only the sentence with its full stop goes. Judges are told to answer without the stop, so that answer stays and
# counts as read text; so does the hallucination "addCriterion". (A second one is meant to go too, but the official
# clean-up overwrites its own result.)
_NO_TEXT = "No text recognized."


class LongText(Benchmark):
    """1,280 images; the two languages alternate, so that any first N of them cover both."""

    name = "longtext"
    version = "x-omni-2b8237b"  # the prompts and the metric are those of X-Omni-Team/X-Omni at this commit
    headline = LANGUAGES
    item_values = ("recall", "match", "total", "read")
    needs_all_items = "long texts weigh more in its scores"
    assets = asset_list(Path(__file__).with_name("assets.txt"))
    prompt_count, images_per_prompt = 320, 4
    # 7B gave the numbers published with the benchmark, 32B those of the official evaluation kit
    judge = "transformers:qwen2.5-vl-7b"
    official_judges = ("transformers:qwen2.5-vl-7b", "transformers:qwen2.5-vl-32b")
    takes = "reader"
    pixels = QWEN_VL_UTILS

    def samples(self) -> Iterable[Sample]:
        count = self.prompt_count // len(LANGUAGES)
        files = [self.read_jsonl(f"{_STEMS[language]}.jsonl", count) for language in LANGUAGES]
        for records in zip(*files, strict=True):
            for seed in range(1, self.images_per_prompt + 1):
                for language, record in zip(LANGUAGES, records, strict=True):
                    # official evaluators take the prompt id from the digits before the first underscore
                    file = f"{_STEMS[language]}/{record['prompt_id']:04d}_{seed}.jpg"
                    yield self.sample(record, language, file, seed)

    def sample(self, record: Mapping[str, Any], language: str, file: str, seed: int) -> Sample:
        """The sample of a prompt file's ``record``, whose image is ``file`` below ``images/``."""
        data = {key: record[key] for key in ("category", "length", "prompt_id")}
        data |= {"language": language, "expected": record["text"]}
        return Sample(f"images/{file}", record["prompt"], seed, data)

    @cached_property
    def prompts(self) -> Mapping[str, str]:
        return {_PROMPT: LongText().files().prompts()[_PROMPT]}

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        if not self.backend:
            return [measure(_QUESTION, image)]
        shown = Message("user", (image, self.prompts[_PROMPT]))
        return [Question(_QUESTION, (shown,), of_checkpoint(self.backend, 1024))]

    def parse(self, question: Question, answer: Answer) -> str:
        """The text that was read: an empty one is a score of 0, not a failure."""
        return (answer.text or "").replace(_NO_TEXT, "") if self.backend else answer.text or ""

    def score(self, item: Item, answers: Answers) -> Score:
        """Recall of the expected text in what was read, as multisets of units.

        Order is ignored and surplus units cost nothing. ``match`` of ``total`` expected units; ``read`` in all.
        """
        data, read = item.data, answers[_QUESTION].value
        expected = Counter(units(" ".join(data["expected"]), data["language"]))
        if not expected:
            raise ValueError(f"the expected text {data['expected']!r} holds nothing that can be compared")
        found = Counter(units(read.replace(_NO_TEXT, ""), data["language"]))
        match, total = (expected & found).total(), expected.total()
        return Score(
            {"recall": match / total, "match": match, "total": total, "read": found.total()},
            {key: data[key] for key in ("language", "category", "length", "prompt_id")},
            {"expected": "\n".join(data["expected"]), "read": read},
        )

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """Per language Σ match / Σ total (long texts weigh more): of all, by category and by length.

        ``en/precision`` is Σ match / Σ read: not official, it shows repetition. The images of one prompt share its
        text, and are one to an interval.
        """
        found = {language: Metric(None, 0) for language in LANGUAGES}
        for language, mine in groups(scores, "language", LANGUAGES).items():
            found[language] = mean(mine, "match", weight="total", cluster="prompt_id")
            found[f"{language}/precision"] = mean(mine, "match", weight="read", interval=False)
            for key in ("category", "length"):
                found |= mean_by(
                    mine, "match", key, weight="total", prefix=f"{language}/", cluster="prompt_id"
                )
        return found


def units(text: str, language: str) -> Sequence[str]:
    """The words (en, lower-cased) or characters (zh, case kept: a quirk) that are compared.

    Characters outside the white list vanish and join their neighbours ("Don't" is ``dont``); full-width
    letters and digits are outside it.
    """
    kept = _IGNORED[language].sub("", text)
    return kept.lower().split() if language == "en" else kept
