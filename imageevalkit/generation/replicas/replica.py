"""One worker process as its parent sees it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from imageevalkit.generation.model import RemoteError
from imageevalkit.generation.replicas.messages import Breakdown, pack, read

# Seconds for a process that has nothing left to do. Fewer than a guard's, which would else kill this process, the
# parent, at the moment when the parent would kill the worker.
_PATIENCE = 2.0


class Replica:
    """A worker process with a GPU group of its own (``environ``), and what is under way there."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._command, self._environ = command, environ
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def run(self, on_message: Callable[[Any], None], on_start: Callable[[], None]) -> RemoteError:
        """Start the process and hand on all it says; returns when it is gone, with what it died of.

        Raises:
            OSError: no process can be started.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    str(theirs.fileno()),
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, **self._environ},
                    stdin=asyncio.subprocess.DEVNULL,
                )
            reader, self._writer = await asyncio.open_connection(sock=ours)
            on_start()
            while True:
                try:
                    message = await read(reader)
                except (EOFError, OSError):
                    return _exit_of(await self._end())
                if isinstance(message, Breakdown):
                    with contextlib.suppress(ProcessLookupError):
                        self._process.kill()  # its threads, or its driver, may keep it for ever
                    return message.error
                on_message(message)
        finally:
            await self.close()

    def send(self, message: NamedTuple) -> None:
        """Queue ``message`` for the process. A process that is gone reads nothing, and says so by its end."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(pack(message))

    async def close(self) -> None:
        """End the process."""
        if self._writer is not None:
            self._writer.close()
        await self._end()

    async def _end(self) -> int:
        """Wait for the process, kill it if it does not end; its exit status."""
        process = self._process
        if process is None:
            return 0
        try:
            return await asyncio.wait_for(process.wait(), _PATIENCE)
        except asyncio.TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            return await process.wait()


def _exit_of(status: int) -> RemoteError:
    if status >= 0:
        return RemoteError(
            "WorkerDied", f"its process ended with status {status}: the log has its last words", ""
        )
    name = signal.Signals(-status).name
    # the kernel kills whoever takes the last memory, without a word to the process
    hint = " (out of main memory?)" if name == "SIGKILL" else ""
    return RemoteError("WorkerDied", f"its process was ended by {name}{hint}", "")
