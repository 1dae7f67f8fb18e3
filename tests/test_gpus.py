"""Which GPUs a run may use, with a fake nvidia-smi, and leases on them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from imageevalkit.cell import REPO
from imageevalkit.errors import UserError
from imageevalkit.launch.gpus import Gpu, lease, visible_gpus
from tests.support.fake_nvidia_smi import install_fake_nvidia_smi

UUIDS = ["GPU-aaaa1111-0", "GPU-bbbb2222-1", "GPU-cccc3333-2"]


@pytest.mark.parametrize(
    ("allowed", "names", "keys"),
    [
        (None, ["0", "1", "2"], UUIDS),
        ("", [], []),
        ("2,0", ["2", "0"], [UUIDS[2], UUIDS[0]]),
        (" 1 , 1", ["1"], [UUIDS[1]]),
        ("GPU-bbbb,0", ["GPU-bbbb", "0"], [UUIDS[1], UUIDS[0]]),
        ("MIG-3f1c,MIG-GPU-aaaa1111-0/1/0", ["MIG-3f1c", "MIG-GPU-aaaa1111-0/1/0"], None),
        ("0,-1,1", ["0"], [UUIDS[0]]),
        ("7", [], []),
        ("NoDevFiles", [], []),
    ],
)
def test_visible_gpus(tmp_path: Path, allowed: str | None, names: list[str], keys: list[str] | None) -> None:
    environ = install_fake_nvidia_smi(tmp_path, UUIDS)
    if allowed is not None:
        environ["CUDA_VISIBLE_DEVICES"] = allowed
    gpus = visible_gpus(environ)
    assert [gpu.name for gpu in gpus] == names
    assert [gpu.key for gpu in gpus] == (names if keys is None else keys)


def test_no_nvidia_smi_is_no_gpu(tmp_path: Path) -> None:
    for allowed in ({}, {"CUDA_VISIBLE_DEVICES": "0,MIG-1"}):
        assert visible_gpus({"PATH": str(tmp_path), **allowed}) == []


def test_a_failing_nvidia_smi_is_one_clear_line(tmp_path: Path) -> None:
    environ = install_fake_nvidia_smi(tmp_path, UUIDS, failure="Driver/library version mismatch")
    with pytest.raises(UserError, match=r"^nvidia-smi failed \(Driver/library version mismatch\); .*$"):
        visible_gpus(environ)
    assert visible_gpus(environ | {"CUDA_VISIBLE_DEVICES": ""}) == []


def test_a_gpu_is_leased_once(tmp_path: Path) -> None:
    folder = tmp_path / "leases"
    gpus = [Gpu(str(n), uuid) for n, uuid in enumerate(UUIDS)]
    first = lease(gpus, 2, folder)
    assert first and first.environ()["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert lease(gpus, 2, folder) is None
    third = lease(gpus, 1, folder)  # the attempt for two kept none
    assert third and third.gpus == [gpus[2]]
    first.release()
    again = lease(gpus, 2, folder)
    assert again and again.gpus == gpus[:2]
    none = lease(gpus, 0, folder)
    assert none and none.environ() == {"CUDA_VISIBLE_DEVICES": ""}
    again.release()
    third.release()


def test_a_lease_lives_as_long_as_a_process_that_inherited_it(tmp_path: Path) -> None:
    held = lease([Gpu("0", "GPU-x")], 1, tmp_path / "leases")
    assert held
    process = subprocess.Popen(["sleep", "60"], pass_fds=held.fds)
    held.release()
    assert lease([Gpu("0", "GPU-x")], 1, tmp_path / "leases") is None
    process.kill()
    process.wait()
    after = lease([Gpu("0", "GPU-x")], 1, tmp_path / "leases")
    assert after
    after.release()


@pytest.mark.skipif(os.getuid() != 0, reason="needs to become two other users")
def test_users_share_the_lease_folder(tmp_path: Path) -> None:
    """The second user can neither write nor delete the first one's lock file, yet respects it."""
    shared = Path("/tmp") / f"imageevalkit-test-{os.getpid()}"
    code = (
        "import os, sys; from pathlib import Path; from imageevalkit.launch.gpus import Gpu, lease\n"
        "os.umask(0o077); os.setuid(int(sys.argv[1]))\n"
        "held = lease([Gpu('0', 'GPU-a'), Gpu('1', 'GPU-b')], 1, Path(sys.argv[2]))\n"
        "print(held.gpus[0].name, flush=True); sys.stdin.read()\n"
    )

    def user(uid: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code, str(uid), str(shared)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(REPO)},
        )

    processes = []
    try:
        said = []
        for uid in (12345, 12346):
            processes.append(user(uid))
            assert processes[-1].stdout
            said.append(processes[-1].stdout.readline().strip())
        assert said == ["0", "1"]
    finally:
        for process in processes:
            process.communicate("")
        shutil.rmtree(shared, ignore_errors=True)


def test_an_unusable_lease_folder_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "leases").write_text("in the way")
    with pytest.raises(UserError, match=r"cannot use .*leases.* to reserve GPUs"):
        lease([Gpu("0", "GPU-x")], 1, tmp_path / "leases")
