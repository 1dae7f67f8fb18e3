"""The adopt stage (``--images``), which replaces generation: uses images that were made elsewhere.

This module finds the file for each item.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from imageevalkit.benchmark.image_files import Place, best, files_below
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.images import IMAGE_FORMATS
from imageevalkit.extras.adopt.order import AdoptOrder
from imageevalkit.jobs.estimates import Datasets
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from imageevalkit.store.jsonl import read_json

Places = Mapping[str, Place]
"""The places by item id. An item without a place has no image."""


@runtime_checkable
class ImageFinder(Protocol):
    """A dataset class that also finds images generated elsewhere, in its own file layouts."""

    def find_images(self, source: Path, items: Sequence[Any]) -> Mapping[str, Any] | None:
        """See :meth:`imageevalkit.benchmark.contract.Benchmark.find_images`."""


def places_of_job(
    cell: Cell, order: AdoptOrder, datasets: Datasets
) -> tuple[list[Item], Path, dict[str, Place]]:
    """Returns the items of ``cell``, the folder or file of their images, and the places found in it."""
    items, dataset = datasets.items(cell, order.limit), datasets[cell.benchmark]
    source = Path(order.sources[cell.benchmark])
    among = Path(order.among) if order.among else None
    own = dataset.find_images if isinstance(dataset, ImageFinder) else None
    return items, source, find_images(source, items, dataset.data, own, among)


def find_images(
    source: Path,
    items: Sequence[Item],
    entries: Sequence[Mapping[str, Any]],
    find: Callable[[Path, Sequence[Item]], Mapping[str, Any] | None] | None = None,
    among: Path | None = None,
) -> dict[str, Place]:
    """Returns the places of the images of ``items`` in ``source``, by item id, without items that have none.

    A ``source`` file is JSON with paths by prompt. A ``source`` folder has the official layout: the item's
    path below ``images/``, with any image suffix, in ``source`` or ``source/images``, whichever has more.

    Args:
        entries: All entries of the benchmark, without a limit.
        find: A function that finds images in the benchmark's special layouts; its result has priority.
        among: A folder with the images of several models, each in a subfolder.

    Raises CellFailure if ``source`` cannot be read, or if an image is in no folder of its model.
    """
    own = find(source, items) if find else None
    images, others = files_below(source)
    if source.is_file() and not own:
        places = _listed(source, items, Counter(entry.get("prompt") for entry in entries))
    elif own is not None:
        places = {id: place if isinstance(place, Place) else Place(place) for id, place in own.items()}
    else:
        places = best(images, items, [lambda item: item.id.removeprefix("images/")])
    places |= _instead([item for item in items if item.id not in places], places, images, others)
    model = f"/{items[0].model}/"
    for path in [place.path for place in places.values() if place.path and among]:
        if model not in f"/{path.as_posix().removeprefix(str(among))}":
            raise CellFailure(
                f"{path} is in no folder of its model: with several models in --model_names, each has a folder below "
                f"{among} ({model[1:]})"
            )
    return places


def read_filepaths(path: Path) -> dict[str, Path]:
    """Returns the image path of each prompt from the JSON ``{prompt: path}`` of GenEval 2's script.

    A relative path starts in the folder of the file. If there is no image, it starts in the working
    directory, as in the official script. Images may be missing. Raises CellFailure if the file is invalid.
    """
    raw = read_json(path)
    if not isinstance(raw, dict) or not raw or not all(isinstance(p, str) and p for p in raw.values()):
        raise CellFailure(
            f'{path} is no JSON object of image paths by prompt: {{"a red dog": "images/0.png", …}}'
        )
    near = {prompt: path.parent / image for prompt, image in raw.items()}
    return {prompt: near[prompt] if near[prompt].is_file() else Path.cwd() / raw[prompt] for prompt in raw}


def _listed(source: Path, items: Sequence[Item], sharing: Mapping[str | None, int]) -> dict[str, Place]:
    """Returns the places in the JSON file ``source``. ``sharing`` counts entries per prompt."""
    path_of, places = read_filepaths(source), dict[str, Place]()
    for item in items:
        path = path_of.get(item.prompt or "")
        if path is None:
            continue
        if sharing[item.prompt] > 1:
            reason = f"{source} names one image for a prompt that {sharing[item.prompt]} images are made of"
            places[item.id] = Place(reason=f"{reason}: give a folder in the official layout")
        elif path.is_file():
            places[item.id] = Place(path)
        else:
            places[item.id] = Place(reason=f"{path}, named in {source}, is not there")
    return places


def _instead(
    items: Sequence[Item], places: Places, images: Mapping[str, Sequence[Path]], others: Mapping[str, Path]
) -> dict[str, Place]:
    """Returns places with a reason for ``items`` with a file of another format or with a similar name."""
    used, alike, instead = {place.path for place in places.values()}, dict[str, Path](), dict[str, Place]()
    for stem, path in ((stem, path) for stem, paths in images.items() for path in paths if items):
        if path not in used:
            alike.setdefault(_loosely(stem.removeprefix("images/")), path)
    for item in items:
        name = item.id.removeprefix("images/")
        if other := others.get(name):
            instead[item.id] = Place(reason=f"there is {other}, but only {IMAGE_FORMATS} files are taken")
        elif near := alike.get(_loosely(name)):
            instead[item.id] = Place(reason=f"there is {near}, nearly {name}: rename it if it is the image")
    return instead


def _loosely(stem: str) -> str:
    """Returns ``stem`` in lower case, without leading zeros and with one separator, to find similar names."""
    return re.sub(r"(?<!\d)0+(?=\d)", "", re.sub(r"[\s_-]+", "_", stem.casefold()))
