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
from imageevalkit.cell.rewritten import as_shown
from imageevalkit.cell.states import images_to_come, scorable, survey_images
from imageevalkit.errors import ExitStatus, run_main
from imageevalkit.evaluation.answerers import Answerers
from imageevalkit.evaluation.engine import judged_items, pictures_of
from imageevalkit.evaluation.interview import EvaluateOptions, Interview
from imageevalkit.forecast import Datasets, Forecast, tell_forecasts
from imageevalkit.jobs import settings_of
from imageevalkit.judges.api import money_in_words, tokens_in_words
from imageevalkit.judges.choice import JudgeOptions
from imageevalkit.judges.settings import ApiSettings


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
        shown = as_shown(cell, items)
        states = images_to_come(cell, shown, settings, images["overwrite"], images["retry_refused"])
    else:
        blank = EvaluateOptions.from_environment().official and benchmark.scores_blank
        states = scorable(survey_images(cell, items, mend=False), blank)
    return judged_items(cell, items), pictures_of(benchmark, states)


def effort(judge: str, questions: Sequence[Question]) -> str:
    """Tokens sent, and money for a judge behind an API, if each of ``questions`` is asked once, in words.

    ``judge`` is its full name, its options are those of this environment. Raises UserError: they are malformed.
    """
    choice = registry.choose_judge(judge)
    if choice.setting.backend != "openai":
        return tokens_in_words(questions)
    kwargs = {**choice.setting.kwargs, **JudgeOptions.from_environment().kwargs}
    return money_in_words(questions, ApiSettings(**kwargs).price_of(choice.setting.model_path))


def main() -> ExitStatus:
    """A line for each cell of the requests on stdin."""
    return tell_forecasts(forecast_of)


if __name__ == "__main__":
    run_main(main)
