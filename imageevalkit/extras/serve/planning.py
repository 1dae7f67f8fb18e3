"""Plans the job that serves a judge and runs the evaluate jobs that ask it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from imageevalkit.assets.check import hub_secrets
from imageevalkit.common.errors import UserError
from imageevalkit.jobs.plan import Job, ServeOrder
from imageevalkit.judges.server import ServerSettings
from imageevalkit.plan.benchmarks import ConfiguredJudge
from imageevalkit.plan.config import DRIVER_PYTHON, program_of
from imageevalkit.plan.stage_jobs import Run, ServedJudge
from imageevalkit.store.cell import log_root

_RETRIES = 1
_MAX_LOGPROBS = 20  # the maximum of the OpenAI API, and the default of top_logprobs


def serve_command(settings: ServerSettings, executable: Path, model: str, gpus: int) -> list[str]:
    """Returns the ``vllm serve`` command for ``model`` (a hub id or a folder), without the port."""
    flags = {
        "host": "127.0.0.1",
        "served-model-name": model,
        # sampling parameters missing in a request: as in an official evaluator's plain `vllm serve`
        "generation-config": "auto",
        "max-logprobs": str(_MAX_LOGPROBS),
        # no memory for videos: it would be missing in the cache
        "limit-mm-per-prompt": '{"video": 0}',
        # else the log has a line per question, which hides errors
        "uvicorn-log-level": "warning",
        "tensor-parallel-size": str(gpus or ""),
        # not "auto" without a GPU: vLLM's automatic length is then 512
        "max-model-len": str(settings.max_model_len or "auto" * bool(gpus)),
        "revision": settings.revision,
    }
    given = [word for name, value in flags.items() if value for word in (f"--{name}", value)]
    return [str(executable), "serve", model, *given, *settings.further_flags()]


def _order(run: Run, judge: ConfiguredJudge, settings: ServerSettings) -> ServeOrder:
    """Returns the order for the judge server that the run starts. Raises UserError: no environment."""
    choice, model = judge.choice, judge.model_path
    takes = run.supply.wanted(settings.gpus, f"judge '{choice.name}' wants")
    try:
        executable = program_of(judge.environment(run.config), "vllm", f"judge {choice.name}", "--judge vllm")
    except UserError as error:
        raise UserError(
            f"{error}; or name a server that runs already: --judge_kwargs base_url=http://…/v1"
        ) from None
    stem = choice.full_name.replace("/", "__").replace(":", "_")
    return ServeOrder(
        judge=choice.full_name,
        model=model,
        command=serve_command(settings, executable, model, takes),
        secrets=hub_secrets(judge.weights),
        gpus=takes,
        start_timeout=settings.start_timeout,
        log=str(log_root() / f"judge_{stem}_{run.stamp}.log"),
        address_file=str((run.folder / "judges" / stem).absolute()),
    )


def _job(run: Run, server: ServeOrder, parts: Sequence[Job]) -> Job:
    """Returns one job that starts ``server`` and runs the evaluate jobs ``parts`` with it.

    The job starts after all images are generated: a waiting server would hold the GPUs that make images.
    """
    name = f"evaluate:{server.judge}"
    return Job(
        name=name,
        stage="evaluate",
        command=[DRIVER_PYTHON, "-m", "imageevalkit.extras.serve.judge_server", *run.words(name)],
        cells=[cell for job in parts for cell in job.cells],
        logs=[log for job in parts for log in job.logs],
        after=list(dict.fromkeys(name for job in parts for name in job.after)),
        secrets=sorted({*server.secrets, *(name for job in parts for name in job.secrets)}),
        gpus=server.gpus,
        cores=run.cores,
        retries=_RETRIES,
        order=replace(server, parts=[job.name for job in parts]),
    )


SERVED = ServedJudge(_order, _job)
