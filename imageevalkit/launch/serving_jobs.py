"""The evaluate jobs whose judge is served by this run: one for all cells that ask the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from imageevalkit.cell import log_root
from imageevalkit.errors import UserError
from imageevalkit.jobs import Job
from imageevalkit.judges.server import ServerSettings
from imageevalkit.launch.environments import DRIVER_ENV, program_of
from imageevalkit.launch.generate_jobs import Run
from imageevalkit.launch.judges import ConfiguredJudge
from imageevalkit.launch.weights import hub_secrets

_RETRIES = 1  # what has its outcome by then is not evaluated again


class Server(NamedTuple):
    """The server of the judge with the full name ``judge``: its ``command`` (the port comes last) and its files.

    ``model`` is the name under which it is served; ``secrets`` are the variables with the keys that it takes.
    """

    judge: str
    model: str
    command: tuple[str, ...]
    secrets: tuple[str, ...]
    gpus: int
    start_timeout: float
    log: str
    address_file: str


def server_of(run: Run, judge: ConfiguredJudge, settings: ServerSettings, gpus: int) -> Server:
    """The server that this run starts for ``judge``.

    Raises:
        UserError: the environment with vLLM, or a folder with weights, is missing.
    """
    choice, environment = judge.choice, judge.environment(run.config)
    build = "bash utils/make_env.sh --judge vllm"
    try:
        executable = program_of(environment, "vllm", f"judge {choice.name}", build)
    except UserError as error:
        raise UserError(
            f"{error}; or name a server that runs already: --judge_kwargs base_url=http://…/v1"
        ) from None
    model = choice.setting.model_path
    if model.startswith(("/", ".", "~")) and not Path(model).is_dir():
        raise UserError(f"judge '{choice.name}': there is no folder {model}")
    stem = choice.full_name.replace("/", "__").replace(":", "_")
    return Server(
        judge=choice.full_name,
        model=model,
        command=tuple(settings.command(executable, model, gpus)),
        secrets=tuple(hub_secrets(judge.weights)),
        gpus=gpus,
        start_timeout=settings.start_timeout,
        log=str(log_root() / f"judge_{stem}_{run.stamp}.log"),
        address_file=str((run.folder / "judges" / stem).absolute()),
    )


def serving_jobs(run: Run, served: Sequence[tuple[Server, Job]]) -> list[Job]:
    """One job for each server in ``served``, in place of the evaluate jobs that would each need it.

    A server that waited for images would hold the GPUs that make them: all images come first.
    """
    together: dict[Server, list[Job]] = {}
    for server, job in served:
        together.setdefault(server, []).append(job)
    return [_job(run, server, jobs) for server, jobs in together.items()]


def _job(run: Run, server: Server, jobs: Sequence[Job]) -> Job:
    name = f"evaluate:{server.judge}"
    python = str(DRIVER_ENV / "bin" / "python")
    return Job(
        name=name,
        stage="evaluate",
        command=[
            *[python, "-m", "imageevalkit.launch.serving"],
            *["--plan", str(run.folder / "plan.json"), "--job", name],
        ],
        cells=[cell for job in jobs for cell in job.cells],
        logs=[log for job in jobs for log in job.logs],
        after=list(dict.fromkeys(name for job in jobs for name in job.after)),
        secrets=sorted({*server.secrets, *(name for job in jobs for name in job.secrets)}),
        partial=True,
        gpus=server.gpus,
        cores=run.cores,
        retries=_RETRIES,
        options={
            "server": {**server._asdict(), "command": list(server.command)},
            "cells": {
                cell: {"command": job.command, "environ": job.environ, "secrets": job.secrets, **job.options}
                for job in jobs
                for cell in job.cells
            },
        },
    )


def describe_server(job: Job) -> list[str]:
    """Lines for ``--dry_run``: what a job serves, and to which cells; none for other jobs."""
    server = job.options.get("server")
    if not server:
        return []
    return [f"  serves {server['judge']} ({server['command'][0]}) to {', '.join(job.cells)}"]
