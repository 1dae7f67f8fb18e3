"""A text reader with bad days, for tests of the processes it runs in."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from imageevalkit.cell.results import Evaluator


def _kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingReader:
    """Reads text files; the file's name says what goes wrong.

    ``kill``: the process is killed, as the kernel does when memory runs out. ``late``: so it is, but 0.2 s
    after the text was returned. ``sleep``: a minute passes.
    """

    evaluator = Evaluator("dying", official=False)

    def read(self, path: Path) -> str:
        """The file's text."""
        if "kill" in path.name:
            _kill_myself()
        if "late" in path.name:
            threading.Timer(0.2, _kill_myself).start()
        if "sleep" in path.name:
            time.sleep(60)
        return path.read_text()
