"""Bases for benchmarks of a common shape: they say what is asked and grouped, these say how it is read and averaged."""

from __future__ import annotations

import subprocess
import tempfile
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from imageevalkit.cell.items import Item
from imageevalkit.cell.metrics_file import METRICS, read_metrics
from imageevalkit.cell.results import Metric
from imageevalkit.cell.scores import Score
from imageevalkit.errors import CellFailure
from imageevalkit.evaluation.benchmark import Answers, Benchmark, Scores
from imageevalkit.evaluation.question import Picture, Question


class OfficialScript(Benchmark):
    """Its official program is run on the images of the run, and says what they are worth together.

    What it prints is in the log, the files it writes are in ``official/``. Its ``metrics.json`` has the metrics, or
    :meth:`read` finds them elsewhere.
    """

    _files: Mapping[str, bytes] = {}

    @abstractmethod
    def command(self, images: Path, output: Path) -> Sequence[str]:
        """The words of its command line; it runs in the folder :attr:`data`, where its code is.

        ``images`` is a folder with links to the images that count, below it as :meth:`samples` names them: what else an
        earlier run has left is not there. ``output`` is an empty folder.
        """

    def read(self, output: Path, images: int) -> Mapping[str, Metric]:
        """The metrics over so many ``images``, from the files in ``output``. Raises CellFailure: they are not there."""
        return read_metrics(output / METRICS, images)

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        return ()

    def score(self, item: Item, answers: Answers) -> Score:
        return Score({})

    def metrics(self, scores: Scores) -> Mapping[str, Metric]:
        with tempfile.TemporaryDirectory(prefix="official-") as folder:
            images, output = Path(folder, "images"), Path(folder, "output")
            output.mkdir()
            for one in scores.items:
                if one.score is not None and one.image is not None:
                    link = images / f"{one.item.id}{one.image.suffix}"
                    link.parent.mkdir(parents=True, exist_ok=True)
                    link.symlink_to(one.image.absolute())
            self._run(self.command(images, output))
            self._files = {path.name: path.read_bytes() for path in output.iterdir() if path.is_file()}
            return self.read(output, len(scores))

    def official_files(self, scores: Scores) -> Mapping[str, str | bytes]:
        return self._files

    def _run(self, command: Sequence[str]) -> None:
        try:
            status = subprocess.run(command, cwd=self.data, check=False).returncode
        except OSError as error:
            raise CellFailure(
                f"its official program cannot be run: {error.strerror}: {error.filename}"
            ) from None
        if status:
            raise CellFailure(f"its official program ended with status {status}; the log has what it said")
