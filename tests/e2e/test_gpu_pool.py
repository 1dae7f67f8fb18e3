"""The GPUs of a run: how jobs share them, and what keeps one from being taken."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from imageevalkit.common.errors import UserError
from imageevalkit.plan.gpus import Gpu, MinFreeMemory
from imageevalkit.run import gpu_pool
from imageevalkit.run.gpu_pool import GpuPool, Lease, Offer, lock
from tests.support.fake_gpus import (
    fail_memory,
    install_fake_gpus,
    lose,
    memory_reads,
    set_memory,
    slow_memory,
)
from tests.support.waiting import LONGEST_WAIT, wait_for

WHOLE = [Gpu(str(n), f"GPU-{n}") for n in range(8)]
MIGS = [Gpu(f"MIG-{n}", f"MIG-{n}") for n in range(3)]
MakePool = Callable[..., GpuPool]


@pytest.fixture
def make_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakePool:
    monkeypatch.setenv("FAKE_NVML", install_fake_gpus(tmp_path, [gpu.key for gpu in WHOLE]))

    def make(gpus: list[Gpu], min_free: str = "0", shares: bool = False) -> GpuPool:
        return GpuPool(gpus, MinFreeMemory.parse(min_free, ""), shares, tmp_path / "leases")

    return make


def reserved(pool: GpuPool, unit: int = 1) -> tuple[Lease | None, str]:
    """The lease of one job that takes ``unit`` GPUs, once the driver has told its memory, or why there is none."""
    deadline = time.monotonic() + LONGEST_WAIT
    while True:
        with Offer(pool) as offer:
            if lease := offer.reserve(unit, unit):
                return lease, ""
            why = offer.why_not(unit)
        if "is asked" not in why:
            return None, why
        assert time.monotonic() < deadline
        time.sleep(0.02)


def why_not(pool: GpuPool, unit: int = 1) -> str:
    lease, why = reserved(pool, unit)
    assert lease is None
    return why


def take(pool: GpuPool, unit: int = 1) -> Lease:
    lease, why = reserved(pool, unit)
    assert lease is not None, why
    return lease


@pytest.mark.parametrize(
    ("gpus", "wanted", "shares"),
    [
        # one job alone: all that it can use, in whole replicas
        (WHOLE, [(1, 8)], ["01234567"]),
        (WHOLE[:7], [(2, 8)], ["012345"]),
        # side by side: each its minimum, the rest in turn, the remainder to the first
        (WHOLE[:5], [(1, 5), (1, 5)], ["024", "13"]),
        (WHOLE[:6], [(2, 6), (2, 6)], ["0145", "23"]),
        (WHOLE, [(1, 1), (1, 2), (1, 8)], ["0", "13", "24567"]),
        (WHOLE[:3], [(4, 4), (2, 2), (1, 3)], [None, "01", "2"]),
        (WHOLE[:2], [(0, 0), (1, 2)], ["", "01"]),
        # a replica over several GPUs needs whole ones, one on one GPU takes either
        ([*MIGS[:1], *WHOLE[:2]], [(2, 2), (1, 3)], ["01", "MIG-0"]),
    ],
)
def test_free_gpus_are_divided(
    make_pool: MakePool, gpus: list[Gpu], wanted: list[tuple[int, int]], shares: list[str | None]
) -> None:
    pool = make_pool(gpus)
    with Offer(pool) as offer:
        got = [offer.reserve(unit, most) for unit, most in wanted]
        offer.grow()
    assert [_names(lease) for lease in got] == shares
    leases = [lease for lease in got if lease]
    taken = [gpu for lease in leases for gpu in lease.gpus]
    assert len(set(taken)) == len(taken)
    for lease in leases:
        pool.give_back(lease)
    again = make_pool(gpus)
    with Offer(again) as offer:
        assert offer.reserve(1, 1), "all are free again"


def _names(lease: Lease | None) -> str | None:
    return None if lease is None else "".join(gpu.name for gpu in lease.gpus)


def test_what_nobody_takes_is_free_for_other_runs(make_pool: MakePool) -> None:
    first, other = make_pool(WHOLE[:3]), make_pool(WHOLE[:3])
    with Offer(first) as offer:
        ours = _reserve(offer, 2)
        assert ours
        assert why_not(other) == "needs a GPU; GPUs 0, 1, 2: " + _held(other, WHOLE[0])
    third = take(other)
    assert third.gpus == [WHOLE[2]]
    first.give_back(ours)
    other.give_back(third)
    lease = take(other, 3)
    assert _held(first, WHOLE[1]) in why_not(first)
    other.give_back(lease)
    assert take(first, 3)


def _reserve(offer: Offer, unit: int) -> Lease | None:
    return offer.reserve(unit, unit)


def _held(pool: GpuPool, gpu: Gpu) -> str:
    return f"held by {pool._holder(gpu)}"


def test_memory_of_others_keeps_a_gpu(make_pool: MakePool, tmp_path: Path) -> None:
    set_memory(tmp_path, {"GPU-0": 12.3, "GPU-1": 7.9, "GPU-2": 8.1})
    pool = make_pool(WHOLE[:3], "90%")
    assert take(pool).gpus == [WHOLE[1]]
    assert why_not(pool, 3) == (
        "needs 3 GPUs; GPU 0: 12.3 of 80.0 GiB in use by another process (GPU_MIN_FREE_MEMORY=90%); "
        "GPU 2: 8.1 of 80.0 GiB in use by another process (GPU_MIN_FREE_MEMORY=90%)"
    )
    set_memory(tmp_path, {"GPU-0": 0, "GPU-1": 70, "GPU-2": 0})
    deadline = time.monotonic() + LONGEST_WAIT
    while (found := reserved(pool, 2)[0]) is None:
        assert time.monotonic() < deadline, "what has become free is seen"
        time.sleep(0.05)
    assert found.gpus == [WHOLE[0], WHOLE[2]]


@pytest.mark.parametrize(
    ("min_free", "used", "free"),
    [("90%", 8.1, False), ("20GiB", 59, True), ("0", 79, True)],
)
def test_thresholds(make_pool: MakePool, tmp_path: Path, min_free: str, used: float, free: bool) -> None:
    set_memory(tmp_path, {"GPU-0": used})
    assert (reserved(make_pool(WHOLE[:1], min_free))[0] is not None) == free
    assert memory_reads(tmp_path, "GPU-0") == (min_free != "0")


@pytest.mark.parametrize("text", ["120%", "90"])
def test_no_threshold(text: str) -> None:
    with pytest.raises(UserError, match=r"use a percentage \(90%\) or an amount \(20GiB\)"):
        MinFreeMemory.parse(text, "GPU_MIN_FREE_MEMORY in config.sh")


def test_a_gpu_that_is_too_small_is_not_waited_for(make_pool: MakePool) -> None:
    pool = make_pool(WHOLE[:2], "96GiB")
    assert reserved(pool)[0] is None
    assert pool.never(1) == "GPUs 0, 1: 80.0 GiB in all, less than GPU_MIN_FREE_MEMORY=96GiB"


def test_a_gpu_that_is_lost_while_the_run_goes_on(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool(WHOLE[:2], "90%")
    pool.give_back(take(pool, 2))
    lose(tmp_path, 0)
    assert take(pool).gpus == [WHOLE[1]], "the other goes on"
    assert reserved(pool)[0] is None and pool.never(1) == ""
    assert pool.never(2) == "GPU 0: does not answer any more (see nvidia-smi)"


def test_the_driver_is_asked_again_after_it_failed(make_pool: MakePool, tmp_path: Path) -> None:
    fail_memory(tmp_path, "Timeout")
    pool = make_pool(WHOLE[:1], "90%")
    with pytest.raises(UserError, match="Timeout"):
        reserved(pool)
    fail_memory(tmp_path, "")
    assert take(pool).gpus == [WHOLE[0]]


def _is_free(gpu: Gpu) -> bool:
    """Whether nobody has the lock of ``gpu``: a process that starts just now has copies of this one's for a moment."""
    fd = lock(gpu)
    if fd is not None:
        os.close(fd)
    return fd is not None


