"""What a benchmark asks of anything that reads the text in an image."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from imageevalkit.cell.results import Evaluator


class TextReader(Protocol):
    """Reads text; one instance serves one process, one image at a time."""

    @property
    def evaluator(self) -> Evaluator:
        """Who reads, for the score's name. Costs no model load: a run with nothing to do asks only this."""

    def read(self, path: Path) -> str:
        """All text in the image, lines in reading order joined by newlines; empty when there is none.

        Raises:
            CorruptImage: the file is not a whole image.
            OSError: the file cannot be opened.
        """
