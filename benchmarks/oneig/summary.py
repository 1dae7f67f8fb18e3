"""The summary of AISBench, of one or several models.

    python -m benchmarks.oneig.summary --model_names "a;b" --ds_name oneig-zh

prints that of models that were evaluated, one column each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.oneig.data import CHINESE, ENGLISH, Edition
from benchmarks.oneig.official import csv_text
from benchmarks.oneig.scores import OFFICIAL, TEXT_PARTS, TOTAL
from imageevalkit.cell import Cell, output_root
from imageevalkit.cell.results import Metric, Result, standing
from imageevalkit.errors import Arguments, ExitStatus, UserError, run_main, show, suggest
from imageevalkit.text import columns_of

_NONE = "-"


def summary_files(
    version: str, models: Mapping[str, Mapping[str, Metric]], edition: Edition
) -> dict[str, str]:
    """``summary.csv``, ``summary.md`` and ``summary.txt`` of the metrics of ``models``, by name."""
    table = summary_table(version, models, edition)
    return {"summary.csv": csv_text(table), "summary.md": _markdown(table), "summary.txt": _aligned(table)}


def summary_table(
    version: str, models: Mapping[str, Mapping[str, Metric]], edition: Edition
) -> list[list[str]]:
    """The header and a row for each metric of ``edition``, with 2 decimals; "accuracy" is on a scale of 100.

    "-" where a model has no value. A part of another row has no version.
    """
    rows = [  # as AISBench calls it, and our name of the metric
        ("oneig_alignment", version, "accuracy", "alignment"),
        ("oneig_text", version, "accuracy", "text"),
        *(("oneig_text", version, part, f"text/{part}") for part in TEXT_PARTS),
        *((f"oneig_{task}", version, "accuracy", task) for task in ("reasoning", "style", "diversity")),
        ("oneig_total", _NONE, "accuracy", TOTAL),
        *((f"oneig_diversity_{name}", _NONE, "accuracy", f"diversity/{name}") for name in edition.sizes),
    ]
    table = [["dataset", "version", "metric", "mode", *models]]
    for dataset, its_version, shown, name in rows:
        factor = 100.0 if shown == "accuracy" else 1.0
        found = [metrics[name].value if name in metrics else None for metrics in models.values()]
        values = [_NONE if value is None else f"{factor * value:.2f}" for value in found]
        table.append([dataset, its_version, shown, "gen", *values])
    return table


def _markdown(table: Sequence[Sequence[str]]) -> str:
    header, *rows = ([cell.replace("|", "\\|") for cell in row] for row in table)
    return "".join(f"| {' | '.join(line)} |\n" for line in [header, ["---"] * len(header), *rows])


def _aligned(table: Sequence[Sequence[str]]) -> str:
    widths = [max(map(columns_of, column)) for column in zip(*table, strict=True)]
    lines = (
        "  ".join(cell + " " * (width - columns_of(cell)) for cell, width in zip(row, widths, strict=True))
        for row in table
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)


def main() -> ExitStatus:
    """Print the summary of models that were evaluated.

    Raises:
        UserError: a model has no result, or the models have none that were measured alike.
    """
    # of the driver: an evaluating process has no use for them
    from imageevalkit.launch.config import split_names
    from imageevalkit.report.leaderboard import Column, board_of, column_label, coverage_text

    editions = {edition.name: edition for edition in (ENGLISH, CHINESE)}
    parser = Arguments("python -m benchmarks.oneig.summary", "The summary of several models, side by side.")
    parser.add_argument("--model_names", required=True, help='names, as in eval.sh: "a;b"')
    parser.add_argument("--ds_name", default=ENGLISH.name, choices=editions)
    args = parser.parse_args()
    models = list(dict.fromkeys(split_names(args.model_names)))
    if not models:
        raise UserError('--model_names is empty; name models that were evaluated: "a;b"')
    of_models = [_results(model, args.ds_name) for model in models]

    def label(result: Result) -> str:
        return column_label(Column(board_of(result), ""), several_versions=True)

    by_label = [{label(result): result for result in reversed(results)} for results in of_models]
    latest = [label(results[0]) for results in of_models]
    alike = [name for name in map(label, of_models[0]) if all(name in results for results in by_label)]
    if not alike:
        measured = "; ".join(f"{model} is {name}" for model, name in zip(models, latest, strict=True))
        raise UserError(f"the models were not measured alike: {measured}; evaluate them alike")
    chosen = [results[alike[0]] for results in by_label]
    columns = {result.model: _column(result) for result in chosen}
    show(_aligned(summary_table(chosen[0].benchmark_version, columns, editions[args.ds_name])) + alike[0])
    for result in chosen:
        if result.withheld:
            show(f"withheld: {result.model}: {result.withheld}")
        elif not result.coverage.complete:
            show(f"{result.model}: {coverage_text(result.coverage)}, the others treated officially")
    return ExitStatus.COMPLETE


def _results(model: str, benchmark: str) -> list[Result]:
    """One by each evaluator, the latest first."""
    cell = Cell(model, benchmark)
    found = standing(cell)
    if not found:
        known = [path.parent.parent.name for path in output_root().glob(f"*/{benchmark}/{cell.result.name}")]
        raise UserError(
            f"{model} has no result of {benchmark} in {cell.folder} that can be read{suggest(model, known)}; "
            f'evaluate it: bash eval.sh --model_names "{model}" --ds_names "{benchmark}"'
        )
    return found


def _column(result: Result) -> Mapping[str, Metric]:
    if result.withheld:
        return {}
    if result.treatment != "official":
        return result.metrics
    printed = {name: result.metrics[other] for name, other in OFFICIAL.items() if other in result.metrics}
    return {**result.metrics, **printed}


if __name__ == "__main__":
    run_main(main)
