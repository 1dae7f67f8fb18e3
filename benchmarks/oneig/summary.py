"""The summary of AISBench, of one or several models.

    python -m benchmarks.oneig.summary --model_names "a;b" --ds_name oneig-zh

prints that of models that were evaluated, one column each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.oneig.data import CHINESE, ENGLISH, TASKS, Edition
from benchmarks.oneig.official import csv_text
from benchmarks.oneig.scores import OFFICIAL, TEXT_PARTS, TOTAL
from imageevalkit.cell import Cell, output_root
from imageevalkit.cell.results import Metric, Result, standing
from imageevalkit.errors import Arguments, ExitStatus, UserError, run_main, show, suggest
from imageevalkit.text import columns_of


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
    rows = list[tuple[str, str, str, str]]()  # as AISBench calls it, and our name of the metric
    for task in TASKS:
        rows.append((f"oneig_{task}", version, "accuracy", task))
        if task == "text":
            rows += [("oneig_text", version, part, f"text/{part}") for part in TEXT_PARTS]
    rows.append(("oneig_total", "-", "accuracy", TOTAL))
    rows += [(f"oneig_diversity_{name}", "-", "accuracy", f"diversity/{name}") for name in edition.sizes]
    table = [["dataset", "version", "metric", "mode", *models]]
    for dataset, its_version, shown, name in rows:
        factor = 100.0 if shown == "accuracy" else 1.0
        found = [metrics[name].value if name in metrics else None for metrics in models.values()]
        values = ["-" if value is None else f"{factor * value:.2f}" for value in found]
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
    """Print it. Raises UserError: a model has no result, or the models have none that were measured alike."""
    # of the driver: an evaluating process has no use for them
    from imageevalkit.launch.config import split_names
    from imageevalkit.report.leaderboard import Column, board_of, coverage_text

    editions = {edition.name: edition for edition in (ENGLISH, CHINESE)}
    parser = Arguments("python -m benchmarks.oneig.summary", "The summary of several models, side by side.")
    parser.add_argument("--model_names", required=True, help='names, as in eval.sh: "a;b"')
    parser.add_argument("--ds_name", default=ENGLISH.name, choices=editions)
    args = parser.parse_args()
    of_models: dict[str, dict[str, Result]] = {}
    for model in split_names(args.model_names):
        cell = Cell(model, args.ds_name)
        of_models[model] = {}
        # by how it was measured, the latest first; of several that were measured alike, the latest alone
        for result in standing(cell):
            of_models[model].setdefault(Column(board_of(result), "").label(with_version=True), result)
        if not of_models[model]:
            known = [path.parent.parent.name for path in output_root().glob(f"*/{args.ds_name}/result.json")]
            raise UserError(
                f"{model} has no result of {args.ds_name} in {cell.folder} that can be read{suggest(model, known)}; "
                f'evaluate it: bash eval.sh --model_names "{model}" --ds_names "{args.ds_name}"'
            )
    if not of_models:
        raise UserError('--model_names is empty; name models that were evaluated: "a;b"')
    first, *others = of_models.values()
    alike = next((label for label in first if all(label in results for results in others)), None)
    if alike is None:
        measured = "; ".join(f"{model} is {next(iter(results))}" for model, results in of_models.items())
        raise UserError(f"the models were not measured alike: {measured}; evaluate them alike")
    columns = {model: _column(results[alike]) for model, results in of_models.items()}
    show(_aligned(summary_table(first[alike].benchmark_version, columns, editions[args.ds_name])) + alike)
    for model, results in of_models.items():
        result = results[alike]
        if result.withheld:
            show(f"withheld: {model}: {result.withheld}")
        elif not result.coverage.complete:
            show(f"{model}: {coverage_text(result.coverage)}, the others treated officially")
    return ExitStatus.COMPLETE


def _column(result: Result) -> Mapping[str, Metric]:
    stand_in = OFFICIAL if result.treatment == "official" else {}
    printed = {name: result.metrics[other] for name, other in stand_in.items() if other in result.metrics}
    return {} if result.withheld else {**result.metrics, **printed}


if __name__ == "__main__":
    run_main(main)
