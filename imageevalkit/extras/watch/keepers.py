"""Keepers: processes that load a judge once and keep it in memory for all runs of ``--watch``."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from imageevalkit.common.errors import UserError, say
from imageevalkit.common.text import counted
from imageevalkit.jobs.plan import EvaluateOrder, Job, Plan, ServeOrder, job_words
from imageevalkit.judges.server import ServerAddress
from imageevalkit.plan.gpus import MinFreeMemory, visible, visible_gpus
from imageevalkit.plan.options import Options
from imageevalkit.run.gpu_pool import GpuPool, Lease, Offer
from imageevalkit.run.runner import Guarded, describe_exit, job_environ
from imageevalkit.store.cell import REPO, log_root, short_path

_TICK = 0.2
_IN_PROCESS = "transformers:"
_KEEPER = "imageevalkit.extras.watch.keeper"


@dataclass
class _Keeper:
    """The process that keeps ``judge``. ``place`` is the file with the server's address, or a socket."""

    judge: str
    job: Job
    place: Path
    lease: Lease | None = None
    process: Guarded | None = None

    @property
    def serves(self) -> bool:
        return isinstance(self.job.order, ServeOrder)

    @property
    def works(self) -> bool:
        """True if the process runs and has not given up serving the judge."""
        if self.process is None or self.process.poll() is not None:
            return False
        return not (self.serves and ServerAddress(self.place).given_up)


