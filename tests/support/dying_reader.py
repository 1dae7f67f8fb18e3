"""A text reader with bad days, for tests of the processes it runs in."""

from __future__ import annotations

import os
import signal
import threading
import time

from eval_models.ocr import PPOCR
from imageevalkit.store.results import Evaluator


def _kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingReader(PPOCR):
    """Reads text files; their words say what goes wrong.

    ``kill``: the process is killed, as the kernel does when memory runs out. ``late``: so it is, but 0.2 s
    after the text was returned. ``sleep``: ten minutes pass.
    """

    evaluator = Evaluator("dying", official=False)

    def read(self, data: bytes) -> str:
        """The file's text."""
        text = data.decode()
        if "kill" in text:
            _kill_myself()
        if "late" in text:
            threading.Timer(0.2, _kill_myself).start()
        if "sleep" in text:
            time.sleep(600)
        return text
