"""What an evaluate job would ask, without asking: read by ``--dry_run`` from jobs' cells and options on stdin."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from imageevalkit import registry
from imageevalkit.adoption import forecast as adoption
from imageevalkit.adoption.places import places_of_job
from imageevalkit.benchmark.contract import Benchmark
from imageevalkit.benchmark.question import Picture, Question
from imageevalkit.cell import Cell
from imageevalkit.cell import fingerprint as fp
from imageevalkit.cell.items import MODEL_NAME_MARK, Item
from imageevalkit.cell.states import images_to_come, scorable, survey_images
from imageevalkit.errors import ExitStatus, run_main
from imageevalkit.evaluation.answerers import Answerers
from imageevalkit.evaluation.engine import pictures_of
from imageevalkit.evaluation.interview import EvaluateOptions, Interview
from imageevalkit.forecast import Datasets, Forecast, tell_forecasts
from imageevalkit.jobs import settings_of
from imageevalkit.judges.choice import JudgeOptions
from imageevalkit.judges.settings import ApiSettings
from imageevalkit.text import dollars

# What a judge's text costs is known well enough, what an image costs is up to the provider: 1024 px are about a
# thousand tokens for Qwen-VL (spec of GenEval 2, section 9) and for GPT-4o.
_CHARACTERS_PER_TOKEN = 4
_TOKENS_PER_IMAGE = 1000
# A verdict in a few words; protocols allow for many more. A judge that thinks before it answers writes more.
_TOKENS_PER_REPLY = 50


def forecast_of(request: Mapping[str, Any], datasets: Datasets) -> Forecast:
    """What a job with the options of this environment would ask about a cell, in words; only reads.

    ``request["images"]`` is how the run gets the images: the ``stage`` with its options, None for those there are.
    """

    @functools.cache
    def asked(cell: Cell) -> str:
        if registry.benchmark_class(cell.benchmark) is None:
            return "a script of its own, which does not tell what it asks"
        benchmark, answerers = _made(cell.benchmark, request["judge"])
        items, pictures = _pictures(cell, benchmark, request, datasets)
        known = Interview(cell, benchmark, answerers, items, pictures, EvaluateOptions.from_environment())
        waiting = known.open()
        said = f"{len(waiting)} of {known.requests} questions to ask of {answerers.evaluator.id}"
        if waiting and request["is_judge"]:
            said += f", {effort(request['judge'], waiting)}"
        return f"{said}; their answers may lead to more" if waiting and known.depend_on_answers else said

    def forecast(cell: Cell) -> str:
        if cell.folder.exists() or (request["images"] or {}).get("stage") == "adopt":
            return asked(cell)
        # of images that are all to come, the same is asked whoever makes them
        return asked(Cell(MODEL_NAME_MARK, cell.benchmark))

    return forecast


@functools.cache  # for requests that differ in their images only
def _made(name: str, judge: str) -> tuple[Benchmark, Answerers]:
    benchmark = registry.make_benchmark(name, settings_of(name), judge)
    return benchmark, Answerers(benchmark)


def _pictures(
    cell: Cell, benchmark: Benchmark, request: Mapping[str, Any], datasets: Datasets
) -> tuple[Sequence[Item], Mapping[str, Picture]]:
    images = request["images"]
    if images and images["stage"] == "adopt":
        items, _, places = places_of_job(cell, images, datasets)
        return items, pictures_of(benchmark, adoption.images_to_come(cell, items, places))
    items = datasets.items(cell, request["limit"])
    if images:
        task = datasets[cell.benchmark].dataset_task
        settings = fp.settings_of(task, images["settings"][task]) if "settings" in images else None
        states = images_to_come(cell, items, settings, images["overwrite"], images["retry_refused"])
    else:
        blank = EvaluateOptions.from_environment().official and benchmark.scores_blank
        states = scorable(survey_images(cell, items, mend=False), blank)
    return items, pictures_of(benchmark, states)


def effort(judge: str, questions: Sequence[Question]) -> str:
    """Tokens sent, and money for a judge behind an API, if each of ``questions`` is asked once, in words.

    A text of n characters counts as n / 4 tokens, an image as 1000, a reply as 50 or what it may have at most.
    ``judge`` is its full name, its options are those of this environment. Raises UserError: they are malformed.
    """
    choice = registry.choose_judge(judge)
    sent = round(
        sum(len(q.text) / _CHARACTERS_PER_TOKEN + _TOKENS_PER_IMAGE * len(q.pictures) for q in questions)
    )
    written = sum(
        min(question.sampling.max_tokens or _TOKENS_PER_REPLY, _TOKENS_PER_REPLY) for question in questions
    )
    said = f"about {sent / 1e6:.2f} million tokens"
    if choice.setting.backend != "openai":
        return said
    kwargs = {**choice.setting.kwargs, **JudgeOptions.from_environment().kwargs}
    price = ApiSettings(**kwargs).price_of(choice.setting.model_path)
    cost = price.cost({"prompt_tokens": sent, "completion_tokens": written}) if price else None
    if price is None or cost is None:
        return f"{said}, price unknown"
    return f"{said}, about {dollars(cost)} at {price.basis} (up to {_TOKENS_PER_REPLY} tokens a reply)"


def main() -> ExitStatus:
    """A line for each cell of the requests on stdin."""
    return tell_forecasts(forecast_of)


if __name__ == "__main__":
    run_main(main)