class Keepers:
    """The keepers of the judges on this machine. ``plan`` is an example of the runs to come.

    A judge that needs GPUs is kept only if enough GPUs remain for the model, or GPUs are shared. ``notes`` has a
    line for the user on each judge. The keepers' plan is in ``folder``. Use this in the main thread only.
    """

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._folder = folder.absolute()
        self._keepers: dict[tuple[str, str], _Keeper] = {}
        self.notes = list[str]()
        self._lifeline, self._end = os.pipe()
        # not in ``folder``: the path of a socket is limited to 107 bytes
        self._sockets = Path(tempfile.mkdtemp(prefix="imageevalkit-"))
        wanted = {key: job for job in plan.jobs if (key := _key(job))}
        kept = sum(job.gpus for job in wanted.values())
        others = max((job.gpus for job in plan.jobs if not _key(job)), default=0)
        scarce = bool(kept) and not plan.share_gpus and kept + others > len(visible())
        self._pool = GpuPool(
            visible_gpus() if kept and not scarce else [],
            MinFreeMemory.parse(plan.gpu_min_free_memory, "gpu_min_free_memory of the plan"),
            plan.share_gpus,
        )
        for key, job in wanted.items():
            judge = key[0]
            if job.gpus and scarce:
                self.notes.append(
                    f"judge {judge} is loaded again for each checkpoint: it takes {counted(job.gpus, 'GPU')} and other "
                    f"jobs {others}, of {len(visible())}; with SHARE_GPUS=true both stay on one, if both fit"
                )
                continue
            self._keepers[key] = self._keeper(judge, job, len(self._keepers))
            unless = "" if self._keepers[key].serves else ", unless metric models need its memory"
            log = short_path(self._keepers[key].job.logs[0])
            self.notes.append(f"judge {judge} is loaded once{unless}, log {log}")
        self.notes += [
            f"evaluating {job.cells[0].rpartition('/')[2]} loads its metric models again for each checkpoint"
            for job in (*plan.jobs, *plan.parts)
            if isinstance(job.order, EvaluateOrder) and job.gpus and not _key(job)
        ]
        self.plan = Plan(str(self._folder), None, [keeper.job for keeper in self._keepers.values()])

    def _keeper(self, judge: str, job: Job, number: int) -> _Keeper:
        run = self._folder
        name, log = f"judge:{judge}", str(log_root() / f"keeper{number}_{run.name}.log")
        if isinstance(job.order, ServeOrder):
            place = run / "judges" / Path(job.order.address_file).name
            command = [*job.command[:3], *job_words(run / "plan.json", name)]
            log = str(log_root() / f"judge_{place.name}_{run.name}.log")
            order = replace(job.order, parts=[], address_file=str(place), log=log)
            secrets = order.secrets
        else:
            place, order, secrets = self._sockets / str(number), None, job.secrets
            command = [job.command[0], "-m", _KEEPER, str(place)]
        kept = Job(
            name, "judge", command, [], [log], secrets=secrets, gpus=job.gpus, cores=job.cores, order=order
        )
        return _Keeper(judge, kept, place)

    def with_judges(self, options: Options) -> Options:
        """Returns the ``options`` of a run that uses the kept judges."""
        keepers = self._keepers.items()
        servers = {judge: str(one.place) for (judge, _), one in keepers if one.serves}
        programs = {key: ["-m", _KEEPER, str(one.place)] for key, one in keepers if not one.serves}
        return replace(options, kept_servers=servers, kept_programs=programs)

    @property
    def all_work(self) -> bool:
        return all(keeper.works for keeper in self._keepers.values())

    def start(self, is_stopped: Callable[[], bool]) -> None:
        """Start each keeper that does not run or has given up, once its GPUs are free, until ``is_stopped``.

        Raises UserError: the GPU driver fails, or a keeper cannot be started.
        """
        for keeper in self._keepers.values():
            if keeper.works:
                continue
            if keeper.process is not None:
                self._stop(keeper)
            keeper.place.unlink(missing_ok=True)
            if not (lease := self._lease(keeper, is_stopped)):
                return
            environ = job_environ(keeper.job, lease.environ(), keeper.job.cores)
            log = REPO / keeper.job.logs[0]
            if keeper.serves:
                log = log.with_name(f"keeper_{log.name}")  # the server writes its own log
            try:
                keeper.process = Guarded(
                    keeper.job.command, log, keeper.job.name, environ, self._lifeline, lease.fds
                )
            except OSError as error:
                self._pool.give_back(lease)
                raise UserError(
                    f"judge {keeper.judge} cannot be kept: {error.strerror}: {error.filename}"
                ) from None
            keeper.lease = lease
            # a job that reads the address before it is written would report an ended server
            while (
                keeper.serves
                and keeper.works
                and not ServerAddress(keeper.place).is_kept
                and not is_stopped()
            ):
                time.sleep(_TICK)

    def _lease(self, keeper: _Keeper, is_stopped: Callable[[], bool]) -> Lease | None:
        reported = ""
        while not is_stopped():
            with Offer(self._pool) as offer:
                if lease := offer.reserve(keeper.job.gpus, keeper.job.gpus):
                    return lease
                why = offer.why_not(keeper.job.gpus)
            if why and why != reported:
                say(f"judge {keeper.judge} waits: {why}")
                reported = why
            time.sleep(_TICK)
        return None

    def _stop(self, keeper: _Keeper) -> None:
        assert keeper.process
        if (status := keeper.process.poll()) is not None:
            say(
                f"the process that kept judge {keeper.judge} has ended ({describe_exit(status)}): it starts again"
            )
        keeper.process.end()
        keeper.process = None
        if keeper.lease:
            self._pool.give_back(keeper.lease)

    def close(self) -> None:
        """End all keepers."""
        os.close(self._end)  # each guard ends its processes when the lifeline closes
        for process in self._running():
            process.end()
        for one in self._keepers.values():
            if one.lease:
                one.lease.release()
        os.close(self._lifeline)
        shutil.rmtree(self._sockets, ignore_errors=True)

    def _running(self) -> Iterator[Guarded]:
        return (keeper.process for keeper in self._keepers.values() if keeper.process)


def _key(job: Job) -> tuple[str, str] | None:
    """Return the judge that ``job`` loads, and the Python that loads it; None if none can be kept."""
    if isinstance(job.order, ServeOrder):
        return job.order.judge, ""
    is_ours = job.command[1:3] == ["-m", "imageevalkit.evaluate"]
    if not (is_ours and isinstance(job.order, EvaluateOrder) and job.order.ask):
        return None
    kept = job.order.judge.startswith(_IN_PROCESS)
    return (job.order.judge, job.command[0]) if kept else None
