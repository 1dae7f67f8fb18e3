"""An event loop whose clock jumps to the next timer when nothing else is to do: hours pass in milliseconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout:
            self.now += timeout
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Only for code that waits by ``asyncio.sleep`` and timers: a thread or a socket would be overtaken."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_simulated(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on a :class:`SimulatedLoop`."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(main)
