"""The metrics of an OneIG-Bench run: the five tasks, their total, and the official fine-grained analysis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.oneig import text_metric
from benchmarks.oneig.fine_grained import TEXT_PARTS, by_class, by_form, by_style, by_subject, text_by_length
from benchmarks.oneig.prompt_scores import comparisons_of_program, has_failed, in_order, mean
from benchmarks.oneig.rows import Row, TextRow, mean_metric, of_task, rows, text_rows, text_scale
from benchmarks.oneig.scored import TASKS, Language, ScoredPrompt, Task
from benchmarks.oneig.text_metric import Comparison
from imageevalkit.benchmark.contract import Rules
from imageevalkit.cell.results import Metric
from imageevalkit.metrics.intervals import interval

TOTAL = "oneig_total"


def official_name(metric: str) -> str:
    """The metric that has what the official programs print when whole prompts failed."""
    return f"{metric}_official"


def metrics(
    prompts: Sequence[ScoredPrompt], tasks: Sequence[Task], rules: Rules, language: Language
) -> dict[str, Metric]:
    """Every metric of a run by name, 0-1 (ED in characters); ``n`` counts prompts with a score.

    A prompt's score is the mean over its images that can be scored (see ``prompt_scores``); a prompt without such
    images is in no mean. To the official programs the grid of a prompt whose images all failed is black; a prompt with
    no ``images`` at all is one whose file is missing.

    * each of ``tasks``, and ``oneig_total``, their mean, when all five are asked for; None without a score
    * official rules only: ``text_official``, ``reasoning_official``, ``oneig_total_official``: the text program scores
      a prompt that failed with the readings of another, or stops (quirk T3), the reasoning program stops (quirk R1)
    * ``text/ED``, ``text/CR``, ``text/WAC`` over all images, ``diversity/<class>``, ``style/<style>``
    * the official fine-grained analysis (see ``fine_grained``): ``alignment/NP``, ``diversity/short``,
      ``text/short_ED``, …, ``reasoning/<subject>``, ``style/traditional``, ``style/media``, ``style/anime``

    Intervals (95 %, of other prompts) are of means over prompts or images.
    """
    ordered = in_order(prompts)
    of_text = text_rows(ordered, rules, language) if "text" in tasks else []
    of_others = {task: rows(ordered, task, rules) for task in TASKS if task in tasks and task != "text"}
    result: dict[str, Metric] = {
        task: _text_score([row.compared for row in of_text], language)
        if task == "text"
        else mean_metric([row.score for row in of_others[task]])
        for task in TASKS
        if task in tasks
    }
    scored = {(row.prompt.class_item, row.prompt.id) for row in of_text if row.compared} | {
        (row.prompt.class_item, row.prompt.id)
        for of_one in of_others.values()
        for row in of_one
        if row.score is not None
    }
    result |= _total(result, TOTAL, len(scored))
    if rules == "official":
        printed = _printed(result, ordered, language)
        result |= {official_name(task): metric for task, metric in printed.items()}
        result |= _total(result | printed, official_name(TOTAL), len(scored))
    for task in TASKS:
        if task in tasks:
            details = (
                _text_details(of_text, rules, language)
                if task == "text"
                else _details(task, of_others[task], rules, language)
            )
            result |= {f"{task}/{name}": metric for name, metric in details.items()}
    return result


def _total(of_tasks: Mapping[str, Metric], name: str, count: int) -> dict[str, Metric]:
    if not all(task in of_tasks for task in TASKS):
        return {}
    values = [value for task in TASKS if (value := of_tasks[task].value) is not None]
    return {name: Metric(mean(values) if len(values) == len(TASKS) else None, count)}


def _printed(
    plain: Mapping[str, Metric], ordered: Sequence[ScoredPrompt], language: Language
) -> dict[str, Metric]:
    result = {}
    if "text" in plain:
        compared = comparisons_of_program(of_task(ordered, "text"), language)
        result["text"] = Metric(None, 0) if compared is None else _text_score(compared, language)
    if "reasoning" in plain:
        stops = any(map(has_failed, of_task(ordered, "reasoning")))
        result["reasoning"] = Metric(None, 0) if stops else plain["reasoning"]
    return result


def _text_score(of_prompts: Sequence[Sequence[Comparison]], language: Language) -> Metric:
    scores = text_metric.of_model([one for compared in of_prompts for one in compared])
    return Metric(scores.score(language) if scores else None, sum(map(bool, of_prompts)))


def _details(task: Task, of_task: Sequence[Row], rules: Rules, language: Language) -> dict[str, Metric]:
    if task == "reasoning":
        return by_subject(of_task, rules)
    if task == "style":
        return by_style(of_task, rules)
    classes = by_class(of_task) if task == "diversity" else {}
    return classes | by_form(of_task, rules, language)


def _text_details(of_text: Sequence[TextRow], rules: Rules, language: Language) -> dict[str, Metric]:
    compared = [row.compared for row in of_text if row.compared]
    scores = text_metric.of_model([one for of_prompt in compared for one in of_prompt])
    sums = {
        "ED": [(sum(one.distance for one in of_prompt), len(of_prompt)) for of_prompt in compared],
        "CR": [(sum(one.complete for one in of_prompt), len(of_prompt)) for of_prompt in compared],
        "WAC": [
            (sum(one.match for one in of_prompt), sum(one.total for one in of_prompt))
            for of_prompt in compared
        ],
    }
    whole = {
        part: Metric(
            scores[position] if scores else None,
            len(compared),
            interval(sums[part], text_scale(part, language)),
            text_scale(part, language),
        )
        for position, part in enumerate(TEXT_PARTS)
    }
    return whole | text_by_length(of_text, rules, language)
