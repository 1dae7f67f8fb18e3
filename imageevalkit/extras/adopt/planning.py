"""Plans the jobs of ``--images``, and returns which images they will copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from imageevalkit.common.errors import UserError
from imageevalkit.extras.adopt.copies import images_to_come
from imageevalkit.extras.adopt.order import AdoptOrder
from imageevalkit.extras.adopt.sources import places_of_job
from imageevalkit.jobs.estimates import Datasets
from imageevalkit.jobs.plan import Job
from imageevalkit.plan.config import DRIVER_PYTHON, Config
from imageevalkit.plan.options import Options
from imageevalkit.plan.stage_jobs import Run
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from imageevalkit.store.states import ImageState


def resolve(options: Options, given: Mapping[str, Any], config: Config) -> None:
    """Sets ``options.images``. Raises UserError: settings of models are given, which make no images."""
    options.images = options.extra["adopt"]["images"]
    if given.get("--custom_model_kwargses", "").strip(";, "):
        raise UserError("--images makes no images: leave out --custom_model_kwargses")


def to_come(
    cell: Cell, order: Mapping[str, Any], datasets: Datasets
) -> tuple[Sequence[Item], Mapping[str, ImageState]]:
    """Returns the items of ``cell`` and the states of their images after the job with ``order``."""
    items, _, places = places_of_job(cell, AdoptOrder(**order), datasets)
    return items, images_to_come(cell, items, places)


def adopt_jobs(run: Run) -> list[Job]:
    """Returns one job for each model that adopts its images from the folder of ``--images``.

    A model whose cells are all blocked gets no job. Raises UserError: a folder does not exist.
    """
    images = run.options.images
    assert images is not None
    several, several_models = len(run.options.benchmarks) > 1, len(run.options.models) > 1
    own = {name: images / name for name in run.options.benchmarks}
    sources = {name: path if several or path.is_dir() else images for name, path in own.items()}
    for name, source in sources.items():
        if not source.exists():
            layout = f": with several benchmarks, it holds a folder for each ({name}/)" if several else ""
            raise UserError(f"--images: there is no {source}{layout}")
    jobs = []
    for model in run.options.models:
        cells, of_model = run.open_cells(model), dict[str, str]()
        if not cells:
            continue
        for benchmark, source in sources.items():
            # With one model, a folder with its name belongs to the benchmark's own layout: adoption finds it.
            has_own = several_models and (source / model).is_dir()
            of_model[benchmark] = str((source / model if has_own else source).absolute())
        name, among = f"adopt:{model}", str(images.absolute()) if several_models else ""
        jobs.append(
            Job(
                name=name,
                stage="adopt",
                command=[DRIVER_PYTHON, "-m", "imageevalkit.extras.adopt", *run.words(name)],
                cells=[cell.key for cell in cells],
                logs=[run.logs(cells, "adopt")[0]],
                cores=run.cores,
                order=run.order(AdoptOrder, sources=of_model, among=among),
            )
        )
    return jobs
