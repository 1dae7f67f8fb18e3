"""The options of sbatch for each job, from the maps of config.sh. See https://slurm.schedmd.com/sbatch.html."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from imageevalkit.common.errors import UserError
from imageevalkit.common.slurm import SlurmFailed, ask
from imageevalkit.jobs.plan import GenerateOrder, Job, cell_of
from imageevalkit.plan.config import ALL, Config, parse_count
from imageevalkit.plan.models import entry_name

_MAPS = {
    "SLURM_PARTITION_MAP": "--partition",
    "SLURM_ACCOUNT_MAP": "--account",
    "SLURM_QOS_MAP": "--qos",
    "SLURM_TIME_MAP": "--time",
    "SLURM_MEM_MAP": "--mem",
    "SLURM_CPUS_MAP": "--cpus-per-task",
}
_ARGS = "SLURM_ARGS_MAP"
MAPS = (*_MAPS, _ARGS)
"""Names of the maps in config.sh with options of sbatch."""
API = "api"
"""Key in these maps for jobs that wait for endpoints: they need the internet, but no GPU."""
STAGES = ("rewrite", "generate", "adopt", "evaluate", "report")
_CPUS = {True: 2, False: 4}  # CPUs for each replica; the key is True for a light job
# sbatch options by which the launcher finds and restarts its jobs. A user's value would replace its own.
_OURS = (
    *("--job-name", "--comment", "--dependency", "--chdir", "--output", "--open-mode", "--nodes", "--ntasks"),
    *(
        "--requeue",
        "--no-requeue",
        "--kill-on-invalid-dep",
        "--signal",
        "--export",
        "--wrap",
        "--array",
        "--wait",
    ),
    *("--parsable", "--test-only"),
)
_OURS_SHORT = "JdDoNnaW"
_ASKS_FOR_GPUS = re.compile(r"--gpus|-G|--gres=.*\bgpu")
_ASKS_FOR_CPUS = re.compile(r"--cpus-per-(?:task|gpu)|-c")
_GPU = re.compile(r"\bgpu(?::[^:,(\s]+)?:(\d+)")


def gpus_per_node(config: Config) -> int:
    """Returns the number of GPUs of the largest node: SLURM_GPUS_PER_NODE in config.sh, else from sinfo.

    Raises UserError: SLURM_GPUS_PER_NODE is not a number, or it is empty and sinfo fails.
    """
    if given := config.text("SLURM_GPUS_PER_NODE").strip():
        return 0 if given == "0" else parse_count(given, "SLURM_GPUS_PER_NODE in config.sh")
    try:
        nodes = ask("sinfo", "--noheader", "--Node", "--format=%G").splitlines()
    except SlurmFailed as error:
        raise UserError(f"the cluster does not report its GPUs ({error}): set SLURM_GPUS_PER_NODE") from None
    return max((sum(map(int, _GPU.findall(node))) for node in nodes), default=0)


def words_for(config: Config, job: Job) -> list[str]:
    """Returns the sbatch options of ``job`` from the maps of config.sh.

    In each map, the first of these keys counts: model or benchmark, ``api`` (light jobs), stage, ``*``.

    Raises UserError: a variable is no map, its options cannot be split, or one is reserved for the launcher.
    """
    cells = [cell_of(key) for key in job.cells]
    names = {cell.benchmark if job.stage == "evaluate" else entry_name(cell.raw.model) for cell in cells}
    keys = [*(names if len(names) == 1 else ()), *([API] if job.light else ()), job.stage, ALL]

    def found(variable: str) -> str:
        given = config.map(variable)
        return next((given[key].strip() for key in keys if key in given), "")

    told = {option: found(variable) for variable, option in _MAPS.items()}
    words = [f"{option}={value}" for option, value in told.items() if value]
    try:
        more = shlex.split(found(_ARGS))
    except ValueError as error:
        raise UserError(f"{_ARGS} in config.sh: {found(_ARGS)!r}: {error}") from None
    if wrong := next(filter(_is_ours, more), ""):
        raise UserError(
            f"{_ARGS} in config.sh: '{wrong}' is reserved for the launcher, which finds its jobs by it: leave it out"
        )
    return [*words, *more]


def _is_ours(word: str) -> bool:
    option = word.partition("=")[0]
    # sbatch also accepts an unambiguous beginning of a long option
    is_long = len(option) > 4 and any(one.startswith(option) for one in _OURS)
    return is_long or (len(word) > 1 and word[0] == "-" and word[1] in _OURS_SHORT)


def words_for_size(job: Job, words: Iterable[str]) -> list[str]:
    """Returns the sbatch options for GPUs and CPUs of ``job``, unless ``words`` (config.sh) set them."""
    words = list(words)
    size = list[str]()
    if job.gpus_at_most and not any(map(_ASKS_FOR_GPUS.match, words)):
        size.append(f"--gpus-per-node={job.gpus_at_most}")
    if not any(map(_ASKS_FOR_CPUS.match, words)):
        size.append(f"--cpus-per-task={_CPUS[job.light or job.always] * replicas_of(job)}")
    return size


def replicas_of(job: Job) -> int:
    """Returns how many copies of its model the job may run at once."""
    if job.gpus:
        return job.gpus_at_most // job.gpus
    order = job.order
    if isinstance(order, GenerateOrder) and not order.api and not order.replica_gpus:
        return order.replicas or 1
    return 1
