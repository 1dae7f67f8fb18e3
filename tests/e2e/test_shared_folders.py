"""A team's folders: results that two users write in turn, and filesystems that have no locks."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageevalkit.common.errors import UserError
from imageevalkit.store.cell import Cell, lock_cell
from tests.support.checkout import environ, find_no_text, make_checkout, needs_driver_env, run_command

# ---- two users of one group ----------------------------------------------------------------------------------

GROUP = 12347
ALICE, BOB = 12345, 12346


@pytest.fixture
def team() -> Iterator[Path]:
    """A checkout in a folder of the group's, whose files are the group's too, as its first user made it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:  # pytest's folders are closed to others
        os.chown(place, ALICE, GROUP)
        Path(place).chmod(0o2775)
        checkout = find_no_text(make_checkout(Path(place, "checkout")))
        for path in (checkout, *checkout.rglob("*")):
            os.chown(path, ALICE, GROUP, follow_symlinks=False)
            if not path.is_symlink():
                path.chmod(0o2775 if path.is_dir() else path.stat().st_mode | 0o064)
        yield checkout


def as_user(uid: int) -> list[str]:
    """The start of a command run as ``uid`` of the group."""
    command = ["setpriv", f"--reuid={uid}", f"--regid={GROUP}", "--clear-groups"]
    # not by setpriv itself, which starts its program while it still has root's rights
    python = ["bash", "-c", 'exec "$0" -c ""', sys.executable]
    if subprocess.run([*command, *python], capture_output=True).returncode:
        # Python itself is in a home folder: reading, not writing, is allowed everywhere
        command += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
        command += ["--securebits=+no_setuid_fixup"]  # `test -x` asks with them too
    return command


@needs_driver_env
@pytest.mark.skipif(os.getuid() != 0, reason="needs to become two other users")
@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv (util-linux)")
def test_two_users_of_a_group_go_on_with_each_other_s_results(team: Path) -> None:
    def run(uid: int, *words: str) -> None:
        run_command(
            [*as_user(uid), "bash", "-c", 'umask 002; exec bash "$@"', "bash", str(team / "eval.sh"), *words],
            env=environ(team, HOME=f"{team.parent}", CUDA_VISIBLE_DEVICES=""),
            status=0,
        )

    words = ["--model_names", "reference-noise", "--ds_names", "quicktext", "--limit"]
    for uid, limit in ((ALICE, "2"), (BOB, "4")):
        run(uid, *words, limit)
    result = json.loads((team / "output/reference-noise/quicktext/result.json").read_text())
    assert result["coverage"]["judged"] == 4
    closed = [path for path in _all(team / "output", team / "log") if not path.stat().st_mode & 0o020]
    assert not closed, "what the one has made, the other may write"
    assert {path.stat().st_uid for path in _all(team / "output")} == {ALICE, BOB}


def _all(*folders: Path) -> list[Path]:
    return [path for folder in folders for path in (folder, *folder.rglob("*"))]


# ---- what lies where a cell's lock should be -------------------------------------------------------------------


def test_a_cell_s_lock_leads_nowhere_else(tmp_path: Path) -> None:
    cell, precious = Cell("m", "b"), tmp_path / "precious"
    precious.write_text("precious")
    cell.folder.mkdir(parents=True)
    place = cell.folder / ".lock"
    place.symlink_to(precious)
    with pytest.raises(
        UserError, match=rf"{place} of \S+ is no regular file, as a lock must be: have it removed"
    ):
        lock_cell(cell)
    assert precious.read_text() == "precious"


# ---- a filesystem without locks ----------------------------------------------------------------------------------


def test_results_on_a_filesystem_without_locks_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    why = os.strerror(errno.ENOLCK)

    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, why)

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UserError) as told:
        lock_cell(Cell("m", "b"))
    assert str(told.value) == (
        f"{Cell('m', 'b').folder} is on a filesystem without file locks (flock: {why}): use a folder on one that has "
        "them, such as a local disk (a link to it will do), or have this one mounted with them"
    )
