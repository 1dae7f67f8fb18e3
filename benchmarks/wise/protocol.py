"""The two protocols of WISE: the paper's, and the one of WISE_Verified. Their scores are not comparable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.wise import categories, replies
from benchmarks.wise.categories import Category
from imageevalkit.evaluation.question import Sampling

Scores = Mapping[str, float]


@dataclass(frozen=True)
class Protocol:
    """How images are judged and what a reply is worth.

    ``program`` is the official evaluator, whose prompts are asked; ``judge`` the full name of the one it asks.
    ``clean`` makes of a reply the text that is parsed and kept; ``parse`` finds the scores in it, which are
    complete when all of ``required`` are there. ``parts`` are those of them that are metrics of their own. ``scale`` is
    what the judge is told to score on where that does not bound what is parsed; ``stated`` finds the scores in full.
    ``result_files`` are the official names of a domain's replies and scores.
    """

    program: str
    judge: str
    categories: Sequence[Category]
    sampling: Sampling
    clean: Callable[[str], str]
    parse: Callable[[str], Scores]
    wiscore: Callable[[Scores], float]
    required: Sequence[str]
    parts: Sequence[str]
    result_files: Callable[[str], tuple[str, str]]
    scale: tuple[float, float] | None = None
    stated: Callable[[str], Scores] = lambda reply: {}


def legacy_wiscore(scores: Scores) -> float:
    """``(0.7 consistency + 0.2 realism + 0.1 aesthetic quality) / 2``, 0-1 for scores of 0-2.

    The equation of the paper (arXiv 2503.07265) lacks the division, its tables and the program have it.
    """
    return (0.7 * scores["consistency"] + 0.2 * scores["realism"] + 0.1 * scores["aesthetic_quality"]) / 2


def _verified_files(domain: str) -> tuple[str, str]:
    return f"{domain}_full_results.json", f"{domain}_scores_results.jsonl"


def _legacy_files(domain: str) -> tuple[str, str]:
    # the legacy README calls one domain's files otherwise, and its command for the total expects that
    if domain == "spatio-temporal_reasoning":
        return f"{domain}_results.json", f"{domain}_results.jsonl"
    return _verified_files(domain)


LEGACY = Protocol(
    program="WISE_legacy/gpt_eval.py",
    judge="openai:gpt-4o-2024-05-13",
    categories=categories.LEGACY,
    sampling=Sampling(max_tokens=2000, temperature=0.0),
    clean=str,
    parse=replies.legacy_scores,
    wiscore=legacy_wiscore,
    required=replies.PARTS,
    parts=replies.PARTS,
    result_files=_legacy_files,
    scale=(0, 2),
    stated=replies.legacy_stated,
)

VERIFIED = Protocol(
    program="vllm_eval.py",
    judge="vllm:qwen3.5-35b-a3b",
    categories=categories.VERIFIED,
    sampling=Sampling(
        max_tokens=500, temperature=0.0, extra={"chat_template_kwargs": {"enable_thinking": False}}
    ),
    clean=replies.without_thoughts,
    parse=replies.verified_score,
    wiscore=lambda scores: scores[replies.SCORE],
    required=(replies.SCORE,),
    parts=(),
    result_files=_verified_files,
)
