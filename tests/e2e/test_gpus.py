"""Which GPUs a run may use, with and without MIG: a fake of NVML under real environments."""

from __future__ import annotations

import threading
from pathlib import Path

import pynvml  # type: ignore[import-untyped]
import pytest

from imageevalkit.common.errors import UserError
from imageevalkit.evaluate.scoring import _gpu_names
from imageevalkit.plan import gpus
from imageevalkit.plan.gpus import Gpu, spell, too_few, visible_gpus
from tests.support.fake_gpus import GIB, FakeGpu, divided, install_fake_gpus, lose

UUIDS = ["GPU-aaaa1111-0", "GPU-bbbb2222-1", "GPU-cccc3333-2"]
# the first GPU is divided in three, the last in two
DIVIDED = [
    divided(UUIDS[0], "MIG-a0", "MIG-a1", "MIG-a2"),
    FakeGpu(UUIDS[1], migs=[None] * 7, enabled=False),
    divided(UUIDS[2], "MIG-c0", "MIG-c1"),
]


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a machine with three whole GPUs."""
    monkeypatch.setenv("FAKE_NVML", install_fake_gpus(tmp_path, UUIDS))
    return tmp_path


def shown(allowed: str | None = None) -> list[Gpu]:
    """The GPUs under CUDA_VISIBLE_DEVICES, or without it."""
    return visible_gpus({} if allowed is None else {"CUDA_VISIBLE_DEVICES": allowed})


@pytest.mark.parametrize(
    ("allowed", "names", "keys"),
    [
        (None, ["0", "1", "2"], UUIDS),
        ("", [], []),
        ("GPU-bbbb,0", ["GPU-bbbb", "0"], [UUIDS[1], UUIDS[0]]),
        ("0,-1,1", ["0"], [UUIDS[0]]),
    ],
)
def test_visible_gpus(allowed: str | None, names: list[str], keys: list[str]) -> None:
    assert shown(allowed) == list(map(Gpu, names, keys))


@pytest.mark.parametrize(
    ("allowed", "names", "keys"),
    [
        # CUDA counts differently where it shows MIG devices, so that the whole GPU is named by its UUID
        (None, ["MIG-a0", "MIG-a1", "MIG-a2", UUIDS[1], "MIG-c0", "MIG-c1"], None),
        ("MIG-c1,MIG-a0", ["MIG-c1", "MIG-a0"], None),
        ("2,1", ["MIG-c0", "MIG-c1", "1"], ["MIG-c0", "MIG-c1", UUIDS[1]]),
    ],
)
def test_mig_devices(machine: Path, allowed: str | None, names: list[str], keys: list[str] | None) -> None:
    install_fake_gpus(machine, DIVIDED)
    assert shown(allowed) == list(map(Gpu, names, keys or names))


@pytest.mark.parametrize(
    ("allowed", "says"),
    [
        (
            "MIG-d0",
            "CUDA_VISIBLE_DEVICES names MIG-d0, which is none of the devices that nvidia-smi -L shows",
        ),
        ("0,MIG-a", "names MIG-a, which fits 3 of the devices"),
    ],
)
def test_a_device_that_is_not_there_is_one_clear_line(machine: Path, allowed: str, says: str) -> None:
    """If a GPU is divided again, its MIG devices get new names. With an old name, a model would run on the CPU."""
    install_fake_gpus(machine, DIVIDED)
    with pytest.raises(UserError) as caught:
        shown(allowed)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_process_uses_one_mig_device_or_whole_gpus() -> None:
    migs = [Gpu("MIG-a", "MIG-a"), Gpu("MIG-b", "MIG-b")]
    whole = [Gpu("0", "GPU-0"), Gpu("1", "GPU-1")]
    assert too_few([*migs, *whole], 2) == too_few(migs, 1) == ""
    assert "only one MIG device, and of whole GPUs this machine shows 0" in too_few(migs, 2)
    assert "of whole GPUs this machine shows 2" in too_few([*migs, *whole], 3)
    assert too_few(whole, 3) == "this machine shows 2 (its driver and CUDA_VISIBLE_DEVICES decide)"
    assert (spell(whole), spell(whole[:1]), spell(migs)) == ("GPUs 0, 1", "GPU 0", "MIG-a, MIG-b")


def test_a_slip_of_the_pen_does_not_mean_the_cpu() -> None:
    with pytest.raises(UserError, match=r"^CUDA_VISIBLE_DEVICES=7,0 names none of .*\(0, 1, 2\); "):
        shown("7,0")


def test_without_nvml_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAKE_NVML")
    assert shown() == shown("0,MIG-1") == _gpu_names() == []
    assert gpus.memory() == {}


def test_a_driver_that_does_not_fit_its_library_is_one_clear_line(machine: Path) -> None:
    install_fake_gpus(machine, UUIDS, failure="Driver/library version mismatch")
    with pytest.raises(UserError) as caught:
        shown()
    assert str(caught.value) == (
        "NVML failed (Driver/library version mismatch); repair the driver, or run without GPUs: CUDA_VISIBLE_DEVICES="
    )
    assert shown("") == []
    assert _gpu_names() == [], "no result fails for its provenance"


def test_memory_of_gpus_and_mig_devices(machine: Path) -> None:
    parts = [FakeGpu("MIG-a0", 10 * GIB, 9 * GIB), None, FakeGpu("MIG-a2", 20 * GIB, 5 * GIB)]
    install_fake_gpus(machine, [FakeGpu(UUIDS[0], None, migs=parts), FakeGpu(UUIDS[1], 80 * GIB, 20 * GIB)])
    told = {uuid: (memory.total / 1024, memory.free / 1024) for uuid, memory in gpus.memory().items()}
    assert told == {"MIG-a0": (10, 9), "MIG-a2": (20, 5), UUIDS[1]: (80, 20)}


def test_a_gpu_that_does_not_answer_is_left_out(machine: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Lost, or not for this user: the others go on, by UUID where CUDA may count them otherwise."""
    lose(machine, 2)
    for _ in range(2):
        assert shown() == [Gpu("0", UUIDS[0]), Gpu("1", UUIDS[1])]
    assert capfd.readouterr().err == "GPU 2 is left out: NVML failed (GPU is lost)\n"
    lose(machine, 0)
    assert shown() == [Gpu(UUIDS[1], UUIDS[1])]


def test_a_driver_that_hangs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(pynvml, "nvmlInitWithFlags", lambda _: never.wait())
    monkeypatch.setattr(gpus, "SECONDS", 0.2)
    with pytest.raises(UserError, match="the GPU driver did not answer within"):
        shown()
    never.set()


def test_names_in_the_provenance(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    lose(machine, 1)
    assert _gpu_names() == ["NVIDIA A100-SXM4-80GB"] * 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert _gpu_names() == []
