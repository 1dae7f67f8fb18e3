"""The metrics besides TRIGScore that a user may choose for a dimension, with the official configuration's
names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from benchmarks.genai.benchmark import SYSTEM, TEMPLATE, GenAI
from imageevalkit.assets import PromptsAsset
from imageevalkit.benchmark.contract import JUDGE, Measurer, Unparsed, json_value
from imageevalkit.benchmark.question import Answer, Message, Picture, Question, Sampling, measure
from imageevalkit.common.errors import UserError, suggest
from imageevalkit.store.jsonl import is_number

TRIGSCORE = ("trigscore", "trig_api")
"""Names of TRIGScore. Every run computes TRIGScore, even if the settings do not name it."""
_LISTED = 2
_YES = "Yes"
# LLaVA's VQAScore uses the same texts as CLIP-FlanT5's
WORDS = next(one for one in GenAI.assets if isinstance(one, PromptsAsset))._replace(
    path="vqascore_prompts.json", licence="Apache-2.0 (linzhiqiu/t2v_metrics)"
)


class ZooMetric(NamedTuple):
    """``measurer`` is a name in ``eval_models/measurers.py``; if empty, the judge answers. The evaluator gets
    the image and the ``text``: the prompt, the question whether the image shows it, or nothing. ``top`` is
    the end of the scale, approximate for unbounded metrics."""

    measurer: str
    text: Literal["", "prompt", "question"]
    top: float = 1.0


METRICS: Mapping[str, ZooMetric] = {
    "clipscore": ZooMetric("clipscore", "prompt", 2.5),
    "vqascore_llava": ZooMetric("llava-v1.5-13b", "question"),
    "vqascore_gpt": ZooMetric("", "question"),
    "aesthetic_predictor": ZooMetric("aesthetic_predictor", "", 10.0),
    "niqe": ZooMetric("niqe", "", 100.0),
    "nudenet": ZooMetric("nudenet", ""),
}
UNBOUNDED = ("*/aesthetic_predictor", "*/niqe")
_OF_SETS = "is a number for a set of images, not for one"
ABSENT: Mapping[str, str] = {
    "cmmd": f"{_OF_SETS}, and needs a set of real ones",
    "inception_score": f"{_OF_SETS}: the official program repeats it for each",
    "knn_rarity": "needs a set of real images, which TRIG does not have",
    "mid": "compares the images with themselves in the official program",
    "tas_artscore": "has no published weights",
    "rt_semsr": "needs images of prompts with and without a trigger, which TRIG does not have",
    "NSFW": "gives pixels to a network of CLIP's features in the official program; use nudenet for nudity",
}
"""Metrics of the official registry that this benchmark cannot compute, with the reason."""


def check_chosen(metrics: Mapping[str, Sequence[str]], dimensions: Iterable[str]) -> None:
    """Raises UserError if ``metrics`` names an unknown dimension, or a metric that is unknown or not
    computable."""
    for dimension, names in metrics.items():
        if dimension not in dimensions:
            near = suggest(dimension, dimensions)
            raise UserError(
                f"metrics names '{dimension}', which is no dimension of the chosen pairs{near}; there: "
                f"{', '.join(dimensions)}"
            )
        for name in names:
            if reason := ABSENT.get(name):
                raise UserError(f"the metric '{name}' of {dimension} cannot be measured: it {reason}")
            if name not in (known := (*TRIGSCORE, *METRICS)):
                raise UserError(
                    f"{dimension} has no metric '{name}'{suggest(name, known)}; known: {', '.join(known)}"
                )


def measurer_of(name: str, weights: Mapping[str, str]) -> Measurer:
    """Returns the evaluator of metric ``name``; ``weights`` maps names of weights to paths or hub ids."""
    measurer = METRICS[name].measurer
    # NudeNet's package contains its weights
    return Measurer(measurer, {} if name == "nudenet" else {"weights": dict(weights)}) if measurer else JUDGE


def question_of(name: str, image: Picture, prompt: str, words: Mapping[str, str]) -> Question:
    """Returns the question of metric ``name`` about ``image``, which a model generated from ``prompt``."""
    metric = METRICS[name]
    if metric.text != "question":
        return measure(name, image, *([prompt] if metric.text else []))
    # the text is a template that contains a template, so format runs twice
    asked = Message("user", (words[TEMPLATE].format().format(prompt), image))
    if metric.measurer:
        return Question(name, (Message("system", (words[SYSTEM],)), asked), Sampling(0))
    # temperature 1 as in TRIGScore's requests: the official program uses the server's default, which is 1
    return Question(name, (asked,), Sampling(1, 1.0), likeliest=_LISTED)


def value_of(name: str, answer: Answer) -> float | None:
    """Returns the metric's number, or None if the image has none. Raises Unparsed if the answer is
    neither."""
    if not METRICS[name].measurer:
        if answer.probabilities is None:
            raise Unparsed("the record holds no probabilities")
        # quirk: if "Yes" is not among the two likeliest tokens, the score is 0, not missing
        return answer.probabilities.get(_YES, 0.0)
    value = json_value(answer)
    if value is not None and not is_number(value):
        raise Unparsed("the record holds no number")
    return value
