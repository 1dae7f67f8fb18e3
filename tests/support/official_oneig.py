"""The official code of OneIG-Bench, where it lies beside the repository for development; never part of it."""

from __future__ import annotations

from tests.support import mirror

_COMMIT = "41b49831e79e6dde5323618c164da1c4cf0f699d"


def official_source(path: str) -> str:
    """The text of ``path`` at the pinned commit; skips the test where there is no copy."""
    return mirror.official_source("OneIG-Bench/OneIG-Benchmark", _COMMIT, path)
