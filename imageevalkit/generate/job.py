"""The generate job: one model on all its benchmarks, or all models of the toolkit's API classes at once.

The job runs in the driver's environment. Only its workers run in the model's.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from imageevalkit import registry
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.api.limiter import Traffic
from imageevalkit.api.sender import kind_of_sender, open_sender
from imageevalkit.common import logs
from imageevalkit.common.errors import CellFailure, ExitStatus, UserError, complain, worst
from imageevalkit.common.guest_code import guest_code
from imageevalkit.common.machine import Fit, garbage_collection, requests_that_fit
from imageevalkit.common.redaction import one_line, redact
from imageevalkit.generate.cell_run import CellRun, GenerateOptions
from imageevalkit.generate.concurrent import CellPlan, generate_together
from imageevalkit.generate.model import GenerationError, ImageModel, image_model
from imageevalkit.generate.replicas import WORKER, Replicas, environs_of, load_replicated
from imageevalkit.generate.worker import why_not_loaded
from imageevalkit.jobs.plan import (
    FAILED,
    STATUS_OF_STATE,
    USABLE,
    GenerateOrder,
    Job,
    Outcome,
    Plan,
    cell_of,
    given_job,
    not_started,
    note_opened,
    read_outcome,
    shared_bounds,
    write_outcome,
)
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import all_shown, drawn, items_of
from imageevalkit.store.records import spent_since
from imageevalkit.store.shards import Shard


def main(load_model: Callable[[Mapping[str, Any]], Any]) -> ExitStatus:
    """Generate the images of every cell of the job. Returns the worst exit status of the cells.

    ``load_model`` builds the model class of a resolved setting; it raises what the class raises.
    """
    plan, job, order = given_job(GenerateOrder)
    generation = _Generation(load_model, plan, job, order, plan.path.stat().st_mtime)
    done = generation.done_before()
    keys = [key for key in job.cells if key not in done]
    try:
        return worst([generation.run(keys), *(STATUS_OF_STATE[outcome.state] for outcome in done.values())])
    except UserError as error:
        for key in keys:
            generation.leave(cell_of(key), Outcome(FAILED, one_line(error)))
        return ExitStatus.FAILED


@dataclass(frozen=True)
class _Generation:
    """One start of a generate job. ``since`` is the start of the run in seconds since 1970."""

    load_model: Callable[[Mapping[str, Any]], Any]
    plan: Plan
    job: Job
    order: GenerateOrder
    since: float

    def run(self, keys: Collection[str]) -> ExitStatus:
        """Generate the images of the cells ``keys``. Raises UserError if not even one image can be made."""
        return asyncio.run(self._generate(keys))

    @property
    def _folder(self) -> Path:
        return Path(self.plan.run_folder)

    def leave(self, cell: Cell, outcome: Outcome) -> None:
        write_outcome(self._folder, cell, self.job.step, outcome)

    def _left(self, key: str, step: str = "") -> Outcome | None:
        return read_outcome(self._folder, cell_of(key), step or self.job.step)

    def done_before(self) -> dict[str, Outcome]:
        """Returns the usable outcomes of earlier starts of the job on Slurm, by cell.

        The job holds no locks on these cells: their evaluation may have started on other nodes.
        """
        if self.plan.cluster is None:
            return {}
        found = {key: outcome for key in self.job.cells if (outcome := self._left(key))}
        return {key: outcome for key, outcome in found.items() if outcome.state in USABLE}

    async def _generate(self, keys: Collection[str]) -> ExitStatus:
        job, order = self.job, self.order
        traffic = self._traffic()
        # when the plan was made, no image was left to generate, so the job has no GPU
        unlent = bool(order.replica_gpus) and not job.gpus
        replicas = None
        if order.python or not order.api:
            replicas = Replicas(
                [] if unlent else self._environs(),
                (order.python or sys.executable, WORKER),
                None if order.api else order.item_timeout,
                traffic if order.api else None,
            )
        in_flight = traffic.workers if order.api or replicas is None else max(1, replicas.size)
        progress = ProgressWriter(self.plan.progress_path(job))
        models, by_cell = dict[str, list[CellPlan]](), dict[Cell, CellPlan]()
        for key, path in zip(job.cells, map(Path, job.logs), strict=True):
            cell = cell_of(key)
            # the cost of the job before it crashed and was restarted
            spent = spent_since(cell, self.since) if order.api else 0.0
            if key not in keys:
                continue
            planned = by_cell[cell] = CellPlan(
                cell,
                functools.partial(self._opened, cell, path, progress, in_flight, spent),
                functools.partial(logs.append, path),
            )
            planned.log(f"=== generate {key}")
            models.setdefault(cell.model, []).append(planned)
        statuses = []
        stopping: list[ExitStatus] = []

        def settle(cell: Cell, outcome: Outcome) -> None:
            if traffic.lowered:
                outcome = replace(outcome, message=f"{outcome.message}; {traffic.lowered}")
            if not stopping:  # a stopped cell has not failed
                statuses.append(self._settle(by_cell[cell], outcome))

        loop = asyncio.get_running_loop()

        def load(run: CellRun) -> ImageModel:  # runs in a thread
            if replicas is None:
                return self._bounded(self._load(run), traffic, run)
            if unlent:  # without a GPU, the model would run on the CPU
                for item in run.todo:
                    # a newer file makes the next plan read the image and give the job GPUs
                    with contextlib.suppress(OSError):
                        os.utime(item.path)
                raise CellFailure(
                    "images were damaged or removed after the start of the run, and its job has no GPU to "
                    "generate them again: the same command does"
                )
            model = asyncio.run_coroutine_threadsafe(load_replicated(replicas, run), loop).result()
            return self._bounded(model, traffic, run)

        making = asyncio.ensure_future(
            generate_together(list(models.values()), load, traffic.workers, settle)
        )

        # requests in flight may be billed: they are recorded before the process ends
        def stop(status: ExitStatus) -> None:
            if not stopping:
                stopping.append(status)
                making.cancel()

        loop.add_signal_handler(signal.SIGTERM, stop, ExitStatus.TERMINATED)
        loop.add_signal_handler(signal.SIGINT, stop, ExitStatus.INTERRUPTED)
        try:
            await making
        except asyncio.CancelledError:
            if not stopping:
                raise
        finally:
            if replicas:
                await replicas.close()
        return worst([*statuses, *stopping])

    def _opened(
        self, cell: Cell, log_path: Path, progress: ProgressWriter, in_flight: int, spent: float
    ) -> CellRun:
        """Returns the cell, ready to be generated; an evaluation that follows it may start from now on.

        This run has already ``spent`` USD on the cell. Raises CellFailure if a file is missing or damaged.
        """
        rewritten, order = self._left(cell.key, "rewrite"), self.order
        if rewritten and rewritten.state not in USABLE:
            raise CellFailure(not_started("rewrite", rewritten.state))
        settings = self.plan.settings.get(cell.benchmark, {})
        # check the benchmark's files against their pinned hashes before an image is paid for
        registry.benchmark_files(cell.benchmark, settings).sha256()
        with garbage_collection(False):
            dataset, shard = registry.load_dataset(cell.benchmark, settings), Shard.of(self.job.shard)
            run = CellRun(
                cell,
                all_shown(
                    cell,
                    drawn(
                        items_of(dataset, cell, order.limit), cell.benchmark, order.asked.get(cell.benchmark)
                    ),
                ),
                dataset.dataset_task,
                order.settings[cell.model][dataset.dataset_task],
                GenerateOptions(order.overwrite, order.retry_refused, order.blank_on_error, in_flight),
                progress,
                functools.partial(logs.append, log_path),
                log_path,
                shard,
            )
        run.max_cost, run.cost = order.max_cost, spent or None
        if order.api and run.todo:
            run.sender = open_sender(cell.batches, cell.key, order.sender)
        if run.todo and not run.outcome and shard is None:  # no evaluation follows a shard
            note_opened(self._folder, cell, run.fingerprint)
        return run

    def _load(self, run: CellRun) -> ImageModel:
        """Returns the loaded model of a cell. Raises CellFailure if the model does not load."""
        try:
            with guest_code():
                return image_model(self.load_model(run.setting))
        except Exception as error:
            said = one_line(error, 500)
            if not isinstance(error, GenerationError):
                run.log(redact(traceback.format_exc()))
                said = why_not_loaded(error)
            raise CellFailure(f"model does not load: {said}") from None

    def _bounded(self, model: ImageModel, traffic: Traffic, run: CellRun) -> ImageModel:
        """Returns ``model``, whose requests go through ``traffic``.

        Raises CellFailure if its class does not support an option of the run.
        """
        is_bounded = model.use_traffic(traffic)
        if not is_bounded and run.setting.get("api") and traffic.budget.max_cost is not None:
            raise CellFailure(
                "--max_cost cannot bound a model class that does not report the cost of its images"
            )
        kind = kind_of_sender(self.order.sender)
        if kind and run.setting.get("api") and not model.takes_sender:
            raise CellFailure(
                "its class makes its requests itself or has an environment of its own (INFER_ENV_MAP), so that none "
                f"can go {kind.way}: leave out {kind.option}"
            )
        return model

    def _environs(self) -> list[dict[str, str]]:
        """Returns the additional environment of each worker: one for each replica of a local model.

        Raises UserError if the job has too few GPUs for one replica.
        """
        if self.order.api:
            return [{}]
        found = environs_of(self.order.replica_gpus, self.order.replicas)
        if not found:
            raise UserError(
                f"{self.job.name} needs {self.job.gpus} GPU(s), and CUDA_VISIBLE_DEVICES has fewer"
            )
        return found

    def _traffic(self) -> Traffic:
        """Returns the limits for all requests of the job. Raises UserError if not even one request fits."""
        order = self.order
        fit = Fit(order.workers)
        if order.api:
            # Each request needs descriptors for itself and for the download of its image. Idle connections of
            # a model stay open for a while after its turn.
            clients = sum(map(len, order.settings.values()))
            settings = [one for tasks in order.settings.values() for one in tasks.values()]
            endpoints = {Endpoint.of(one["model_kwargs"]) for one in settings if one.get("api")}
            fit = requests_that_fit(order.workers, each=len(endpoints) + clients)
        shared = shared_bounds(self._folder)
        return Traffic(fit.requests, order.requests_per_minute, order.max_cost, fit.reason, shared)

    def _settle(self, planned: CellPlan, outcome: Outcome) -> ExitStatus:
        planned.log(f"=== {outcome.state}: {outcome.message}")
        try:
            self.leave(planned.cell, outcome)
        except (CellFailure, OSError) as error:
            # the launcher explains a cell without an outcome; the other cells continue
            complain(str(error))
            return ExitStatus.FAILED
        return STATUS_OF_STATE[outcome.state]