def test_memory_of_the_job_before_is_not_another_process(
    make_pool: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_pool, "_FREEING", LONGEST_WAIT)  # a busy machine takes longer to ask
    pool = make_pool(WHOLE[:1], "90%")
    lease = take(pool)
    set_memory(tmp_path, {"GPU-0": 40})
    pool.give_back(lease)
    wait_for(lambda: _is_free(WHOLE[0]))
    asked = memory_reads(tmp_path, "GPU-0")
    assert why_not(pool) == "needs a GPU; GPU 0: 40.0 of 80.0 GiB in use, being freed after the job before"
    assert memory_reads(tmp_path, "GPU-0") == asked + 1, "the answer from before its end says nothing"


def test_the_driver_is_asked_beside_the_launcher(make_pool: MakePool, tmp_path: Path) -> None:
    install_fake_gpus(tmp_path, ["GPU-0"])
    slow_memory(tmp_path, 1)
    pool = make_pool(WHOLE[:1], "90%")
    looks, began = 0, time.monotonic()
    while True:
        with Offer(pool) as offer:
            if _reserve(offer, 1):
                break
            assert "the driver is asked for its free memory" in offer.why_not(1)
        looks += 1
        assert time.monotonic() - began < LONGEST_WAIT
        time.sleep(0.02)
    assert looks and time.monotonic() - began >= 1, "no look waits for the answer"
    assert memory_reads(tmp_path, "GPU-0") == 1


def test_who_is_told_to_share_reserves_nothing_and_tests_nothing(make_pool: MakePool, tmp_path: Path) -> None:
    set_memory(tmp_path, {"GPU-0": 70})
    other = make_pool(WHOLE[:1])
    theirs = take(other)
    pool = make_pool(WHOLE[:1], "90%", shares=True)
    ours = take(pool)
    assert ours.gpus == theirs.gpus and ours.fds == []
    assert why_not(pool) == "", "jobs of one run still take turns"
    other.give_back(theirs)
    assert take(other), "and who does not share is not kept out by it"
    assert memory_reads(tmp_path, "GPU-0") == 0
