"""Looking after something that blocks, from a thread beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from imageevalkit.errors import CellFailure

_EVERY = 0.5  # seconds


class Watch:
    """``with Watch(look): …`` calls ``look`` twice a second until the block ends."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_EVERY):
            try:
                self._look()
            except CellFailure:  # a full disk: who writes what counts meets it too
                return
