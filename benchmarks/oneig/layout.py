"""Where images of OneIG-Bench that were made elsewhere lie: one file for each image, or one grid for each prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from imageevalkit.adoption.places import Place, only_one
from imageevalkit.cell.items import Item
from imageevalkit.errors import CellFailure, suggest
from imageevalkit.grids import Grid
from imageevalkit.images import IMAGE_SUFFIXES

_ID_LENGTH = 3


def find_images(
    source: Path, items: Sequence[Item], grid: Grid | None, model: str, images_per_prompt: int
) -> dict[str, Place]:
    """The images of ``items`` in ``source`` or in ``source/images``, by item id.

    Of three layouts, the one that holds most of them counts (with a ``grid`` of several cells, of the latter two):
    ``<class_item>/<id>_<repetition>.png``, one file for each image; the official ``<class_item>/<model>/<id>….webp``,
    where the first three characters of a name are the id; and ``<class_item>/<id>.webp``. The files of the latter two
    are a ``grid`` each, of ``images_per_prompt`` cells; without a ``grid`` they can be the images of prompts with one
    image only. Any suffix of an image will do, and files of no item are passed over.

    Several files for one item are ambiguous (the official alignment and text scores skip such prompts): its images
    are missing, for that reason.

    Raises:
        CellFailure: the grid is not given, or does not have ``images_per_prompt`` cells; or there is nothing but
            folders of other models.
    """
    roots = (source, source / "images")

    def found(name: Callable[[Item], str], below: str, key: Callable[[Path], str]) -> dict[str, list[Path]]:
        return max((_files(items, name, root, below, key) for root in roots), key=len)

    single = found(lambda item: f"{item.data['id']}_{item.data['repetition']}", "", lambda path: path.stem)
    combined = max(
        found(_id, "", lambda path: path.stem),
        found(_id, model, lambda path: path.name[:_ID_LENGTH]),
        key=len,
    )
    if not single and not combined:
        _check_model(roots, items, model)
    are_grids = grid is not None and grid.cells > 1
    if are_grids and single and not combined:
        raise CellFailure(
            f"{source} holds single images such as {next(iter(single.values()))[0].name}: leave out grid='{grid}'"
        )
    if not are_grids and len(single) >= len(combined):
        return {item: only_one(files) for item, files in single.items()}
    grid = _checked(source, grid, images_per_prompt)
    index = {item.id: int(item.data["repetition"]) - 1 for item in items}
    return {item: only_one(files, grid, index[item]) for item, files in combined.items()}


def _id(item: Item) -> str:
    return str(item.data["id"])


def _files(
    items: Sequence[Item], name: Callable[[Item], str], root: Path, below: str, key: Callable[[Path], str]
) -> dict[str, list[Path]]:
    """The image files in ``root/<class_item>/below`` whose ``key`` is the ``name`` of an item, by item id."""
    files: dict[tuple[str, str], list[Path]] = {}
    for class_item in {item.data["class_item"] for item in items}:
        folder = root / class_item / below
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file():
                files.setdefault((class_item, key(path)), []).append(path)
    keys = {item.id: (item.data["class_item"], name(item)) for item in items}
    return {item: files[key] for item, key in keys.items() if key in files}


def _checked(source: Path, grid: Grid | None, images_per_prompt: int) -> Grid:
    if grid is None and images_per_prompt == 1:
        return Grid(1, 1)
    if grid is None:
        raise CellFailure(
            f"{source} holds one file for each prompt, which has {images_per_prompt} images: say how they are laid "
            f"out, rows,cols: --ds_kwargs \"grid='{Grid.nearest_square(images_per_prompt)}'\""
        )
    if grid.cells != images_per_prompt:
        raise CellFailure(
            f"a grid of {grid} has {grid.cells} images, but images_per_prompt is {images_per_prompt}: set both alike "
            f"in --ds_kwargs, images_per_prompt={grid.cells} or another grid"
        )
    return grid


def _check_model(roots: Sequence[Path], items: Sequence[Item], model: str) -> None:
    """Raises CellFailure: there are folders of models, but none of ``model``."""
    classes = {item.data["class_item"] for item in items}
    folders = [root / name for root in roots for name in sorted(classes) if (root / name).is_dir()]
    models = sorted({path.name for folder in folders for path in folder.iterdir() if path.is_dir()})
    if models and model not in models:
        raise CellFailure(
            f"{folders[0]} has folders of {', '.join(models[:5])}, none of {model}{suggest(model, models)}: "
            "--model_names takes the name of one of them"
        )
