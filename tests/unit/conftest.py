"""Unit tests start no program and import neither torch nor a browser's driver: those that do, fail."""

from __future__ import annotations

import multiprocessing.process
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# git shows authors' files and the version of the tree, uname the name of the processor, fc-list the fonts where
# matplotlib is used for the first time; each takes milliseconds
_ALLOWED = {"git", "uname", "fc-list"}
_HEAVY = ("torch", "selenium")


@pytest.fixture(autouse=True)
def starts_no_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail the test if it starts a process, even one that the tested code does not wait for."""
    started: list[str] = []

    def watch(owner: Any, name: str, describe: Callable[..., str]) -> None:
        usual = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            started.append(describe(*args, **kwargs))
            return usual(*args, **kwargs)

        monkeypatch.setattr(owner, name, watched)

    watch(subprocess.Popen, "__init__", lambda self, args, *_, **__: _program(args))
    watch(multiprocessing.process.BaseProcess, "start", lambda self: self.name)
    watch(os, "posix_spawn", lambda path, *_, **__: _program(path))
    watch(os, "fork", lambda: "os.fork")
    yield
    found = [program for program in started if program not in _ALLOWED]
    assert not found, f"a unit test starts no process, but this one starts {found}: it belongs to tests/e2e"


@pytest.fixture(autouse=True)
def trusts_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let HTTP clients read no certificates, which takes most of their time in a test with a server."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))


@pytest.fixture(autouse=True)
def imports_nothing_heavy() -> Iterator[None]:
    """Fail the first test after which torch or selenium is there; other tiers may have imported them before."""
    before = {name for name in _HEAVY if name in sys.modules}
    yield
    found = [name for name in _HEAVY if name in sys.modules and name not in before]
    assert not found, f"this unit test imports {found}: it belongs to tests/torch or tests/browser"


def _program(args: Any) -> str:
    first = args if isinstance(args, (str, bytes, os.PathLike)) else args[0]
    return Path(os.fsdecode(first)).name
