"""A real worker process with fake models: ``python -m tests.support.replica_worker FD``, see ``COMMAND``."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from imageevalkit.generate import worker
from imageevalkit.generate.model import ItemFailed, ModelUnusable, Refused
from tests.support.generation import picture

COMMAND = (sys.executable, "-m", "tests.support.replica_worker")


class OutOfMemoryError(RuntimeError):
    """Has the name of torch's."""


class FakeReplica:
    """``notes``: a file to which it appends a line for its loading and for each call: pid, then the prompts.

    The other arguments are faults and manners of the test at hand.
    """

    model_name = "fake"

    def __init__(
        self,
        notes: str = "",
        seconds: float = 0.0,
        batch_size: int = 1,
        fits: int = 1000,
        dies_on: str = "",
        breaks_on: str = "",
        fails_on: str = "",
        unloadable: bool = False,
        lingers: bool = False,
        slow_on: str = "",
        slow_seconds: float = 0.0,
        starts: bool = False,
        compiles: float = 0.0,
        meets: int = 0,
    ) -> None:
        self._meets = meets
        self._compiles, self._compiled = compiles, set[int]()
        self._slow_on, self._slow_seconds = slow_on, slow_seconds
        if lingers:
            threading.Thread(target=time.sleep, args=(3600,)).start()
        self._notes, self._seconds, self._fits = notes, seconds, fits
        self.batch_size = batch_size
        self._dies_on, self._breaks_on, self._fails_on = dies_on, breaks_on, fails_on
        self._note("load")
        if starts:  # as an engine of its own would, that outlives who started it and does not heed SIGTERM
            started = subprocess.Popen(["sh", "-c", "trap '' TERM; exec sleep 100"])
            self._note("started", str(started.pid))
        if unloadable:
            raise ModelUnusable("no such folder: /nowhere")

    def generate(self, given: Any, seed: int = 42) -> Any:
        return self._answer(given, seed, [given])

    def generate_batch(self, inputs: Sequence[Any], seeds: Sequence[int]) -> list[Any]:
        together = [str(one) for one in inputs]
        if len(inputs) > self._fits:
            self._note("too large", *together)
            raise OutOfMemoryError("CUDA out of memory. Attempt to allocate 20.00 GiB")
        return [self._answer(one, seed, inputs) for one, seed in zip(inputs, seeds, strict=True)]

    def _answer(self, given: Any, seed: int, together: Sequence[Any]) -> Any:
        self._note(given)
        while (
            len(self._processes_at_work()) < self._meets
        ):  # so that no process does all before another has started
            time.sleep(0.01)
        if len(together) not in self._compiled:  # as torch.compile does, for each batch size
            self._compiled.add(len(together))
            time.sleep(self._compiles)
        time.sleep(self._seconds)
        if given == self._slow_on:
            time.sleep(self._slow_seconds)
        if given == self._dies_on:
            os.kill(os.getpid(), signal.SIGKILL)
        if given == self._breaks_on:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if given == self._fails_on:
            raise ValueError(f"cannot draw {given}")
        if given == "refused":
            raise Refused("no")
        if given == "late":
            raise ItemFailed("gave up", attempts=4)
        image: Image.Image = picture(given, seed)
        image.putpixel((1, 1), (len(together), 0, 0))
        return image

    def _processes_at_work(self) -> set[str]:
        noted = Path(self._notes).read_text().splitlines() if self._meets else []
        return {line.split(" | ")[0] for line in noted if not line.endswith(" | load")}

    def _note(self, *words: str) -> None:
        if self._notes:
            with Path(self._notes).open("a") as file:
                file.write(
                    " | ".join([str(os.getpid()), os.environ.get("CUDA_VISIBLE_DEVICES", ""), *words]) + "\n"
                )


def _load(setting: Mapping[str, Any]) -> FakeReplica:
    return FakeReplica(**setting["model_kwargs"])


if __name__ == "__main__":
    worker.serve(socket.socket(fileno=int(sys.argv[1])), _load)
