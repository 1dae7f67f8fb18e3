"""Which GPUs a run may use: a fake nvidia-smi under real environments, with and without MIG."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from imageevalkit.common.errors import UserError
from imageevalkit.plan import gpus
from imageevalkit.plan.gpus import Gpu, spell, too_few, visible_gpus
from tests.support.fake_nvidia_smi import install_fake_nvidia_smi, times_asked
from tests.support.fake_nvml import FakeGpu, FakeNvml, NVMLError

UUIDS = ["GPU-aaaa1111-0", "GPU-bbbb2222-1", "GPU-cccc3333-2"]
# the first GPU is divided in three, the last in two
MIGS = {UUIDS[0]: ["MIG-a0", "MIG-a1", "MIG-a2"], UUIDS[2]: ["MIG-c0", "MIG-c1"]}


@pytest.mark.parametrize(
    ("allowed", "names", "keys"),
    [
        (None, ["0", "1", "2"], UUIDS),
        ("", [], []),
        ("2,0", ["2", "0"], [UUIDS[2], UUIDS[0]]),
        (" 1 , 1", ["1"], [UUIDS[1]]),
        ("GPU-bbbb,0", ["GPU-bbbb", "0"], [UUIDS[1], UUIDS[0]]),
        (f"0,{UUIDS[0]}", ["0"], [UUIDS[0]]),
        ("0,-1,1", ["0"], [UUIDS[0]]),
        ("-1", [], []),
        ("NoDevFiles", [], []),
    ],
)
def test_visible_gpus(tmp_path: Path, allowed: str | None, names: list[str], keys: list[str]) -> None:
    environ = install_fake_nvidia_smi(tmp_path, UUIDS)
    if allowed is not None:
        environ["CUDA_VISIBLE_DEVICES"] = allowed
    found = visible_gpus(environ)
    assert [gpu.name for gpu in found] == names
    assert [gpu.key for gpu in found] == keys
    assert times_asked(tmp_path, "-L") == 0, "nothing is divided"


@pytest.mark.parametrize(
    ("allowed", "names", "keys"),
    [
        # CUDA counts differently where it shows MIG devices, so that the whole GPU is named by its UUID
        (None, ["MIG-a0", "MIG-a1", "MIG-a2", UUIDS[1], "MIG-c0", "MIG-c1"], None),
        ("MIG-c1,MIG-a0", ["MIG-c1", "MIG-a0"], None),
        ("2,1", ["MIG-c0", "MIG-c1", "1"], ["MIG-c0", "MIG-c1", UUIDS[1]]),
        ("GPU-cccc", ["MIG-c0", "MIG-c1"], None),
        ("MIG-a1,0", ["MIG-a1", "MIG-a0", "MIG-a2"], None),
    ],
)
def test_mig_devices(tmp_path: Path, allowed: str | None, names: list[str], keys: list[str] | None) -> None:
    environ = install_fake_nvidia_smi(tmp_path, UUIDS, migs=MIGS)
    if allowed is not None:
        environ["CUDA_VISIBLE_DEVICES"] = allowed
    found = visible_gpus(environ)
    assert [gpu.name for gpu in found] == names
    assert [gpu.key for gpu in found] == (keys or names)


def test_mig_devices_of_an_old_driver(tmp_path: Path) -> None:
    """Before R470 nvidia-smi -L itself names them by GPU and instances."""
    name = f"MIG-{UUIDS[0]}/1/0"
    environ = install_fake_nvidia_smi(tmp_path, UUIDS[:1], migs={UUIDS[0]: [name]})
    for allowed in ({}, {"CUDA_VISIBLE_DEVICES": name}):
        assert visible_gpus(environ | allowed) == [Gpu(name, name)]


@pytest.mark.parametrize(
    ("allowed", "says"),
    [
        (
            "MIG-d0",
            "CUDA_VISIBLE_DEVICES names MIG-d0, which is none of the devices that nvidia-smi -L shows",
        ),
        ("0,MIG-a", "names MIG-a, which fits 3 of the devices"),
        (f"MIG-{UUIDS[0]}/3/0", f"names MIG-{UUIDS[0]}/3/0, which is none of the devices"),
        ("GPU-dddd", "names GPU-dddd, which is none of the devices"),
        ("GPU-", "fits 3 of the devices"),
    ],
)
def test_a_device_that_is_not_there_is_one_clear_line(tmp_path: Path, allowed: str, says: str) -> None:
    """MIG devices get new names when a GPU is divided anew: without them, a model would run on the CPU."""
    environ = install_fake_nvidia_smi(tmp_path, UUIDS, migs=MIGS)
    with pytest.raises(UserError) as caught:
        visible_gpus(environ | {"CUDA_VISIBLE_DEVICES": allowed})
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_gpu_in_mig_mode_that_nobody_divided(tmp_path: Path) -> None:
    environ = install_fake_nvidia_smi(tmp_path, UUIDS[:2], migs={UUIDS[0]: []})
    assert visible_gpus(environ) == [Gpu(UUIDS[1], UUIDS[1])]
    with pytest.raises(UserError, match=r"^GPU 0 is in MIG mode and has no MIG devices: make some .*$"):
        visible_gpus(environ | {"CUDA_VISIBLE_DEVICES": "0"})


def test_a_process_uses_one_mig_device_or_whole_gpus() -> None:
    migs = [Gpu("MIG-a", "MIG-a"), Gpu("MIG-b", "MIG-b")]
    whole = [Gpu("0", "GPU-0"), Gpu("1", "GPU-1")]
    assert too_few([*migs, *whole], 2) == too_few(migs, 1) == ""
    assert "only one MIG device, and of whole GPUs this machine shows 0" in too_few(migs, 2)
    assert "of whole GPUs this machine shows 2" in too_few([*migs, *whole], 3)
    assert too_few(whole, 3) == "this machine shows 2 (its driver and CUDA_VISIBLE_DEVICES decide)"
    assert (spell(whole), spell(whole[:1]), spell(migs)) == ("GPUs 0, 1", "GPU 0", "MIG-a, MIG-b")


@pytest.mark.parametrize("allowed", ["7", "foo", "7,0"])
def test_a_slip_of_the_pen_does_not_mean_the_cpu(tmp_path: Path, allowed: str) -> None:
    environ = install_fake_nvidia_smi(tmp_path, UUIDS) | {"CUDA_VISIBLE_DEVICES": allowed}
    with pytest.raises(UserError, match=rf"^CUDA_VISIBLE_DEVICES={allowed} names none of .*\(0, 1, 2\); "):
        visible_gpus(environ)


def test_no_nvidia_smi_is_no_gpu(tmp_path: Path) -> None:
    for allowed in ({}, {"CUDA_VISIBLE_DEVICES": "0,MIG-1"}):
        assert visible_gpus({"PATH": str(tmp_path), **allowed}) == []


def test_a_failing_nvidia_smi_is_one_clear_line(tmp_path: Path) -> None:
    environ = install_fake_nvidia_smi(tmp_path, UUIDS, failure="Driver/library version mismatch")
    with pytest.raises(UserError, match=r"^nvidia-smi failed \(Driver/library version mismatch\); .*$"):
        visible_gpus(environ)
    assert visible_gpus(environ | {"CUDA_VISIBLE_DEVICES": ""}) == []


def test_statuses_of_nvidia_smi_that_are_no_failure(tmp_path: Path) -> None:
    warned = f"WARNING: infoROM is corrupted at gpu 0000:1A:00.0\n0, {UUIDS[0]}, [N/A]"
    assert visible_gpus(install_fake_nvidia_smi(tmp_path, [], warned, status=14)) == [Gpu("0", UUIDS[0])]
    assert visible_gpus(install_fake_nvidia_smi(tmp_path, [], "No devices were found", status=6)) == []


# NVML, by a fake of NVIDIA's module: what it tells must be what nvidia-smi tells


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    divided = FakeGpu(
        UUIDS[0], total=None, migs=[FakeGpu("MIG-a0", 10 << 30, 9 << 30), None, FakeGpu("MIG-a2")]
    )
    undivided = FakeGpu(UUIDS[1], 80 << 30, 20 << 30, migs=[None] * 7, enabled=False)
    fake = FakeNvml([divided, undivided, FakeGpu(UUIDS[2])])
    monkeypatch.setattr(gpus, "_nvml", lambda: fake)
    return fake


def test_nvml_tells_gpus_and_mig_devices_without_any_nvidia_smi(tmp_path: Path, nvml: FakeNvml) -> None:
    environ = {"PATH": str(tmp_path)}
    assert [gpu.name for gpu in visible_gpus(environ)] == ["MIG-a0", "MIG-a2", UUIDS[1], UUIDS[2]]
    assert visible_gpus(environ | {"CUDA_VISIBLE_DEVICES": "2,MIG-a2"}) == [
        Gpu("2", UUIDS[2]),
        Gpu("MIG-a2", "MIG-a2"),
    ]
    nvml.gpus = nvml.gpus[1:]
    assert [gpu.name for gpu in visible_gpus(environ)] == ["0", "1"]
    nvml.gpus = []
    assert visible_gpus(environ) == []


@pytest.mark.usefixtures("nvml")
def test_nvml_tells_memory_of_mig_devices_too() -> None:
    told = {uuid: (memory.total / 1024, memory.free / 1024) for uuid, memory in gpus.memory().items()}
    assert told == {"MIG-a0": (10, 9), "MIG-a2": (80, 79), UUIDS[1]: (80, 20), UUIDS[2]: (80, 79)}


def test_a_failing_nvml_is_one_clear_line(nvml: FakeNvml, tmp_path: Path) -> None:
    nvml.problem = NVMLError("GPU is lost")
    with pytest.raises(
        UserError, match=r"^NVML failed \(GPU is lost\); mend the driver, or run without GPUs"
    ):
        visible_gpus({"PATH": str(tmp_path)})
    with pytest.raises(UserError, match=r"^NVML failed \(GPU is lost\)"):
        gpus.memory()


def test_a_gpu_that_does_not_answer_is_left_out(
    nvml: FakeNvml, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Lost, or not for this user: the others go on, by UUID where CUDA may count them otherwise."""
    nvml.gpus = [FakeGpu(uuid) for uuid in UUIDS]
    nvml.gpus[2].lost = True
    environ = {"PATH": str(tmp_path)}
    for _ in range(2):
        assert visible_gpus(environ) == [Gpu("0", UUIDS[0]), Gpu("1", UUIDS[1])]
    assert capfd.readouterr().err == "GPU 2 is left out: NVML failed (GPU is lost)\n"
    assert set(gpus.memory()) == {*UUIDS[:2]}
    assert visible_gpus(environ | {"CUDA_VISIBLE_DEVICES": "1,2"}) == [Gpu("1", UUIDS[1])]
    with pytest.raises(UserError, match=r"CUDA_VISIBLE_DEVICES=2 names none of this machine's GPUs \(0, 1\)"):
        visible_gpus(environ | {"CUDA_VISIBLE_DEVICES": "2"})
    nvml.gpus[0].lost = True
    assert visible_gpus(environ) == [Gpu(UUIDS[1], UUIDS[1])]


def test_a_driver_that_hangs_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    never = threading.Event()
    monkeypatch.setattr(gpus, "_nvml", never.wait)
    monkeypatch.setattr(gpus, "SECONDS", 0.2)
    with pytest.raises(UserError, match="the GPU driver did not answer within"):
        visible_gpus({"PATH": str(tmp_path)})
    never.set()
