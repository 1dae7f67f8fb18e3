"""Leases on GPUs: no two runs of any user have one at a time, and none outlives its owner."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from imageevalkit.common.errors import UserError
from imageevalkit.plan.gpus import Gpu
from imageevalkit.run.gpu_pool import Lease, holder, lock
from imageevalkit.store.cell import REPO

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
        (["1", "0"], "", {"CUDA_VISIBLE_DEVICES": "1,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        (["1"], "FASTEST_FIRST", {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        (["GPU-x"], "", {"CUDA_VISIBLE_DEVICES": "GPU-x"}),
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


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="no /proc/locks")
def test_who_holds_a_gpu(tmp_path: Path) -> None:
    assert holder(GPU, tmp_path / "leases") == "another run", "nobody"
    fd = lock(GPU, tmp_path / "leases")
    assert fd is not None
    told = holder(GPU, tmp_path / "leases")
    os.close(fd)
    # a file system whose device number is not that of its files (btrfs, overlayfs) does not tell
    assert told in ("another run", f"another run (process {os.getpid()} of {_user()})")
    assert holder(GPU, tmp_path / "leases") == "another run"


def _user() -> str:
    return subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()


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


def test_an_unusable_lease_folder_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "leases").write_text("in the way")
    with pytest.raises(UserError, match=r"cannot use .*leases of .* to reserve GPUs"):
        lock(GPU, tmp_path / "leases")


def test_a_link_in_the_place_of_the_lease_folder_is_not_followed(tmp_path: Path) -> None:
    """Other runs would look elsewhere, and give the same GPUs once more."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "leases").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=rf"cannot use {tmp_path}/leases of {_user()} to reserve GPUs"):
        lock(GPU, tmp_path / "leases")
    assert not list((tmp_path / "elsewhere").iterdir())


LOCKING = """
import sys; from pathlib import Path; from imageevalkit.common.errors import UserError
from imageevalkit.run.gpu_pool import lock; from imageevalkit.plan.gpus import Gpu
try:
    print("locked" if lock(Gpu("0", "GPU-x"), Path(sys.argv[1])) is not None else "held")
except UserError as error:
    print(error)
"""


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_is_no_lock_file_is_told_with_its_owner(tmp_path: Path, kind: str) -> None:
    place, target = tmp_path / "leases/GPU-x", tmp_path / "precious"
    place.parent.mkdir()
    target.write_text("precious")
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(target)
    if os.getuid() == 0:
        os.lchown(place, 12345, 12345)
    owner = "user 12345" if os.getuid() == 0 else _user()
    # in a process of its own: a pipe would wait for its writer
    done = subprocess.run(
        [sys.executable, "-c", LOCKING, str(place.parent)],
        env=os.environ | {"PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == f"{place} of {owner} is no regular file, as a lock must be: have it removed\n", done
    assert target.read_text() == "precious"


def test_a_lock_file_that_may_not_be_read_is_told_with_its_owner() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:  # pytest's folders are closed to others
        Path(place).chmod(0o755)
        folder = Path(place, "leases")
        folder.mkdir()
        (folder / "GPU-x").touch(mode=0o000)
        # root may read everything
        become = "import os; os.setuid(12345)\ntry:" if os.getuid() == 0 else "try:"
        done = subprocess.run(
            [sys.executable, "-c", LOCKING.replace("try:", become, 1), str(folder)],
            env=os.environ | {"PYTHONPATH": str(REPO)},
            capture_output=True,
            text=True,
            timeout=60,
        )
    said = (
        f"cannot use {folder}/GPU-x of {_user()} to reserve GPUs (Permission denied): have it removed, or set"
    )
    assert done.stdout.startswith(said), done
