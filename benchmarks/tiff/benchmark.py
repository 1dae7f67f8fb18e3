"""TIIF-Bench (arXiv 2506.02161): prompts of 39 types, each in a short and a long wording, with yes/no
questions.

``quirk`` comments mark odd behaviour of the official program. A fix would change published numbers.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from imageevalkit.assets import asset_list
from imageevalkit.benchmark.contract import Answers, Benchmark, Sample, Scores, Settings, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, Question, ask
from imageevalkit.common.redaction import one_line
from imageevalkit.metrics import arithmetic_mean, groups, mean_by, mean_of_means, points, spread, weighted
from imageevalkit.store.items import Item
from imageevalkit.store.results import Metric, Score

WORDINGS = ("short", "long")
_ROWS = {"testmini": 277, "test": 2538}
_QUESTION = "questions"
_PROGRAM = "benchmarks/TIIF-Bench/eval/eval_with_vlm.py::"
_SYSTEM = f"{_PROGRAM}generate_with_prompt.messages[system]"
_TEMPLATES = tuple(f"{_PROGRAM}{name}" for name in ("raw_prompt", "raw_prompt_1", "raw_prompt_2"))
# quirk: "1. yes", "- yes" and "**Yes**" do not count as answers
_ANSWER = re.compile(r"(yes|no)\b", re.IGNORECASE)


def _crossed(firsts: Sequence[str], seconds: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{first}+{second}" for first in firsts for second in seconds)


# the order of the official lists; the last digit of a mean depends on it
_REASONING = ("numeracy", "comparison", "differentiation", "negation")
BASIC = {
    "attribute": ("shape+color", "color+texture", "texture+color", "shape+texture"),
    "relation": ("2d_spatial_relation", "3d_spatial_relation", "action+2d", "action+3d"),
    "reasoning": ("numeracy", "negation", "differentiation", "comparison"),
}
ADVANCED = {
    "attribute+relation": (
        "action+color",
        "action+texture",
        *_crossed(("color", "shape", "texture"), ("2d", "3d")),
    ),
    "attribute+reasoning": _crossed(_REASONING, ("color", "texture")),
    "relation+reasoning": _crossed(_REASONING, ("2d", "3d")),
    "text": ("text",),
    "style": ("style",),
}
REAL_WORLD = {"real_world": ("real_world",)}
GROUPS = {**BASIC, **ADVANCED, **REAL_WORLD}
TYPES = tuple(kind for kinds in GROUPS.values() for kind in kinds)
_NAMED = {
    **GROUPS,
    "basic": tuple(kind for kinds in BASIC.values() for kind in kinds),
    "advanced": tuple(kind for kinds in ADVANCED.values() for kind in kinds),
}

_LAYOUTS = (
    "{item.id}",
    "{type}_prompts/{wording}_description/{row}",
    "{type}/{item.model}/{wording}_description/{row}",
)


@dataclass(frozen=True)
class TiffSettings(Settings):
    """``split`` selects 277 prompts ("testmini") or 2,538 ("test"); ``wording`` selects one wording or
    both."""

    split: Literal["testmini", "test"] = field(default="testmini", metadata={"decides": True})
    wording: Literal["both", "short", "long"] = "both"


class Tiff(Benchmark):
    """One image per wording of each prompt. The types are interleaved in proportion to their sizes."""

    name, title = "tiff", "TIIF-Bench"
    aliases = ("tiif",)
    version = "tiif-85b5e15"  # data and prompts are from the kit at this commit
    item_values = ("accuracy",)
    needs_all_items = "it scores questions, and prompts have different numbers of them"
    assets = asset_list(Path(__file__).with_name("assets.txt"))
    judge = "openai:gpt-5"
    # the first is the kit's judge, the others are the authors'
    official_judges = ("openai:gpt-5", "openai:gpt-4o", "vllm:Qwen/Qwen2.5-VL-72B-Instruct")
    has_corrected_rules = True
    settings_class = TiffSettings

    settings: TiffSettings

    def __init__(self, settings: TiffSettings | None = None, judge: str = "") -> None:
        super().__init__(settings, judge)
        self.wordings = WORDINGS if self.settings.wording == "both" else (self.settings.wording,)
        self.prompt_count, self.images_per_prompt = _ROWS[self.settings.split], len(self.wordings)
        self.headline = self.wordings
        # the official program retries without limit; corrected rules repeat the same prompt, which rarely
        # helps
        self.tries = 20 if self.is_official else 3

    def samples(self) -> Iterable[Sample]:
        split = self.settings.split
        of_type = {kind: list(self._prompts(split, kind)) for kind in sorted(TYPES)}
        # testmini uses the kit's paths; the numbers of "test" differ, so it has its own folder
        folder = "" if split == "testmini" else f"{split}/"
        for kind, n, prompt, asked in spread(of_type.values()):
            for wording in self.wordings:
                data = {"type": kind, "wording": wording, "row": n, **asked}
                file = f"{folder}{kind}_prompts/{wording}_description/{n}.png"
                yield Sample(file, prompt[f"{wording}_description"], data=data)

    def _prompts(
        self, split: str, kind: str
    ) -> Iterable[tuple[str, int, Mapping[str, str], Mapping[str, Any]]]:
        prompts = self.read_jsonl(f"{split}_prompts/{kind}_prompts.jsonl")
        asked = self.read_jsonl(f"{split}_eval_prompts/{kind}_eval_prompts.jsonl", len(prompts))
        # rows match by line number; the field "corrspond_idx" is ignored
        for n, (prompt, row) in enumerate(zip(prompts, asked, strict=True)):
            yield kind, n, prompt, {"questions": row["yn_question_list"], "expected": row["yn_answer_list"]}

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        asked = item.data["questions"]
        # the official program draws a template per attempt; here item and attempt seed the draw, so it
        # repeats
        draw = random.Random(f"{item.id}/{answers.attempt(_QUESTION)}")
        template = draw.choice(_TEMPLATES) if self.is_official else _TEMPLATES[0]
        text = self.prompts[template].replace(
            "##YNQuestions##", "\n".join(question.strip() for question in asked)
        )
        # the official program declares every file a PNG
        picture = image._replace(media_type="image/png") if self.is_official else image
        # gpt-5 accepts no other temperature than 1
        temperature = 1.0 if self.is_official or self.judge.startswith(Tiff.judge) else 0.0
        return [
            ask(
                _QUESTION,
                text,
                picture,
                system=self.prompts[_SYSTEM],
                max_tokens=None,
                temperature=temperature,
                data=len(asked),
                variant=template.removeprefix(_PROGRAM),
                # the official program reads only the content, and asks again if it is empty
                accepts="any" if self.is_official else "ended",
            )
        ]

    def parse(self, question: Question, answer: Answer) -> list[str]:
        """Returns "yes" or "no" for each line that begins with it. Raises Unparsed unless the count
        matches."""
        lines = (line.strip() for line in (answer.text or "").split("\n"))
        found = [match[1].lower() for line in lines if (match := _ANSWER.match(line))]
        if len(found) != question.data:
            raise Unparsed(
                f"{len(found)} answers to {question.data} questions: '{one_line(answer.text or '', 100)}'"
            )
        return found

    def score(self, item: Item, answers: Answers) -> Score:
        """Returns the share of right answers; each question is a point. The detail names the drawn
        ``template``."""
        data, answer = item.data, answers[_QUESTION]
        right = [
            int(said == expected.strip().lower())
            for said, expected in zip(answer.value, data["expected"], strict=True)
        ]
        return Score(
            {"accuracy": sum(right) / len(right)},
            {key: data[key] for key in ("type", "wording")},
            {**dict(zip(data["questions"], answer.value, strict=True)), "template": answer.question.variant},
            [Score({"right": one}) for one in right],
        )

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """Returns the metrics by name, 0-1, for each wording ("short" stands for both):

        * ``short/type/<type>``: right answers / questions. With both wordings, ``mean_accuracy`` is the plain
          mean of all of these.
        * ``short/attribute``, ``short/text``, …: the mean over the types of a group that have a score;
          ``short/basic`` and ``short/advanced``: the mean over their types.
        * ``short``: the mean of the nine groups.

        Official rules round accuracies to 4 decimals before they take means (quirk).
        """
        found: dict[str, Metric] = {wording: Metric(None, 0) for wording in self.wordings}
        for wording, mine in groups(points(scores), "wording", self.wordings).items():
            types = mean_by(mine, "right", "type", order=TYPES)
            accuracy = {kind: metric.value or 0.0 for kind, metric in types.items()}
            if self.is_official:
                accuracy = {kind: float(f"{value:.4f}") for kind, value in accuracy.items()}
            kinds_of = {name: [kind for kind in kinds if kind in types] for name, kinds in _NAMED.items()}
            values = {
                name: arithmetic_mean(accuracy[kind] for kind in kinds)
                for name, kinds in kinds_of.items()
                if kinds
            }
            nine = [name for name in GROUPS if name in values]
            shares = {kind: 1 / len(nine) / len(kinds_of[name]) for name in nine for kind in kinds_of[name]}
            value = arithmetic_mean(values[name] for name in nine)
            found[wording] = replace(weighted(mine, "right", "type", shares), value=value)
            for name, value in values.items():
                of_group = [score for score in mine if score.keys["type"] in kinds_of[name]]
                metric = mean_of_means(of_group, "right", "type", kinds_of[name])
                found[f"{wording}/{name}"] = replace(metric, value=value)
            found |= {f"{wording}/type/{kind}": metric for kind, metric in types.items()}
        if len(self.wordings) == 1:
            return found
        cells = [metric.value for name, metric in found.items() if "/type/" in name]
        known = [value for value in cells if value is not None]
        return found | {"mean_accuracy": Metric(arithmetic_mean(known) if known else None, len(scores))}

    def official_files(self, scores: Scores) -> dict[str, str]:
        """``<type>/<wording>/<row>.json``, the input of the official programs that compute the tables."""
        files = {}
        for one in scores.items:
            if one.score is None:
                continue
            data, answer = one.item.data, one.answers[_QUESTION]
            record = {
                "attribute": data["type"],
                "desc": f"{data['wording']}_description",
                "jsonl_file": f"{data['type']}_eval_prompts.jsonl",
                "line_idx": data["row"],
                "questions": data["questions"],
                "gt_answers": data["expected"],
                "model_pred": answer.value,
                "model_output": answer.text,
            }
            name = f"{data['type']}/{data['wording']}/{data['row']}.json"
            files[name] = json.dumps(record, ensure_ascii=False, indent=2)
        return files

    def find_images(self, source: Path, items: Sequence[Item]) -> Mapping[str, Any] | None:
        """Finds images in the kit's layout and in the authors' layout, for both splits."""
        from imageevalkit.benchmark.image_files import find_named

        return find_named(source, items, _LAYOUTS)
