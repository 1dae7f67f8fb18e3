"""The jobs in place of generation when ``--images`` names a folder of images made elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from imageevalkit.errors import UserError
from imageevalkit.jobs import Job
from imageevalkit.launch.environments import DRIVER_ENV
from imageevalkit.launch.generate_jobs import Run


def adopt_jobs(run: Run, images: Path) -> list[Job]:
    """The jobs that take ``images`` as those of the run's models; none for a model none of whose cells can start.

    Raises:
        UserError: a folder that is not there.
    """
    several = len(run.options.benchmarks) > 1
    own = {name: images / name for name in run.options.benchmarks}
    sources = {name: path if several or path.is_dir() else images for name, path in own.items()}
    for name, source in sources.items():
        if not source.exists():
            layout = f": with several benchmarks, it holds a folder for each ({name}/)" if several else ""
            raise UserError(f"--images: there is no {source}{layout}")
    return [_adopt_job(run, images, sources, model) for model in run.options.models if run.open_cells(model)]


def _adopt_job(run: Run, images: Path, sources: Mapping[str, Path], model: str) -> Job:
    """``sources``: what each benchmark's images are in, of all models."""
    options, cells = run.options, run.open_cells(model)
    several_models = len(options.models) > 1
    if several_models:
        # else the folders of models are where a benchmark's own layout has them
        sources = {name: own if (own := base / model).is_dir() else base for name, base in sources.items()}
    name = f"adopt:{model}"
    return Job(
        name=name,
        stage="adopt",
        command=[
            str(DRIVER_ENV / "bin" / "python"),
            *["-m", "imageevalkit.adoption", "--plan", str(run.folder / "plan.json"), "--job", name],
        ],
        cells=[cell.key for cell in cells],
        logs=[run.logs(cells, "adopt")[0]],
        environ=run.environ,
        cores=run.cores,
        options={
            "sources": {name: str(source.absolute()) for name, source in sources.items()},
            "among": str(images.absolute()) if several_models else "",
            "limit": options.limit,
            "overwrite": options.overwrite,
        },
    )
