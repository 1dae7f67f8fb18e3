"""LongText-Bench: long texts in images, 160 English and 160 Chinese prompts, four images each.

The score is the share of the expected words (en) or characters (zh) that the evaluator reads in the image.
The rules are the official ones. ``quirk`` comments mark odd behaviour of the official program; a fix would
change published numbers.
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
from imageevalkit.metrics import groups, mean, mean_by
from imageevalkit.store.items import Item
from imageevalkit.store.results import Metric, Score

LANGUAGES = ("en", "zh")
_STEMS = {"en": "text_prompts", "zh": "text_prompts_zh"}
_PROMPT = "benchmarks/LongText/textbench/evaluate_text_reward.py::ImageEvaluator.qwen_prompt"
_QUESTION = "read the text"

_ACCENTED = "àâäéèêëîïôöùûüç"
_LETTERS = f"\u4e00-\u9fa5A-Za-z0-9{_ACCENTED}{_ACCENTED.upper()}"
_IGNORED = {"en": re.compile(rf"[^{_LETTERS}\s]"), "zh": re.compile(rf"[^{_LETTERS}]")}
# quirk: only the sentence with its full stop is removed. The prompt tells judges to answer without the stop,
# so their answer stays and counts as read text. So does the hallucination "addCriterion": the official
# clean-up means to remove it, but overwrites its own result.
_NO_TEXT = "No text recognized."


class LongText(Benchmark):
    """1,280 images. The two languages alternate, so any first N images cover both."""

    name, title = "longtext", "LongText-Bench"
    version = "x-omni-2b8237b"  # prompts and metric are from X-Omni-Team/X-Omni at this commit
    headline = LANGUAGES
    item_values = ("recall", "match", "total", "read")
    needs_all_items = "long texts weigh more in its scores"
    assets = asset_list(Path(__file__).with_name("assets.txt"))
    prompt_count, images_per_prompt = 320, 4
    # the benchmark's published numbers come from 7B, the official evaluation kit's from 32B
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
                    # official evaluators read the prompt id from the digits before the first underscore
                    file = f"{_STEMS[language]}/{record['prompt_id']:04d}_{seed}.jpg"
                    yield self.sample(record, language, file, seed)

    def sample(self, record: Mapping[str, Any], language: str, file: str, seed: int) -> Sample:
        """Returns the sample for a ``record`` of a prompt file; its image is ``images/<file>``."""
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
        """Returns the text that the evaluator read. An empty text is valid and scores 0."""
        return (answer.text or "").replace(_NO_TEXT, "") if self.backend else answer.text or ""

    def score(self, item: Item, answers: Answers) -> Score:
        """Returns the recall of the expected text, computed on multisets of units.

        Order is ignored and surplus units cost nothing. The evaluator read ``match`` of the ``total``
        expected units, and ``read`` units in all.
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
        """Returns Σ match / Σ total (long texts weigh more) by language, and within it by category and by
        length.

        ``en/precision`` is Σ match / Σ read; it is not official and reveals repetition. The images of a
        prompt share its text, so confidence intervals treat them as one cluster.
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
    """Returns the units to compare: words (en, lower-cased) or characters (zh, case kept: a quirk).

    Characters outside the allow list are removed and their neighbours join ("Don't" becomes ``dont``).
    Full-width letters and digits are outside the list.
    """
    kept = _IGNORED[language].sub("", text)
    return kept.lower().split() if language == "en" else kept
