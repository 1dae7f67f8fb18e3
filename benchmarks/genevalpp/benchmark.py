"""GenEval++ (arXiv 2508.09987): 280 prompts about counts, colours, sizes and places, judged right or wrong.

``quirk`` comments mark odd behaviour of the official program. A fix would change published numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from imageevalkit.assets import asset_list
from imageevalkit.benchmark.contract import Answers, Benchmark, Sample, ScoredItem, Scores, Settings, Unparsed
from imageevalkit.benchmark.question import (
    PILLOW,
    Accepts,
    Answer,
    Encoding,
    Picture,
    PixelRule,
    Question,
    ask,
)
from imageevalkit.metrics import grouped, mean, mean_by, mean_of_means, spread
from imageevalkit.store.items import Item
from imageevalkit.store.results import Metric, Score

TAGS = (
    *("color_attr", "spatial_count_attr", "color_spatial_attr", "color_count_attr"),
    *("multi_object_count_attr", "size_spatial_attr", "counting"),
)
_SYSTEM = "test_scripts/Eval-gpt-4.1-geneval++.py::SYSTEM_PROMPT"
_PINNED = "openai:gpt-4.1-2025-04-14"
_OBJECT = re.compile(r"\{.*\}", re.DOTALL)
_VERDICTS = {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "false": 0}
_CORRECTED = PixelRule("genevalpp", turned=True, on_white=("RGBA", "LA"))


class GenEvalPlusPlus(Benchmark):
    """The judge sees the prompt, a checklist of what it demands, and the image; one error makes it wrong."""

    name, title = "genevalpp", "GenEval++"
    version = "genevalpp-28f36d7"  # prompts and rules are from yejy53/Echo-4o at this commit
    assets = asset_list(Path(__file__).with_name("assets.txt"))
    prompt_count = 280
    judge = "openai:gpt-4.1"
    official_judges = (judge, _PINNED)
    headline = ("overall",)
    official_headline = ("overall_official",)
    item_values = ("correct",)
    tries = 3
    has_corrected_rules = True

    def __init__(self, settings: Settings | None = None, judge: str = "") -> None:
        super().__init__(settings, judge)
        if not (judge or self.is_official):
            self.judge = _PINNED

    def samples(self) -> Iterable[Sample]:
        rows = enumerate(self.read_jsonl("Geneval++.jsonl", self.prompt_count), 1)
        for number, row in spread(grouped(rows, lambda one: one[1]["tag"]).values()):
            yield Sample(f"images/{number}.png", row["prompt"], data={"number": number, **row})

    def find_images(self, source: Path, items: Sequence[Item]) -> Mapping[str, Any] | None:
        """Finds images by the number of the prompt, counted from 1."""
        from imageevalkit.benchmark.image_files import find_named

        return find_named(source, items, ["{number}"])

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        shown, encoding = (PILLOW, "JPEG") if self.is_official else (_CORRECTED, "PNG")
        text = (
            f"Instruction:\n{item.data['prompt'].strip()}\n\nExpectation checklist:\n{checklist(item.data)}"
        )
        # the official program reads only the content of a reply
        accepts: Accepts = "text" if self.is_official else "ended"
        yield ask(
            "verdict",
            text,
            image._replace(pixels=shown, encoding=Encoding(encoding)),
            system=self.prompts[_SYSTEM],
            max_tokens=200 if self.is_official else 1000,  # quirk: a long reason does not fit, and is cut
            accepts=accepts,
        )

    def parse(self, question: Question, answer: Answer) -> int:
        """Returns 1 if the image is right, else 0.

        By official rules every verdict but 1 and true is wrong, and so is none (quirk). Corrected rules take 1,
        0, true and false, also as texts.
        """
        reply = answer.text or ""
        found = _OBJECT.search(reply)
        try:
            verdict = json.loads(found[0] if found else "").get("correct")
        except (ValueError, RecursionError):
            raise Unparsed("no JSON object", reply) from None
        if self.is_official:
            return int(verdict == 1)
        value = _VERDICTS.get(str(verdict).strip().lower())
        if value is None:
            raise Unparsed("no verdict of 0 or 1", reply)
        return value

    def score(self, item: Item, answers: Answers) -> Score:
        answer = answers["verdict"]
        return Score({"correct": answer.value}, {"tag": item.data["tag"]}, {"judge": answer.text})

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """Returns the share of right images, 0-1; ``n`` counts images.

        * ``overall``: the mean of the tags. ``accuracy``: of all images. ``counting``, …: of a tag.
        * ``overall_official``: images without a verdict count as wrong (quirk), and the share of each tag and
          their mean are rounded to 4 decimals.
        """
        found = {
            "overall": mean_of_means(scores, "correct", "tag", TAGS),
            "accuracy": mean(scores, "correct"),
            **mean_by(scores, "correct", "tag", order=TAGS),
        }
        if self.is_official:
            wrong = [
                Score({"correct": 0}, {"tag": one.item.data["tag"]}, item=one.item.id)
                for one in scores.items
                if not one.score
            ]
            whole = mean_of_means([*scores, *wrong], "correct", "tag", TAGS)
            value = _official(scores.items)["overall_score_mean_of_tags"] if scores.items else None
            found["overall_official"] = replace(whole, value=value)
        return found

    def official_files(self, scores: Scores) -> dict[str, str]:
        """``Output.json``: the verdicts in the order of the prompts, and the official shares."""
        return {"Output.json": json.dumps(_official(scores.items), indent=2)}


def checklist(row: Mapping[str, Any]) -> str:
    """Returns what the judge must check: a line for each object, and one for each number that is too many."""
    lines = []
    for one in row.get("include", []):
        # quirk: colour and size come before the number, and every plural has an s
        words = [f"{one['color']}-colored"] if "color" in one else []
        words += [one["size"]] if "size" in one else []
        words += [str(one["count"]), one["class"] + "s" * (one["count"] > 1)]
        place = f"located in the {one['region']} part of" if "region" in one else "present in"
        lines.append(f"- {' '.join(words)} {place} the image.")
    for one in row.get("exclude", []):
        lines.append(
            f"- No more than {one['count'] - 1} {one['class']}{'s' * (one['count'] > 1)} should appear."
        )
    return "\n".join(["This image should contain:", *lines])


def _official(items: Sequence[ScoredItem]) -> dict[str, Any]:
    """Returns the content of the official program's file."""
    ordered = sorted(items, key=lambda one: one.item.data["number"])
    of_tag = grouped(ordered, lambda one: one.item.data["tag"])

    def share(of: Sequence[ScoredItem]) -> float:
        return round(sum(one.score.values["correct"] for one in of if one.score) / len(of), 4)

    shares = {tag: share(of) for tag, of in of_tag.items()}
    return {
        "overall_results": [_record(one) for one in ordered],
        "tag_accuracy": shares,
        "overall_score_mean_of_tags": round(sum(shares.values()) / len(shares), 4),
        "overall_accuracy_all_samples": share(ordered),
    }


def _record(one: ScoredItem) -> dict[str, Any]:
    data, found = one.item.data, _OBJECT.search(one.replies.get("verdict", ""))
    result = {"correct": -1 if one.image else 0, "reason": one.reason}
    if one.score and found:
        result = json.loads(found[0])
    return {"id": data["number"], "tag": data["tag"], "prompt": data["prompt"].strip(), "result": result}
