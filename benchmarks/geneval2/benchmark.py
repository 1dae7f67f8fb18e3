"""GenEval 2 for the evaluate engine: one run of its judge gives all four methods."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.geneval2.answers import YES, accepted, soft_score, without_bare_space
from benchmarks.geneval2.metric import METHODS, PROMPTS, SCALE, Scored, metrics, official_name
from benchmarks.geneval2.official import IMAGE_FILEPATHS, filepaths_text, score_lists_text
from benchmarks.geneval2.token_ids import official_ids
from eval_models.judge.benchmark import JudgedBenchmark
from eval_models.judge.registry import choose
from imageevalkit import judge_prompts
from imageevalkit.cell.items import Item
from imageevalkit.cell.results import Metric
from imageevalkit.errors import CellFailure
from imageevalkit.evaluation.benchmark import Judged, Score, Unparsed
from imageevalkit.evaluation.question import TRANSFORMERS, Message, Picture, Question, Reply, Sampling

DEFAULT_JUDGE = "qwen3-vl-8b"
VERSION = "facebookresearch-a6e82d2"  # data, prompts and rules are those of facebookresearch/GenEval2 there

_VQASCORE = "vqascore"
_SOFT_TIFA_PROMPT = "evaluation.py::soft_tifa"
_TIFA_PROMPT = "evaluation.py::tifa"
_VQASCORE_PROMPT = "evaluation.py::vqa_score"


def check_judge(judge: str) -> str:
    """The full name of the judge to use; ``""`` is the official one. Raises UserError for one that there is not."""
    return choose(judge or DEFAULT_JUDGE).full_name


def make(judge: str) -> GenEval2Benchmark:
    """The benchmark with ``judge``. Raises CellFailure when the official prompts are not there."""
    return GenEval2Benchmark(judge, judge_prompts.load("geneval2"))


class GenEval2Benchmark(JudgedBenchmark):
    """Asks the questions of a prompt about its image, and once whether the image shows the prompt."""

    name = "geneval2"
    version = VERSION
    headline = ("soft_tifa_gm",)
    official_headline = (official_name("soft_tifa_gm"),)
    official = (f"transformers:{DEFAULT_JUDGE}",)
    pixels = TRANSFORMERS

    def __init__(self, judge: str, prompts: Mapping[str, str]) -> None:
        if prompts[_SOFT_TIFA_PROMPT] != prompts[_TIFA_PROMPT]:
            raise CellFailure(
                "benchmark geneval2: the judge prompts of TIFA and Soft-TIFA differ, but one reply serves both"
            )
        super().__init__(judge, prompts)

    def questions(self, item: Item, image: Picture) -> Sequence[Question]:
        vqa = self.prompts[_SOFT_TIFA_PROMPT]
        asked = [
            (_atom(n), vqa.format(question), accepted(question, answer))
            for n, (question, answer) in enumerate(item.data["vqa_list"])
        ]
        asked.append((_VQASCORE, self.prompts[_VQASCORE_PROMPT].format(item.data["prompt"]), YES))
        return [
            Question(
                item.id,
                name,
                (Message("user", (image._replace(pixels=self.pixels), text)),),
                Sampling(1, temperature=0.0),
                wanted,
                official_ids(wanted) if self.is_official else (),
            )
            for name, text, wanted in asked
        ]

    def parse(self, question: Question, reply: Reply) -> dict[str, Any]:
        """Soft score ``p``, ``p_corrected`` without the bare space, and whether the likeliest token is right."""
        probabilities = reply.probabilities
        if probabilities is None:
            raise Unparsed("the judge gave no probabilities")
        for string in question.wanted:
            if not math.isfinite(probabilities.get(string, math.nan)):
                raise Unparsed(f"the judge gave no probability of {string!r}")
        return {
            "p": soft_score(probabilities, question.wanted),
            "p_corrected": soft_score(probabilities, without_bare_space(question.wanted)),
            "argmax": reply.text,
            # quirks Q3 and Q4: the leading space counts, a bare space is wrong, only the reply is lower-cased
            "correct": reply.text.lower() in question.wanted,
            "outside": reply.outside,
        }

    def score(self, item: Item, parsed: Mapping[str, Any], replies: Mapping[str, Reply]) -> Score:
        """The four methods' scores of the image, 0-100; the replies to read."""
        scored = _scored(item, parsed)
        detail = {
            question: f"{answer}: {_shown(parsed[_atom(n)])}"
            for n, (question, answer) in enumerate(item.data["vqa_list"])
        }
        return Score(
            item=item.id,
            values={name: SCALE * method(scored) for name, method in METHODS.items()},
            keys={"atomicity": scored.atomicity},
            detail={**detail, "VQAScore": f"Yes: {_shown(parsed[_VQASCORE])}"},
        )

    def aggregate(self, judged: Sequence[Judged]) -> dict[str, Metric]:
        """The metrics of :func:`benchmarks.geneval2.metric.metrics` over the prompts that have a score."""
        return metrics(_all_scored(judged))

    def notes(self, judged: Sequence[Judged]) -> list[str]:
        """How much probability was outside what the judge's backend could see, if it was not all of it."""
        unseen = [mass for one in _all_scored(judged) for mass in one.unseen]
        if not any(unseen):
            return []
        return [
            "the judge's endpoint shows only the likeliest tokens: a mean "
            f"{statistics.fmean(unseen):.2%} of the probability, and at most {max(unseen):.2%}, was outside of them "
            "and counts as wrong; the …_upper metrics count all of it as right"
        ]

    def official_files(self, judged: Sequence[Judged]) -> dict[str, str]:
        """The images by prompt and, when no prompt lacks its score, the official output of each method.

        Score lists hold no prompts: with a gap, all that follow would belong to other prompts.
        """
        in_file_order = sorted(judged, key=lambda one: one.item.data["index"])
        images = {one.item.data["prompt"]: one.image for one in in_file_order if one.image}
        files = {IMAGE_FILEPATHS: filepaths_text(images)}
        scored = _all_scored(in_file_order)
        if len(scored) == PROMPTS:
            files["score_lists_soft_tifa.json"] = score_lists_text([one.soft for one in scored])
            files["score_lists_tifa.json"] = score_lists_text([[*map(int, one.right)] for one in scored])
            files["score_lists_vqascore.json"] = score_lists_text([[one.vqascore] for one in scored])
        return files


def _atom(n: int) -> str:
    """The name of the question about atom ``n``, from 0."""
    return f"vqa/{n}"


def _all_scored(judged: Sequence[Judged]) -> list[Scored]:
    return [_scored(one.item, one.parsed) for one in judged if one.score]


def _scored(item: Item, parsed: Mapping[str, Any]) -> Scored:
    data = item.data
    atoms = [parsed[_atom(n)] for n in range(len(data["vqa_list"]))]
    return Scored(
        line=data["index"],
        atomicity=data["atom_count"],
        skills=data["skills"],
        soft=[atom["p"] for atom in atoms],
        corrected=[atom["p_corrected"] for atom in atoms],
        right=[atom["correct"] for atom in atoms],
        vqascore=parsed[_VQASCORE]["p"],
        outside=[atom["outside"] or 0.0 for atom in atoms],
        vqascore_outside=parsed[_VQASCORE]["outside"] or 0.0,
    )


def _shown(parsed: Mapping[str, Any]) -> str:
    return f"{parsed['p']:.4f}, said {json.dumps(parsed['argmax'], ensure_ascii=False)}"
