"""Reads and writes official grid files: one file with all images of a prompt, as the official scripts read
it.

    python -m benchmarks.oneig.grids --model_name MODEL --ds_name oneig-zh --grid 1,4

writes the grids of a model to ``output/MODEL/DS/official_grids/images/<class_item>/MODEL/<id>.webp``. The
official scripts swap the two numbers of a grid (:class:`Grid`): our 1,4 is their ``--image_grid 4,1``.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from imageevalkit.benchmark.image_files import Place, only_one
from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.errors import Arguments, CellFailure, ExitStatus, UserError, run_main, say, suggest
from imageevalkit.common.grids import NO_IMAGE_SIZE, Grid
from imageevalkit.common.images import IMAGE_SUFFIXES, CorruptImage, decode, map_threads, opened
from imageevalkit.common.machine import available_cores
from imageevalkit.metrics import grouped
from imageevalkit.registry import load_dataset
from imageevalkit.store.cell import Cell, check_name, output_root
from imageevalkit.store.items import Item, items_of
from imageevalkit.store.records import CORRUPT, GENERATED
from imageevalkit.store.states import ImageState, survey

# Lossless, because lossy black cells are no longer black (spec quirk G2). This is the fastest lossless
# setting: a tenth of the default's time for files that are a tenth larger.
_WEBP: dict[str, Any] = {"lossless": True, "quality": 0, "method": 0}


def find_grids(
    source: Path, items: Sequence[Item], grid: Grid | None, images_per_prompt: int
) -> Mapping[str, Place] | None:
    """Returns the place of each image by item id: a cell of its prompt's grid file. None if there are no grid
    files.

    Grid files are in ``source`` or ``source/images``, whichever has more. Their names are the official
    ``<class_item>/<model>/<id>….webp``, where the id is the first three characters, or
    ``<class_item>/<id>.webp``, with any image suffix. If a prompt has several files, none counts (the
    official alignment and text scores skip such prompts). Unless ``grid`` has several cells, the function
    returns None if at least as many images exist as single files ``<class_item>/<id>_<repetition>.png``.

    Raises CellFailure if ``grid`` is needed but None, or if the folders belong only to other models.
    """
    roots, model = (source, source / "images"), items[0].model
    found = max((_files(items, root, below, "{id}") for below in ("", model) for root in roots), key=len)
    own = max(len(_files(items, root, "", "{id}_{repetition}")) for root in roots)
    if own and own >= len(found) and (grid is None or grid.cells == 1):
        return None
    if not found:
        classes = {item.data["class_item"] for item in items}
        below = [path for root in roots for name in classes for path in (root / name).glob("*")]
        if below and all(path.is_dir() for path in below):
            models = sorted({path.name for path in below})
            raise CellFailure(
                f"{source} has folders of {', '.join(models[:5])}, none of {model}{suggest(model, models)}: "
                "--model_names takes the name of one of them"
            )
        return None
    if grid is None and images_per_prompt > 1:
        raise CellFailure(
            f"{source} holds one file for each prompt, which has {images_per_prompt} images: give their "
            f"layout, rows,cols: --ds_kwargs \"grid='{Grid.nearest_square(images_per_prompt)}'\""
        )
    cells = {item.id: int(item.data["repetition"]) - 1 for item in items}
    return {item: only_one(files, grid or Grid(1, 1), cells[item]) for item, files in found.items()}


def _files(items: Sequence[Item], root: Path, below: str, name: str) -> dict[str, list[Path]]:
    """Returns the files in ``root/<class_item>/below`` by item id; ``name`` is the pattern of the stem."""
    files: dict[tuple[str, str], list[Path]] = {}
    for class_item in {item.data["class_item"] for item in items}:
        for path in sorted((root / class_item / below).glob("*")):
            if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file():
                files.setdefault((class_item, path.name[:3] if below else path.stem), []).append(path)
    keys = {item.id: (item.data["class_item"], name.format_map(item.data)) for item in items}
    return {item: files[key] for item, key in keys.items() if key in files}


def main() -> ExitStatus:
    """Writes the grid files. Returns INCOMPLETE if some cells are black because their images are missing."""
    parser = Arguments("python -m benchmarks.oneig.grids", "Write a cell's images as official grid files.")
    parser.add_argument("--model_name", required=True)
    parser.add_argument("--ds_name", default="oneig", choices=("oneig", "oneig-zh"))
    parser.add_argument(
        "--grid", type=Grid.parse, help="rows,cols (default: 2,2 for four images of a prompt)"
    )
    parser.add_argument("--as_model", help="the name of the folders of images (default: the model's own)")
    args = parser.parse_args()
    # a grid also determines the number of images per prompt
    dataset = load_dataset(args.ds_name, {"grid": str(args.grid)} if args.grid else {})
    cell = Cell(args.model_name, args.ds_name)
    name = cell.model if args.as_model is None else check_name(args.as_model)
    return write_grids(cell, items_of(dataset, cell), args.grid, cell.folder / "official_grids", name)


def write_grids(cell: Cell, items: Sequence[Item], grid: Grid | None, out: Path, name: str) -> ExitStatus:
    """Writes ``out/images/<class_item>/name/<id>.webp`` for every prompt with an attempted image, unless up
    to date.

    Raises UserError if ``grid`` has too few cells, and CellFailure if there are no images or a file cannot be
    written.
    """
    repetitions = max(int(item.data["repetition"]) for item in items)
    grid = grid or Grid.nearest_square(repetitions)
    if grid.cells < repetitions:
        raise UserError(f"--grid {grid} has {grid.cells} cells, but a prompt has {repetitions} images")
    states = sorted(survey(cell, items).states.values(), key=lambda state: int(state.item.data["repetition"]))
    if not any(state.status == GENERATED for state in states):
        others = [path.parent.name for path in output_root().glob(f"*/{cell.benchmark}")]
        raise CellFailure(
            f"{cell.key} has no images{suggest(cell.model, others)}: generate them with "
            f"bash eval.sh --model_names {cell.model} --ds_names {cell.benchmark}"
        )

    def target(state: ImageState) -> Path:
        data = state.item.data
        return out / "images" / data["class_item"] / name / f"{data['id']}.webp"

    prompts = [(file, of) for file, of in grouped(states, target).items() if any(s.attempted for s in of)]
    due = [prompt for prompt in prompts if not _is_current(*prompt, grid)]
    written = map_threads(lambda prompt: _write(*prompt, grid), due, available_cores())
    problems = [one for one in tqdm(written, total=len(due), desc="grids", unit="file", disable=None) if one]
    current = f", {len(prompts) - len(due)} were up to date" if len(due) < len(prompts) else ""
    say(f"{len(due) - len(problems)} grids of {grid} written to {out / 'images'}{current}")
    if grid.rows != grid.cols:
        say(f"the official scripts read these as --image_grid {grid.cols},{grid.rows}")
    missing = sum(state.status not in (GENERATED, CORRUPT) for _, of_prompt in prompts for state in of_prompt)
    if missing:
        say(f"{missing} cells are black: their images are missing")
    if problems:
        more = f"; and {len(problems) - 1} others" if len(problems) > 1 else ""
        raise CellFailure(f"{problems[0]}{more}")
    return ExitStatus.INCOMPLETE if missing else ExitStatus.COMPLETE


def _is_current(target: Path, states: Sequence[ImageState], grid: Grid) -> bool:
    """Returns whether the file is newer than all its images and their records, and has the size of
    ``grid``."""
    if any(state.status == CORRUPT for state in states):
        return False
    made = [state.path for state in states if state.status == GENERATED]
    records = [state.record for state in states if state.record and state.record.time]
    try:
        noted = [datetime.fromisoformat(record.time).timestamp() for record in records]
        times = [*(path.stat().st_mtime for path in made), *noted]
        if target.stat().st_mtime <= max(times, default=0):
            return False
        width, height = _size(made[0]) if made else NO_IMAGE_SIZE
        return _size(target) == (grid.cols * width, grid.rows * height)
    except (OSError, ValueError, CorruptImage):
        # missing, no image, or no such date; _write reads every image in full and reports errors
        return False


def _size(path: Path) -> tuple[int, int]:
    with opened(path) as image:
        return image.size


def _write(target: Path, states: Sequence[ImageState], grid: Grid) -> str:
    """Writes one grid file. Returns the reason of a failure, or an empty string."""
    buffer = io.BytesIO()
    try:
        for state in states:
            if state.status == CORRUPT:
                raise ValueError(
                    f"{state.path.name}: {state.reason}; repeat the command that generated the image"
                )
        images = [decode(one.path.read_bytes()) if one.status == GENERATED else None for one in states]
        whole = grid.combine([*images, *[None] * (grid.cells - len(images))])
        whole.save(buffer, "WEBP", **_WEBP)
    except (OSError, ValueError, CorruptImage) as error:
        target.unlink(missing_ok=True)  # an old grid would show images that no longer exist
        return f"no {target}: {error}"
    write_atomic(target, buffer.getvalue())
    return ""


if __name__ == "__main__":
    run_main(main)
