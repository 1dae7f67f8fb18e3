"""All files of a cell in the formats of others: the official CSV files, AISBench's details and summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.oneig.analysis_csv import analysis_files
from benchmarks.oneig.editions import Edition
from benchmarks.oneig.official_csv import official_files
from benchmarks.oneig.questions import ALIGNMENT_PROMPT, TEXT_PROMPT
from benchmarks.oneig.samples import Templates, sample_files
from benchmarks.oneig.scored import ScoredPrompt
from benchmarks.oneig.settings import Settings
from benchmarks.oneig.summary_table import Column, summary_files
from imageevalkit.cell.results import Metric


def files(
    prompts: Sequence[ScoredPrompt],
    settings: Settings,
    edition: Edition,
    model: str,
    templates: Mapping[str, str],
    version: str,
    metrics: Mapping[str, Metric],
    complete: bool,
) -> dict[str, str]:
    """The text of each file by name; the summary only of a ``complete`` run: it has no place to say what is missing."""
    said = Templates(templates[ALIGNMENT_PROMPT], templates[TEXT_PROMPT])
    asked = (prompts, settings.tasks, settings.rules, edition.language, model)
    summary = summary_files(version, [Column(model, metrics)], edition) if complete else {}
    return {**official_files(*asked), **analysis_files(*asked), **sample_files(*asked, said), **summary}
