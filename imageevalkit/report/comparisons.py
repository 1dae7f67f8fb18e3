"""What benchmarks say of several models at once: ``output/comparisons/<benchmark>/<evaluator>/``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from imageevalkit import registry
from imageevalkit.benchmark.contract import Benchmark, benchmark_code, grouped
from imageevalkit.cell import COMPARISONS, Cell, output_root
from imageevalkit.cell.jsonl import Tell
from imageevalkit.cell.results import Result, check_files, folder_name, read_scores, write_files
from imageevalkit.errors import CellFailure, UserError
from imageevalkit.jobs import settings_of
from imageevalkit.report.collect import CellReport


def write_comparisons(cells: Sequence[CellReport], tell: Tell) -> list[Path]:
    """Write what each benchmark says of its models (:meth:`Benchmark.compare`); the folders that hold it.

    Models are compared where they were measured alike: by one evaluator, on the same items, and none withheld. What a
    benchmark cannot say is told in one line.

    Raises:
        OSError, CellFailure: a file cannot be written.
    """
    if any(cell.cell.folder.is_relative_to(output_root() / COMPARISONS) for cell in cells):
        tell(
            f"models are not compared: {COMPARISONS}/ is where that goes, and a model is called so; rename its folder"
        )
        return []
    measured = [(cell, cell.result) for cell in cells if cell.result and cell.result.headline]
    by_benchmark = grouped(measured, lambda one: one[0].cell.benchmark)
    folders = []
    for name in {**by_benchmark, **{folder.name: [] for folder in (output_root() / COMPARISONS).glob("*")}}:
        try:
            cls = registry.benchmark_class(name)
            if cls is None or cls.compare is Benchmark.compare:
                continue
            benchmark = registry.make_benchmark(name, settings_of(name), "")
        except (UserError, CellFailure) as error:
            tell(f"{name}: models are not compared: {error}")
            continue
        found = list(_compared(benchmark, by_benchmark.get(name, []), tell))
        for folder in (output_root() / COMPARISONS / name).glob("*"):
            if folder not in found:  # of models that are not there any more
                shutil.rmtree(folder, ignore_errors=True)
        folders += found
    return folders


def _compared(
    benchmark: Benchmark, measured: Sequence[tuple[CellReport, Result]], tell: Tell
) -> Iterator[Path]:
    for how, alike in grouped(measured, lambda one: _how(one[1])).items():
        # the latest first, of a model with several
        files_of = {cell.cell.model: cell.source.with_name("scores.jsonl") for cell, _ in reversed(alike)}
        if len(files_of) < 2:
            continue
        try:
            scores = {model: read_scores(path) for model, path in reversed(files_of.items())}
            with benchmark_code(benchmark.name, "compare()") as where:
                files = dict(benchmark.compare(scores))
                check_files(files, where)
        except CellFailure as error:
            tell(str(error))
            continue
        if files:
            folder = output_root() / COMPARISONS / benchmark.name / folder_name(how)
            write_files(folder, files)
            yield folder


def _how(result: Result) -> str:
    """How ``result`` was measured, in words."""
    limit = f" limit {result.limit}" if result.limit else ""
    rewriter = Cell(result.model, result.benchmark).rewriter
    prompts = f" prompts {rewriter}" if rewriter else ""
    return f"{result.evaluator.id} version {result.benchmark_version} {result.treatment}{limit}{prompts}"
