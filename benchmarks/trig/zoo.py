"""The metrics that a user may choose for a dimension beside TRIGScore, by the names of the official configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from benchmarks.genai.benchmark import SYSTEM, TEMPLATE, GenAI
from imageevalkit.assets import PromptsAsset
from imageevalkit.benchmark.contract import JUDGE, Measurer, Unparsed, json_value
from imageevalkit.benchmark.question import Answer, Message, Picture, Question, Sampling, measure
from imageevalkit.cell.jsonl import is_number
from imageevalkit.errors import UserError, suggest

TRIGSCORE = ("trigscore", "trig_api")
"""What TRIGScore is called: always measured, whether it is named or not."""
_LISTED = 2
_YES = "Yes"
# the words of LLaVA's VQAScore are those of CLIP-FlanT5's
WORDS = next(one for one in GenAI.assets if isinstance(one, PromptsAsset))._replace(
    path="vqascore_prompts.json", licence="Apache-2.0 (linzhiqiu/t2v_metrics)"
)


class ZooMetric(NamedTuple):
    """``measurer`` is a name of ``eval_models/measurers.py``; empty: the judge is asked. It is shown the image, and the
    ``text``: the prompt, or the question whether the image shows it. ``top`` is that of its scale, about, where it has
    none."""

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
_OF_SETS = "is a number of a set of images, not of one"
ABSENT: Mapping[str, str] = {
    "cmmd": f"{_OF_SETS}, and needs a set of real ones",
    "inception_score": f"{_OF_SETS}: the official program repeats it for each",
    "knn_rarity": "needs a set of real images, which TRIG does not have",
    "mid": "compares the images with themselves in the official program",
    "tas_artscore": "has no published weights",
    "rt_semsr": "needs images of prompts with and without a trigger, which TRIG does not have",
    "NSFW": "gives pixels to a network of CLIP's features in the official program; nudenet tells nudity",
}
"""Keys of the official registry that name nothing that could be measured, and why."""


def check_chosen(metrics: Mapping[str, Sequence[str]], dimensions: Iterable[str]) -> None:
    """Whether ``metrics`` are some of each of ``dimensions``. Raises UserError."""
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
    """Who measures the metric; ``weights`` are the user's places."""
    measurer = METRICS[name].measurer
    # the weights of NudeNet are in its package
    return Measurer(measurer, {} if name == "nudenet" else {"weights": dict(weights)}) if measurer else JUDGE


def question_of(name: str, image: Picture, prompt: str, words: Mapping[str, str]) -> Question:
    """What is asked about ``image``, made from ``prompt``."""
    metric = METRICS[name]
    if metric.text != "question":
        return measure(name, image, *([prompt] if metric.text else []))
    # the text is a template of a template
    asked = Message("user", (words[TEMPLATE].format().format(prompt), image))
    if metric.measurer:
        return Question(name, (Message("system", (words[SYSTEM],)), asked), Sampling(0))
    # as TRIGScore's requests: the official one leaves the temperature to the server, which is 1
    return Question(name, (asked,), Sampling(1, 1.0), likeliest=_LISTED)


def value_of(name: str, answer: Answer) -> float | None:
    """The number of the metric; None: the image has none. Raises Unparsed: the answer holds neither."""
    if not METRICS[name].measurer:
        if answer.probabilities is None:
            raise Unparsed("the record holds no probabilities")
        # quirk: what is not among the two likeliest tokens is 0, not unknown
        return answer.probabilities.get(_YES, 0.0)
    value = json_value(answer)
    if value is not None and not is_number(value):
        raise Unparsed("the record holds no number")
    return value
