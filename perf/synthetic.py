"""A matrix of models × benchmarks whose jobs have known lengths, and what no order of them can beat."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import NamedTuple

from imageevalkit.jobs.plan import Job
from imageevalkit.store.shards import Shard

GPUS = 8
"""Of a machine."""


class Matrix(NamedTuple):
    """Jobs in the order of a plan, and by name the seconds that one replica takes for each cell in turn."""

    jobs: list[Job]
    seconds: dict[str, list[float]]

    @classmethod
    def of(
        cls, models: int, benchmarks: int, seconds: float, replicas: int | None = 1, shards: int = 1
    ) -> Matrix:
        """In the mean the images of a cell take ``seconds``, and so does its evaluation; every third asks an API.

        Every other model takes two GPUs. It has up to so many ``replicas`` (None: what a machine has GPUs for) in each
        of so many ``shards``. Lengths are drawn, and the same in every run.
        """
        rng = random.Random(17)
        of_model = [seconds * rng.uniform(0.6, 1.4) for _ in range(models)]
        images, judging = ([rng.uniform(0.5, 1.5) for _ in range(benchmarks)] for _ in range(2))
        making, evaluating, lengths = list[Job](), list[Job](), dict[str, list[float]]()
        for m in range(models):
            each, cells = 1 + m % 2, [f"model-{m}/benchmark-{b}" for b in range(benchmarks)]
            most = each * min(GPUS // each, replicas or GPUS)
            whole = Job(f"generate:model-{m}", "generate", [], cells, [], gpus=each, gpus_at_most=most)
            parts = [whole]
            if shards > 1:
                parts = [
                    replace(whole, name=f"{whole.name} {n}/{shards}", shard=str(Shard(n, shards)))
                    for n in range(1, shards + 1)
                ]
            making += parts
            lengths |= {part.name: [of_model[m] * count / shards for count in images] for part in parts}
            for b, cell in enumerate(cells):
                asks, name = b % 3 == 2, f"evaluate:{cell}"
                after = [part.name for part in parts]
                evaluating.append(
                    Job(name, "evaluate", [], [cell], [], after=after, gpus=int(not asks), light=asks)
                )
                lengths[name] = [seconds * images[b] * judging[b]]
        jobs = [*making, *evaluating]
        report = Job("report", "report", [], [], [], after=[job.name for job in jobs], always=True)
        return cls([*jobs, report], {**lengths, report.name: [0.1 * seconds]})

    @property
    def in_turn(self) -> float:
        """Seconds of one job after another, each with all of its replicas."""
        return sum(sum(self.seconds[job.name]) / replicas(job) for job in self.jobs)

    def bound(self, gpus: int) -> float:
        """Seconds that nobody needs less than on so many ``gpus``."""
        return max(
            sum(job.gpus * sum(self.seconds[job.name]) for job in self.jobs) / gpus, self._longest_way()
        )

    def _longest_way(self) -> float:
        left, ended = dict[tuple[str, str], float](), dict[str, float]()
        for job in self.jobs:
            before = (left.get((name, cell), 0.0) for name in job.after for cell in job.cells)
            at = max((ended[name] for name in job.after) if job.always else before, default=0.0)
            for cell, seconds in zip(job.cells or [""], self.seconds[job.name], strict=True):
                at += seconds / replicas(job)
                left[job.name, cell] = at
            ended[job.name] = at
        return max(ended.values())


def replicas(job: Job) -> int:
    """How many copies of its model it has at most."""
    return job.gpus_at_most // job.gpus if job.gpus else 1
