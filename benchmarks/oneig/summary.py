"""The summary of one or several models in the rows of AISBench's summarizer.

    python -m benchmarks.oneig.summary --model_names "a;b" --ds_name oneig-zh

prints the table of models that were evaluated, one column each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.oneig.editions import CHINESE, ENGLISH, Edition
from benchmarks.oneig.metric import TOTAL, official_name
from benchmarks.oneig.summary_table import Column, aligned, summary_table
from imageevalkit.arguments import Arguments
from imageevalkit.cell import Cell, output_root
from imageevalkit.cell.results import Result, standing
from imageevalkit.errors import ExitStatus, UserError, run_main, show, suggest
from imageevalkit.report.leaderboard import board_of

_EDITIONS: Mapping[str, Edition] = {edition.name: edition for edition in (ENGLISH, CHINESE)}


def main() -> ExitStatus:
    """Print the summary of models that were evaluated.

    Raises:
        UserError: a model has no result, or the models have none that were measured alike.
    """
    parser = Arguments("python -m benchmarks.oneig.summary", "The summary of several models, side by side.")
    parser.add_argument("--model_names", required=True, help='names, as in eval.sh: "a;b"')
    parser.add_argument("--ds_name", default=ENGLISH.name, help=f"{' or '.join(_EDITIONS)}")
    args = parser.parse_args()
    if args.ds_name not in _EDITIONS:
        raise UserError(
            f"--ds_name {args.ds_name} is no OneIG benchmark{suggest(args.ds_name, _EDITIONS)}; "
            f"there are {', '.join(_EDITIONS)}"
        )
    models = list(dict.fromkeys(name.strip() for name in args.model_names.split(";") if name.strip()))
    if not models:
        raise UserError('--model_names is empty; name models that were evaluated: "a;b"')
    results = _comparable([_results(model, args.ds_name) for model in models])
    first = results[0]
    columns = [_column(result) for result in results]
    show(aligned(summary_table(first.benchmark_version, columns, _EDITIONS[args.ds_name])).removesuffix("\n"))
    limit = f", the first {first.limit} items only" if first.limit else ""
    show(f"{args.ds_name}, measured by {first.evaluator.id}{limit}")
    for result in results:
        coverage = result.coverage
        if result.withheld:
            show(f"withheld: {result.model}: {result.withheld}")
        elif not coverage.complete:
            show(
                f"{result.model}: {coverage.judged} of {coverage.expected} items, the others treated officially"
            )
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


def _comparable(of_models: Sequence[Sequence[Result]]) -> list[Result]:
    """One result of each model, all measured alike."""
    for one in of_models[0]:
        alike = [[other for other in results if board_of(other) == board_of(one)] for results in of_models]
        if all(alike):
            return [results[0] for results in alike]
    latest = [(results[0].model, board_of(results[0])) for results in of_models]
    (model, board), (other, its_board) = latest[0], next(pair for pair in latest if pair[1] != latest[0][1])
    what, here, there = next(
        (name, mine, its)
        for name, mine, its in zip(board._fields, board, its_board, strict=True)
        if mine != its
    )
    shown = [number or "all items" for number in (here, there)] if what == "limit" else [here, there]
    raise UserError(
        f"{model} and {other} cannot stand side by side: their {what} is {shown[0]} and {shown[1]}; evaluate both alike"
    )


def _column(result: Result) -> Column:
    if result.withheld:
        return Column(result.model, {})
    instead = {name: result.metrics.get(official_name(name)) for name in ("text", "reasoning", TOTAL)}
    official = {name: metric for name, metric in instead.items() if metric}
    return Column(result.model, result.metrics | (official if result.treatment == "official" else {}))


if __name__ == "__main__":
    run_main(main)
