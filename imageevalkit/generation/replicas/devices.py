"""How the GPUs of a job are shared among the replicas of its model."""

from __future__ import annotations

import os
from collections.abc import Mapping

from imageevalkit.cores import available_cores


def environs(
    per_replica: int, most: int | None, environ: Mapping[str, str] = os.environ
) -> list[dict[str, str]]:
    """What makes each worker see its own ``per_replica`` GPUs of those that the job sees, at most ``most`` workers.

    Without GPUs there is one worker, or ``most``; workers then share the cores.
    """
    if per_replica:
        names = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        groups = [names[n : n + per_replica] for n in range(0, len(names) - per_replica + 1, per_replica)]
        return [{"CUDA_VISIBLE_DEVICES": ",".join(group)} for group in groups[:most]]
    count = most or 1
    if count == 1 or "OMP_NUM_THREADS" in environ:
        return [{}] * count
    # numerical libraries take all cores each, and workers that fight for them are slower than one alone
    return [{"OMP_NUM_THREADS": str(max(1, available_cores() // count))}] * count
