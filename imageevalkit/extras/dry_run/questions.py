"""Estimates the questions and cost of evaluate jobs for ``--dry_run``."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from imageevalkit import registry
from imageevalkit.api.prices import quoted
from imageevalkit.api.sender import kind_of_sender
from imageevalkit.benchmark.contract import Benchmark
from imageevalkit.benchmark.question import Question
from imageevalkit.evaluate.interview import Interview
from imageevalkit.evaluate.scoring import judged_items
from imageevalkit.extension_points import connected
from imageevalkit.jobs.estimates import SECONDS_OF_A_REPLY, Datasets, Estimate, Forecast
from imageevalkit.jobs.plan import EvaluateOrder
from imageevalkit.judges.api import cost_of_asking, money_in_words, tokens_in_words
from imageevalkit.judges.choice import ApiSettings, JudgeOptions, is_judge
from imageevalkit.store import fingerprint as fp
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import MODEL_NAME_MARK, Item, as_shown
from imageevalkit.store.jsonl import Reader
from imageevalkit.store.states import ImageState, scorable, survey, survey_images, to_come

_ORDER = Reader(EvaluateOrder)


def forecast_of(request: Mapping[str, Any], datasets: Datasets) -> Forecast:
    """Returns a function that estimates the questions of an evaluate job about a cell. It only reads files.

    ``request["order"]`` is the job's order. ``request["images"]`` is the order of the job that generates or
    adopts the images, None if the run uses existing images. Its ``settings`` are the model's by task.
    """
    order, images = _ORDER.read(request["order"]), request["images"]

    @functools.cache
    def asked(cell: Cell) -> Estimate:
        if registry.benchmark_class(cell.benchmark) is None:
            name = f"eval/{cell.benchmark}.sh"
            return Estimate(f"{name} evaluates it, and does not list its questions", untimed=name)
        settings = datasets.settings.get(cell.benchmark, {})
        benchmark = registry.make_benchmark(cell.benchmark, settings, order.judge)
        known = Interview(cell, benchmark, *_shown(cell, benchmark, order, images, datasets), order)
        waiting = known.open()
        text = f"{len(waiting)} of {known.requests} questions to ask of {known.evaluator.id}"
        usd: float | None = 0.0
        is_vllm = order.judge.startswith("vllm:")
        if waiting and is_judge(order.judge):
            usd, words = effort(order.judge, waiting, order.judge_options)
            text += f", {words}"
        later = [kind.planned(known, order) for kind in connected("after_questions").values()]
        again = sum(requests for requests, _ in later)
        text += "".join(f"; {words}" for _, words in later if words)
        if waiting and known.depend_on_answers:
            text += "; their answers may lead to more"
        options, sender = order.judge_options, kind_of_sender(order.judge_options.sender)
        is_api = order.judge.startswith("openai:") or bool(is_vllm and options.kwargs.get("base_url"))
        if not is_api:
            return Estimate(text, untimed=known.evaluator.id.partition("/")[0] if waiting else "")
        requests = len(waiting) + again
        if waiting and usd is not None:
            usd *= requests / len(waiting)  # a repeated question costs the same as the first time
        is_unpriced = usd is None or (again and not waiting and not is_vllm)
        return Estimate(
            text,
            requests=requests,
            usd=usd or 0.0,
            unpriced=requests if is_unpriced else 0,
            seconds=requests * SECONDS_OF_A_REPLY,
            at_once=options.workers,
            per_minute=options.requests_per_minute,
            wait=sender.time if sender else "",
        )

    def forecast(cell: Cell) -> Estimate:
        if cell.folder.exists() or (images or {}).get("kind", "generate") != "generate":
            return asked(cell)
        # if no image exists yet, the questions are the same for every model: the estimate is cached
        return asked(Cell(MODEL_NAME_MARK, cell.benchmark))

    return forecast


def _shown(
    cell: Cell,
    benchmark: Benchmark,
    order: EvaluateOrder,
    images: Mapping[str, Any] | None,
    datasets: Datasets,
) -> tuple[Sequence[Item], Mapping[str, ImageState]]:
    """Returns the items with the prompts that the judge gets, and the states of the images after the run."""
    if images and images["kind"] != "generate":
        [of_extra] = connected("images_to_come", [images["kind"]]).values()
        return of_extra(cell, images, datasets)
    items = datasets.items(cell, order.limit)
    if images:
        task, of_task = datasets[cell.benchmark].dataset_task, images["settings"]
        settings = fp.settings_of(task, of_task[task]) if of_task else None
        shown = as_shown(cell, items)
        states = images_to_come(cell, shown, settings, images["overwrite"], images["retry_refused"])
    else:
        blank = order.official and benchmark.scores_blank
        states = scorable(survey_images(cell, items, mend=False).states, blank)
    return judged_items(cell, items), states


def images_to_come(
    cell: Cell,
    items: Sequence[Item],
    settings: Mapping[str, Any] | None,
    overwrite: bool = False,
    retry_refused: bool = False,
) -> dict[str, ImageState]:
    """Returns the images by id that will exist after generation. Raises as generation would; only reads."""
    found = survey(cell, items, settings, pixels=True)
    anew = {item.id: to_come(item) for item in found.to_make(overwrite, retry_refused)}
    return scorable({**found.states, **anew}, blank=False)


def effort(judge: str, questions: Sequence[Question], options: JudgeOptions) -> tuple[float | None, str]:
    """Returns the USD of asking each of ``questions`` once, and a text with the tokens and the money.

    The USD are None if the price is unknown, and 0 for a judge on the user's machines. ``judge`` is a full
    name. Raises UserError if ``options`` are malformed.
    """
    choice = registry.choose_judge(judge)
    if choice.setting.backend != "openai":
        return 0.0, tokens_in_words(questions)
    kwargs = {**choice.setting.kwargs, **options.kwargs}
    price = quoted(ApiSettings(**kwargs).price_of(choice.setting.model_path), kwargs)
    sender = kind_of_sender(options.sender)
    if not (price and sender):
        return cost_of_asking(questions, price), money_in_words(questions, price)
    price = price.at(sender.price_share)
    return cost_of_asking(questions, price), f"{money_in_words(questions, price)}, {sender.way}"
