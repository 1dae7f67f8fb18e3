"""Prints balanced samples for fine-tuning: images that score high, and about equally high, on two metrics.

    .venv/bin/python -m imageevalkit.extras.relations MODEL/BENCHMARK METRIC METRIC --within 0.1 > balanced.jsonl

Each sample is a line of JSON with item, prompt, scores and image. If the scale of a metric is not 0-1, append
the scale: consistency/2, grade/1:5, or niqe/10:0 if lower is better.
"""

from __future__ import annotations

import json
import sys

from imageevalkit.common.errors import Arguments, ExitStatus, UserError, run_main, say, show, suggest
from imageevalkit.common.text import counted, printable
from imageevalkit.extras.relations.relations import Column, Scored
from imageevalkit.report.item_parts import read_scores
from imageevalkit.store.cell import Cell, output_root, portable_path
from imageevalkit.store.records import OK, last_records
from imageevalkit.store.results import bases


def main() -> ExitStatus:
    """Prints the samples to stdout and their number to stderr.

    Raises:
        UserError: The cell or a metric does not exist, or a threshold is invalid.
        CellFailure: The records of the cell cannot be read.
    """
    parser = Arguments("python -m imageevalkit.extras.relations", (__doc__ or "").partition("\n\n")[0])
    parser.add_argument("cell", metavar="MODEL/BENCHMARK")
    parser.add_argument("metrics", metavar="METRIC", nargs=2)
    parser.add_argument(
        "--above", type=float, nargs="+", required=True, help="scores (0 to 1) of both, or of each, are above"
    )
    parser.add_argument("--within", type=float, required=True, help="they differ by this at most")
    args = parser.parse_args()
    above = args.above * 2 if len(args.above) == 1 else args.above
    if len(above) != 2:
        raise UserError(f"--above takes one threshold for both metrics or one for each, not {len(above)}")
    for option, value in (("--above", above[0]), ("--above", above[1]), ("--within", args.within)):
        if not 0 <= value <= 1:
            raise UserError(f"{option} must be from 0 to 1, not {value:g}")
    cell = _cell(args.cell)
    records, basis = last_records(cell), bases(cell).get(cell.folder) or {}
    scored = {score.item: Scored(score.item, "", score.values) for score in read_scores(cell.scores)}
    known = [name for one in scored.values() for name in one.values]
    columns = [Column.find(name, known) for name in args.metrics]
    if columns[0].name == columns[1].name:
        raise UserError(f"name two metrics, not {columns[0].name} twice")
    both = chosen = 0
    for item, one in scored.items():
        values = [value for column in columns if (value := column.value(one)) is not None]
        record = records.get(item)
        # the scores may belong to an older image: skip an image that was generated again
        if len(values) < 2 or not record or record.status != OK:
            continue
        if item in basis and basis[item][0] != record.image_sha256:
            continue
        both += 1
        is_above = all(value > limit for value, limit in zip(values, above, strict=True))
        # rounded, because in floats 0.9 - 0.8 is slightly more than 0.1
        if is_above and round(abs(values[0] - values[1]), 9) <= args.within:
            chosen += 1
            scores = {column.name: value for column, value in zip(columns, values, strict=True)}
            image = portable_path(cell.folder / record.path)
            sample = {"item": item, "prompt": record.prompt, "scores": scores, "image": image}
            show(_steering_nothing(json.dumps(sample, ensure_ascii=False)))
    say(f"{counted(chosen, 'sample')} of {counted(both, 'image')} with both scores", sys.stderr)
    return ExitStatus.COMPLETE


def _steering_nothing(text: str) -> str:
    """Returns the same JSON with escapes for control characters: a prompt must not control the terminal."""
    return "".join(one if printable(one) == one else json.dumps(one)[1:-1] for one in text)


def _cell(key: str) -> Cell:
    model, _, benchmark = key.strip("/").rpartition("/")
    cell = Cell(model, benchmark)
    if not model or not cell.scores.is_file():
        root = output_root()
        known = [path.parent.relative_to(root).as_posix() for path in root.glob("**/scores.jsonl")]
        raise UserError(f"there are no scores of '{key}'{suggest(key, known)} in {root}")
    return cell


if __name__ == "__main__":
    run_main(main)
