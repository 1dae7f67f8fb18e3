"""One bar for all files of a hub repository, whichever way each of them arrives.

The library and its storage protocols have bars of their own, by file and by kind of transfer; what the disk holds is
the same for all of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tqdm.auto import tqdm

from imageevalkit.asset_checks.file_facts import FileFacts

_INTERVAL = 0.5


class Silent(tqdm):
    """In place of the library's own bars."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "disable": True})


class HubBar:
    """Bytes and files of ``wanted`` that are in ``snapshot``, or on their way in ``blobs``; shown on a terminal."""

    def __init__(self, name: str, blobs: Path, snapshot: Path, wanted: Mapping[str, FileFacts]) -> None:
        self._blobs, self._snapshot, self._wanted = blobs, snapshot, wanted
        self._arrived: set[str] = set()
        self._bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        there = self._look()
        total = sum(facts.size for facts in wanted.values())
        self._bar = tqdm(
            total=total, initial=there, desc=name, unit="B", unit_scale=True, unit_divisor=1024, disable=None
        )

    def __enter__(self) -> HubBar:
        if not self._bar.disable:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
            self._show()
        self._bar.close()

    def _watch(self) -> None:
        pause = _INTERVAL
        while not self._ended.wait(pause):
            begin = time.monotonic()
            self._show()
            # data sets may have a hundred thousand files
            pause = max(_INTERVAL, 10 * (time.monotonic() - begin))

    def _show(self) -> None:
        there = self._look()
        self._bar.set_postfix_str(f"{len(self._arrived)} of {len(self._wanted)} files", refresh=False)
        self._bar.update(there - self._bar.n)

    def _look(self) -> int:
        for path, facts in self._wanted.items():
            if path not in self._arrived and (self._snapshot / path).exists():
                self._arrived.add(path)
                self._bytes += facts.size
        return self._bytes + self._on_their_way()

    def _on_their_way(self) -> int:
        begun: dict[str, int] = {}
        for part in (*self._blobs.glob("*.incomplete"), *self._blobs.glob("*.resume")):
            try:
                begun[part.name.partition(".")[0]] = part.stat().st_size
            except FileNotFoundError:  # it has just arrived
                continue
        waiting = (facts for path, facts in self._wanted.items() if path not in self._arrived)
        return sum(min(facts.size, begun.get(facts.sha256 or facts.blob, 0)) for facts in waiting)
