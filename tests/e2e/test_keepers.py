"""Judges that a watch keeps: where there are GPUs for both, started again where they end, asked by each run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imageevalkit.extras.serve.planning import serve_command
from imageevalkit.extras.watch.keepers import Keepers
from imageevalkit.jobs.plan import EvaluateOrder, Job, Plan, ServeOrder
from imageevalkit.judges.choice import JudgeOptions
from imageevalkit.judges.server import ServerAddress, ServerSettings
from imageevalkit.plan import gpus
from imageevalkit.plan.config import DRIVER_PYTHON
from imageevalkit.plan.gpus import Gpu
from imageevalkit.plan.options import Options
from imageevalkit.run.gpu_pool import LEASES, lock
from tests.support.checkout import needs_driver_env
from tests.support.fake_gpus import install_fake_gpus
from tests.support.fake_vllm import install, starts
from tests.support.waiting import wait_for

CELL = "run@5/b"
UUIDS = [f"GPU-keepers-{os.getpid()}-{n}" for n in range(2)]


@pytest.fixture
def plan_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Plan]]:
    """A plan on a machine with so many GPUs, of a model and a served judge that take one each."""
    install(tmp_path / "vllm")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def job(name: str, gpus: int, after: list[str], order: object = None) -> Job:
        cells = [] if name == "report" else [CELL]
        stage = name.partition(":")[0]
        serves = [DRIVER_PYTHON, "-m", "imageevalkit.extras.serve.judge_server", "--plan", "p", "--job", name]
        command = serves if isinstance(order, ServeOrder) else ["true"]
        return Job(name, stage, command, cells, [name], after=after, gpus=gpus, order=order)  # type: ignore[arg-type]

    def planned(count: int, shares: bool = False) -> Plan:
        monkeypatch.setenv("FAKE_NVML", install_fake_gpus(tmp_path / "gpus", UUIDS[:count]))
        gpus.visible.cache_clear()
        program, address = str(tmp_path / "vllm/bin/vllm"), str(tmp_path / "run/judges/one")
        serve = serve_command(ServerSettings(), Path(program), "org/judge", 1)
        server = ServeOrder(
            "vllm:org/judge", "org/judge", serve, [], 1, 60.0, "", address, [f"evaluate:{CELL}"]
        )
        jobs = [
            job("generate:run@5", 1, []),
            job("evaluate:vllm:org/judge", 1, ["generate:run@5"], server),
            job("report", 0, ["generate:run@5", "evaluate:vllm:org/judge"]),
        ]
        asking = EvaluateOrder("vllm:org/judge", JudgeOptions(address_file=address))
        part = job(f"evaluate:{CELL}", 0, ["generate:run@5"], asking)
        return Plan(str(tmp_path / "run"), None, jobs, share_gpus=shares, parts=[part])

    yield planned
    gpus.visible.cache_clear()
    for uuid in UUIDS:
        (LEASES / uuid).unlink(missing_ok=True)


def is_held(uuid: str) -> bool:
    fd = lock(Gpu("", uuid))
    if fd is not None:
        os.close(fd)
    return fd is None


def test_without_a_gpu_for_both_the_judge_is_loaded_for_each_checkpoint(
    plan_on: Callable[..., Plan], tmp_path: Path
) -> None:
    plan = plan_on(1)
    keepers = Keepers(plan, tmp_path / "watch")
    [told] = keepers.notes
    assert told.startswith(
        "judge vllm:org/judge is loaded again for each checkpoint: it takes 1 GPU and other jobs 1, of 1"
    )
    assert keepers.with_judges(Options()) == Options()
    assert keepers.all_work
    keepers.close()
    shared = Keepers(plan_on(1, shares=True), tmp_path / "watch")
    assert "is loaded once" in shared.notes[0]
    shared.close()


@needs_driver_env
def test_a_served_judge_keeps_its_gpu_and_comes_back(plan_on: Callable[..., Plan], tmp_path: Path) -> None:
    plan = plan_on(2)
    keepers = Keepers(plan, tmp_path / "watch")
    try:
        keepers.plan.save()
        keepers.start(lambda: False)
        assert sum(map(is_held, UUIDS)) == 1
        address = ServerAddress(Path(keepers.with_judges(Options()).kept_servers["vllm:org/judge"]))
        url = address.wait()
        assert url.startswith("http://127.0.0.1:")
        [keeper] = keepers._running()
        os.kill(keeper.pid, signal.SIGKILL)
        wait_for(lambda: not keepers.all_work)
        keepers.start(lambda: False)
        assert keepers.all_work
        assert address.wait()
        assert len(starts(tmp_path / "vllm/bin/starts.jsonl")) == 2
    finally:
        keepers.close()
    assert not any(map(is_held, UUIDS)), "all is free again"
