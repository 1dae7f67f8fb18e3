"""The job in place of generation when ``--images`` names a folder of images made elsewhere."""

from __future__ import annotations

from pathlib import Path

from imageevalkit.benchmark_settings import environ_of
from imageevalkit.errors import UserError
from imageevalkit.jobs import Job
from imageevalkit.launch.environments import DRIVER_ENV
from imageevalkit.launch.generate_jobs import Run


def adopt_job(run: Run, images: Path) -> Job | None:
    """The job that takes ``images`` as those of the run's one model; None when no cell can start.

    Raises:
        UserError: more than one model, or a folder that is not there.
    """
    options = run.options
    if len(options.models) != 1:
        raise UserError(
            f"--images holds the images of one model, but {len(options.models)} are named: "
            "give one name in --model_names, under which they are scored"
        )
    several = len(options.benchmarks) > 1
    sources = {name: images / name if several else images for name in options.benchmarks}
    for name, source in sources.items():
        if not source.exists():
            layout = f": with several benchmarks, it holds a folder for each ({name}/)" if several else ""
            raise UserError(f"--images: there is no {source}{layout}")
    [model] = options.models
    cells = run.open_cells(model)
    if not cells:
        return None
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
        environ=environ_of(run.ds_kwargs),
        cores=run.cores,
        options={
            "sources": {name: str(source.absolute()) for name, source in sources.items()},
            "limit": options.limit,
            "overwrite": options.overwrite,
        },
    )
