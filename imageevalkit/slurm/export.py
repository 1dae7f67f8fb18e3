"""Writes a plan as shell scripts and a list of their dependencies, for a workflow engine of the user."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.errors import ExitStatus, say
from imageevalkit.common.redaction import secret_names
from imageevalkit.common.text import counted
from imageevalkit.jobs.plan import Job, Plan, job_words
from imageevalkit.plan.config import DRIVER_PYTHON, with_our_paths
from imageevalkit.store.cell import REPO, short_path

# The variables that eval.sh exports, and our own: without them a job would behave differently elsewhere.
_PASSED_ON = (
    *(
        "CONDA_BASE",
        "CUDA_BASE",
        "TORCH_HOME",
        "HF_HOME",
        "TRANSFORMERS_CACHE",
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
    ),
    *(
        "BASE_URL",
        "AZURE_OPENAI_ENDPOINT",
        "OPENAI_API_VERSION",
        "OPENAI_ORG_ID",
        "OPENAI_PROJECT_ID",
        "HF_ENDPOINT",
    ),
    *(
        "IMAGEEVALKIT_OUTPUT",
        "IMAGEEVALKIT_LOG",
        "ORT_DISABLE_TELEMETRY",
        "DO_NOT_TRACK",
        "PYTHONUTF8",
        "PYTHONPATH",
    ),
)


def write(plan: Plan) -> ExitStatus:
    """Writes the scripts of ``plan`` and prints their folder. Raises CellFailure: the disk is full."""
    folder = write_scripts(plan)
    say(f"{counted(len(plan.jobs), 'script')} and jobs.json in {short_path(folder)}: nothing was started")
    return ExitStatus.COMPLETE


def write_scripts(plan: Plan) -> Path:
    """Writes the scripts of ``plan`` to ``export`` in its run folder, which is returned.

    Raises CellFailure: the disk is full.

    ``jobs.json`` lists the jobs in an order in which they can run. ``after`` names the jobs that must end
    first, well or not. Jobs of the same ``level`` do not depend on each other. A ``light`` job waits for
    endpoints most of the time. ``secrets`` are the variables that the engine must pass to the job.
    """
    folder, levels, jobs = (
        Path(plan.run_folder).absolute() / "export",
        dict[str, int](),
        list[dict[str, object]](),
    )
    folder.mkdir(parents=True, exist_ok=True)
    for number, job in enumerate(plan.jobs, 1):
        levels[job.name] = 1 + max((levels[name] for name in job.after), default=0)
        script = folder / f"{number:04}-{job.stem}.sh"
        write_atomic(script, _script(plan, job))
        script.chmod(0o755)
        told = {"name": job.name, "script": str(script), "after": job.after, "level": levels[job.name]}
        told |= {"gpus": job.gpus_at_most, "cpus": job.cores, "light": job.light, "secrets": job.secrets}
        jobs.append(told)
    write_atomic(folder / "jobs.json", json.dumps(jobs, indent=1, ensure_ascii=False) + "\n")
    return folder


def _script(plan: Plan, job: Job) -> str:
    environ, secrets = with_our_paths(dict(os.environ)), {*secret_names()}
    told = {name: environ[name] for name in _PASSED_ON if environ.get(name) and name not in secrets}
    lines = [
        "#!/usr/bin/env bash",
        f"# {job.name}: {counted(job.gpus_at_most, 'GPU')}, {counted(job.cores, 'core')}",
    ]
    lines += [f"# needs {name} in its environment" for name in job.secrets]
    lines += ["set -euo pipefail", f"cd {shlex.quote(str(REPO))}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in told.items()]
    words = [DRIVER_PYTHON, "-P", "-m", "imageevalkit.slurm.node_job", *job_words(plan.path, job.name)]
    return "\n".join([*lines, f"exec {shlex.join(words)}"]) + "\n"
