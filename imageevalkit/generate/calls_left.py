"""Counts the calls of local models that the generate jobs of a plan have left, before a run takes GPUs.

The planner writes the plan as JSON to stdin. This program prints the number of calls by job.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys

from imageevalkit.common.errors import ExitStatus, run_main, show
from imageevalkit.common.guest_code import guest_code, stdout_kept
from imageevalkit.jobs.estimates import Datasets
from imageevalkit.jobs.plan import GenerateOrder, Job, cell_of, plan_in
from imageevalkit.store.shards import Shard


def calls_of(job: Job, datasets: Datasets) -> int:
    """Returns the model calls that ``job`` has left; counting stops at the number of its replicas.

    A call generates ``batch_size`` images. An image is read only if it is newer than its record: there may be
    terabytes, and the job itself reads them all. Changes no file. Raises an error if files of a benchmark are missing.
    """
    order, shard, calls = job.order, Shard.of(job.shard), 0
    assert isinstance(order, GenerateOrder)
    for cell in map(cell_of, job.cells):
        if calls >= job.gpus_at_most // job.gpus:
            break
        setting, whole = datasets.survey(cell, order, shard, quick=True)
        if whole.of("stale") and not order.overwrite:
            continue  # the job would not generate this cell
        found = whole.of_shard(shard) if shard else whole
        images = len(found.to_make(order.overwrite, order.retry_refused))
        calls += math.ceil(images / setting["model_kwargs"].get("batch_size", 1))
    return calls


def main() -> ExitStatus:
    """Prints :func:`calls_of` of each job as JSON, without jobs whose images cannot be counted."""
    plan, calls = plan_in(sys.stdin.buffer.read()), dict[str, int]()
    datasets = Datasets(plan.settings)
    with stdout_kept():
        for job in plan.jobs:
            # an error in one dataset class must not hide the other jobs
            with contextlib.suppress(Exception), guest_code():
                calls[job.name] = calls_of(job, datasets)
    show(json.dumps(calls))
    return ExitStatus.COMPLETE


if __name__ == "__main__":
    run_main(main)
