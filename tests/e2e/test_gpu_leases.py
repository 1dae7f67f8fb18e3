"""Leases on GPUs: no two runs of any user have one at a time, and none outlives its owner."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from imageevalkit.common.errors import UserError
from imageevalkit.plan.gpus import Gpu
from imageevalkit.run.gpu_pool import Lease, lock
from imageevalkit.store.cell import REPO
from tests.support.checkout import run_command

GPU = Gpu("0", "GPU-x")


def test_a_gpu_is_locked_once(tmp_path: Path) -> None:
    first = lock(GPU, tmp_path / "leases")
    assert first is not None
    assert lock(GPU, tmp_path / "leases") is None
    other = lock(Gpu("1", "GPU-y"), tmp_path / "leases")
    assert other is not None
    Lease([GPU], [first]).release()
    again = lock(GPU, tmp_path / "leases")
    assert again is not None
    Lease([], [again, other]).release()


@pytest.mark.parametrize(
    ("names", "order", "sees"),
    [
        (["1", "0"], "FASTEST_FIRST", {"CUDA_VISIBLE_DEVICES": "1,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        ([], "", {"CUDA_VISIBLE_DEVICES": ""}),
    ],
)
def test_what_a_job_sees(
    monkeypatch: pytest.MonkeyPatch, names: list[str], order: str, sees: dict[str, str]
) -> None:
    """The lock is on NVML's index: CUDA must count in its order, whatever the user's is."""
    monkeypatch.setenv("CUDA_DEVICE_ORDER", order)
    assert Lease([Gpu(name, "GPU-x") for name in names], []).environ() == sees


def test_a_lease_lives_as_long_as_a_process_that_inherited_it(tmp_path: Path) -> None:
    fd = lock(GPU, tmp_path / "leases")
    assert fd is not None
    process = subprocess.Popen(["sleep", "60"], pass_fds=[fd])
    os.close(fd)
    assert lock(GPU, tmp_path / "leases") is None
    process.kill()
    process.wait()
    after = lock(GPU, tmp_path / "leases")
    assert after is not None
    os.close(after)


def _user() -> str:
    return run_command(["id", "-un"], status=0).stdout.strip()


@pytest.mark.skipif(os.getuid() != 0, reason="needs to become two other users")
def test_users_share_the_lease_folder(tmp_path: Path) -> None:
    """The second user can neither write nor delete the first one's lock file, yet respects it."""
    shared = Path("/tmp") / f"imageevalkit-test-{os.getpid()}"
    code = (
        "import os, sys; from pathlib import Path; from imageevalkit.run.gpu_pool import lock\n"
        "from imageevalkit.plan.gpus import Gpu\n"
        "os.umask(0o077); os.setuid(int(sys.argv[1]))\n"
        "gpus = [Gpu('0', 'GPU-a'), Gpu('1', 'GPU-b')]\n"
        "held = next(gpu for gpu in gpus if lock(gpu, Path(sys.argv[2])) is not None)\n"
        "print(held.name, flush=True); sys.stdin.read()\n"
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


def test_a_link_in_the_place_of_the_lease_folder_is_not_followed(tmp_path: Path) -> None:
    """Other runs would look elsewhere, and give the same GPUs once more."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "leases").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=rf"cannot use {tmp_path}/leases of {_user()} to reserve GPUs"):
        lock(GPU, tmp_path / "leases")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_what_is_no_lock_file_is_told_with_its_owner(tmp_path: Path) -> None:
    place, target = tmp_path / "leases/GPU-x", tmp_path / "precious"
    place.parent.mkdir()
    target.write_text("precious")
    place.symlink_to(target)
    if os.getuid() == 0:
        os.lchown(place, 12345, 12345)
    owner = "user 12345" if os.getuid() == 0 else _user()
    says = f"{place} of {owner} is no regular file, as a lock must be: have it removed"
    with pytest.raises(UserError, match=re.escape(says)):
        lock(GPU, place.parent)
    assert target.read_text() == "precious"
