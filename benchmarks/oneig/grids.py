"""The official combined files of a cell's images: all images of a prompt in one, for the official scripts.

    python -m benchmarks.oneig.grids --model_name MODEL --ds_name oneig-zh --grid 1,4

They go to ``output/MODEL/DS/official_grids/images/<class_item>/MODEL/<id>.webp``. The official scripts read the numbers
of a grid the other way round (:class:`Grid`): ours of 1,4 is ``--image_grid 4,1`` there.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image
from tqdm import tqdm

from imageevalkit.atomic import write_atomic
from imageevalkit.cell import Cell, output_root
from imageevalkit.cell.items import Item, items_of
from imageevalkit.cell.records import OK, last_records
from imageevalkit.errors import Arguments, CellFailure, ExitStatus, UserError, run_main, say, suggest
from imageevalkit.grids import NO_IMAGE_SIZE, Grid
from imageevalkit.images import CorruptImage, decode, map_threads, opened
from imageevalkit.launch.config import check_name
from imageevalkit.machine import available_cores
from imageevalkit.registry import load_dataset

# Lossless, or black cells are not black any more (spec quirk G2). Of the lossless settings the fastest: a tenth of the
# time of the default effort for files that are a tenth larger.
_WEBP: dict[str, Any] = {"lossless": True, "quality": 0, "method": 0}
_LONGEST_SIDE = 16383


def main() -> ExitStatus:
    """Write the files; INCOMPLETE when some of their cells are black."""
    parser = Arguments(
        "python -m benchmarks.oneig.grids", "Write a cell's images as the official grid files."
    )
    parser.add_argument("--model_name", required=True)
    parser.add_argument("--ds_name", default="oneig", choices=("oneig", "oneig-zh"))
    parser.add_argument(
        "--grid", type=Grid.parse, help="rows,cols (default: 2,2, for the usual four images of a prompt)"
    )
    parser.add_argument("--as_model", help="the name of the folders of images (default: the model's own)")
    parser.add_argument("--out", type=Path, help="holds images/ (default: output/MODEL/DS/official_grids)")
    args = parser.parse_args()
    # a grid says how many images a prompt has, too
    dataset = load_dataset(args.ds_name, {"grid": str(args.grid)} if args.grid else {})
    cell = Cell(args.model_name, args.ds_name)
    out = args.out or cell.folder / "official_grids"
    items = items_of(dataset, cell)
    name = cell.model if args.as_model is None else check_name(args.as_model)
    return write_grids(cell, items, args.grid, out, name)


def write_grids(cell: Cell, items: Sequence[Item], grid: Grid | None, out: Path, name: str) -> ExitStatus:
    """Write the grid file of every prompt of which an image was made or tried; those up to date are left.

    They go to ``out/images/<class_item>/name/``.

    Raises:
        UserError: there are more images for a prompt than ``grid`` has cells.
        CellFailure: there are no images; some files could not be made, all others are; or the disk is full.
    """
    repetitions = max(int(item.data["repetition"]) for item in items)
    grid = grid or Grid.nearest_square(repetitions)
    if grid.cells < repetitions:
        raise UserError(f"--grid {grid} has {grid.cells} cells, but a prompt has {repetitions} images")
    prompts = _tried_prompts(cell, items, out / "images", name)
    if not any(place.made for places in prompts.values() for place in places):
        others = [path.parent.name for path in output_root().glob(f"*/{cell.benchmark}")]
        raise CellFailure(
            f"{cell.key} has no images{suggest(cell.model, others)}: make them with "
            f"bash eval.sh --model_names {cell.model} --ds_names {cell.benchmark}"
        )
    results = map_threads(lambda prompt: _write(*prompt, grid), list(prompts.items()), available_cores())
    written = list(tqdm(results, total=len(prompts), desc="grids", unit="file", disable=None))
    problems = [one.problem for one in written if one.problem]
    new = sum(one.new for one in written)
    say(
        f"{new} grids of {grid} written to {out / 'images'}, {len(written) - new - len(problems)} were up to date"
    )
    if grid.rows != grid.cols:
        say(f"the official scripts read these as --image_grid {grid.cols},{grid.rows}")
    missing = sum(one.missing for one in written)
    if missing:
        say(f"{missing} cells are black: their images were not made")
    if problems:
        more = f"; and {len(problems) - 1} others" if len(problems) > 1 else ""
        raise CellFailure(f"{problems[0]}{more}")
    return ExitStatus.INCOMPLETE if missing else ExitStatus.COMPLETE


class _Place(NamedTuple):
    """One image of a prompt, as it is on record.

    ``made``: a whole image is to be there. ``sha256`` is None where nothing says how it was made. ``time`` is when it
    was last made or tried, in seconds since 1970; 0 for never.
    """

    path: Path
    made: bool
    sha256: str | None
    time: float


class _GridFile(NamedTuple):
    """What became of one file: ``missing`` counts its black cells, ``problem`` says why there is none."""

    new: bool = False
    missing: int = 0
    problem: str = ""


def _tried_prompts(cell: Cell, items: Sequence[Item], images: Path, name: str) -> dict[Path, list[_Place]]:
    """The places of each prompt by its grid file."""
    records = last_records(cell)
    prompts: dict[Path, list[_Place]] = {}
    for item in sorted(items, key=lambda item: int(item.data["repetition"])):
        record = records.get(item.id)
        changed = item.path.stat().st_mtime if item.path.is_file() else 0.0
        place = _Place(item.path, bool(changed), None, changed)
        if record:
            noted = datetime.fromisoformat(record.time).timestamp() if record.time else 0.0
            made = record.status == OK and record.size is not None  # one made elsewhere may not decode
            place = _Place(item.path, made, record.image_sha256, max(changed, noted))
        target = images / item.data["class_item"] / name / f"{item.data['id']}.webp"
        prompts.setdefault(target, []).append(place)
    return {target: places for target, places in prompts.items() if any(place.time for place in places)}


def _write(target: Path, places: Sequence[_Place], grid: Grid) -> _GridFile:
    missing = sum(not place.made for place in places)
    if _is_current(target, places, grid):
        return _GridFile(missing=missing)
    try:
        images = [_image(place) if place.made else None for place in places]
        whole = grid.combine([*images, *[None] * (grid.cells - len(images))])
        if max(whole.size) > _LONGEST_SIDE:
            raise ValueError(
                f"its {whole.width}×{whole.height} px are more than the {_LONGEST_SIDE} px a side that WebP holds; "
                "another --grid may fit"
            )
    except ValueError as error:
        target.unlink(missing_ok=True)  # one of images that are no more
        return _GridFile(problem=f"no {target}: {error}")
    buffer = io.BytesIO()
    whole.save(buffer, "WEBP", **_WEBP)
    write_atomic(target, buffer.getvalue())
    return _GridFile(new=True, missing=missing)


def _is_current(target: Path, places: Sequence[_Place], grid: Grid) -> bool:
    """Whether the file is newer than all its images, and laid out as ``grid``."""
    try:
        if target.stat().st_mtime <= max(place.time for place in places):
            return False
        first = next((place.path for place in places if place.made), None)
        width, height = _size(first) if first else NO_IMAGE_SIZE
        return _size(target) == (grid.cols * width, grid.rows * height)
    except (OSError, CorruptImage):
        return False  # not there, or no image: what is wrong shows when all are read in full


def _size(path: Path) -> tuple[int, int]:
    with opened(path) as image:
        return image.size


def _image(place: _Place) -> Image.Image:
    """The image. Raises ValueError: it is gone, does not decode, or is not the one that was recorded."""
    try:
        data = place.path.read_bytes()
        if place.sha256 in (None, hashlib.sha256(data).hexdigest()):
            return decode(data)
    except (OSError, CorruptImage):
        pass
    raise ValueError(
        f"{place.path.name} is gone, damaged or not the one that was made; the command that made it repairs it"
    )


if __name__ == "__main__":
    run_main(main)
