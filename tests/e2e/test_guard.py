"""The guard: passes statuses on, leaves no process, holds locks for as long as one is left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageevalkit.run import guard
from tests.support.jobs import marked
from tests.support.waiting import LONGEST_WAIT, wait_for

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and prctl")

# setsid grandchild + double-forked daemon; both ignore every polite signal
ESCAPE = r"""
deaf='trap "" TERM INT HUP; while :; do sleep 1; done'
setsid sh -c "$deaf" &
(setsid sh -c "$deaf" </dev/null >/dev/null 2>&1 &)
touch "$STARTED"
"""


@pytest.fixture
def lifeline() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        with contextlib.suppress(OSError):  # a test closed it: that is how a launcher dies
            os.close(fd)


def start(
    lifeline: tuple[int, int], script: str, tmp_path: Path, held: tuple[int, ...] = (), **popen: object
) -> subprocess.Popen[bytes]:
    environ = os.environ | {"TEST_MARKER": str(tmp_path), "STARTED": str(tmp_path / "started")}
    return subprocess.Popen(
        [sys.executable, "-I", "-S", guard.__file__, str(lifeline[0]), "--", "bash", "-c", script],
        pass_fds=(lifeline[0], *held),
        env=environ,
        start_new_session=True,
        **popen,  # type: ignore[call-overload]
    )


def lock(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


def is_free(path: Path) -> bool:
    try:
        os.close(lock(path))
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 3", 3), ("kill -KILL $$", 137), ("exec /nowhere/x", 127)],
)
def test_passes_the_status_on(lifeline: tuple[int, int], tmp_path: Path, script: str, status: int) -> None:
    assert start(lifeline, script, tmp_path, stderr=subprocess.DEVNULL).wait() == status


def test_sigterm_ends_the_whole_tree(lifeline: tuple[int, int], tmp_path: Path) -> None:
    process = start(lifeline, ESCAPE + "sleep 600", tmp_path)
    wait_for((tmp_path / "started").exists)
    assert len(marked(str(tmp_path))) >= 4
    process.send_signal(signal.SIGTERM)
    assert process.wait(LONGEST_WAIT) == 143
    assert marked(str(tmp_path)) == []


def test_a_polite_tree_has_time_to_tidy_up(lifeline: tuple[int, int], tmp_path: Path) -> None:
    script = (
        f"trap 'sleep 1; touch {tmp_path}/tidy; exit 5' TERM; touch $STARTED; while :; do sleep 0.1; done"
    )
    process = start(lifeline, script, tmp_path)
    wait_for((tmp_path / "started").exists)
    process.terminate()
    assert process.wait(LONGEST_WAIT) == 5
    assert (tmp_path / "tidy").exists()


def test_closing_the_lifeline_ends_the_whole_tree(lifeline: tuple[int, int], tmp_path: Path) -> None:
    process = start(lifeline, ESCAPE + "sleep 600", tmp_path)
    wait_for((tmp_path / "started").exists)
    os.close(lifeline[1])
    process.wait(LONGEST_WAIT)
    assert marked(str(tmp_path)) == []


def test_does_not_start_the_command_of_a_dead_launcher(lifeline: tuple[int, int], tmp_path: Path) -> None:
    os.close(lifeline[1])
    assert start(lifeline, "touch $STARTED", tmp_path).wait(LONGEST_WAIT) == 143
    assert not (tmp_path / "started").exists()


def test_a_tee_behind_the_script_is_not_cut_off(lifeline: tuple[int, int], tmp_path: Path) -> None:
    script = f"exec > >(sleep 0.2; cat > {tmp_path}/log); echo last words"
    assert start(lifeline, script, tmp_path).wait(LONGEST_WAIT) == 0
    assert (tmp_path / "log").read_text() == "last words\n"


def test_kill_of_the_guard_ends_the_command(lifeline: tuple[int, int], tmp_path: Path) -> None:
    process = start(lifeline, "touch $STARTED; exec sleep 600", tmp_path)
    wait_for((tmp_path / "started").exists)
    process.kill()
    wait_for(lambda: marked(str(tmp_path)) == [])


def test_leftovers_are_ended_and_hold_the_lock_till_then(lifeline: tuple[int, int], tmp_path: Path) -> None:
    path = tmp_path / "lock"
    fd = lock(path)
    process = start(lifeline, ESCAPE + "exit 3", tmp_path, (fd,))
    os.close(fd)
    wait_for((tmp_path / "started").exists)
    seen_free_with_processes = False
    while process.poll() is None:
        if is_free(path) and marked(str(tmp_path)):
            seen_free_with_processes = True
        time.sleep(0.01)
    assert process.returncode == 3
    assert not seen_free_with_processes
    assert marked(str(tmp_path)) == []
    assert is_free(path)


def test_the_command_gets_no_descriptor_and_default_signals(
    lifeline: tuple[int, int], tmp_path: Path
) -> None:
    fd = lock(tmp_path / "lock")
    script = f"ls /proc/self/fd > {tmp_path}/fds; grep SigIgn /proc/self/status > {tmp_path}/ignored"
    assert start(lifeline, script, tmp_path, (fd,), stdin=subprocess.DEVNULL).wait() == 0
    os.close(fd)
    # 3 is ls reading the folder
    assert (tmp_path / "fds").read_text().split() == ["0", "1", "2", "3"]
    assert int((tmp_path / "ignored").read_text().split()[1], 16) == 0
