"""Bases for benchmarks of a common shape: they say what is asked and grouped, these say how it is read and averaged."""

from __future__ import annotations

import re
import reprlib
import shutil
import subprocess
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from string import Formatter
from typing import Any, ClassVar

from imageevalkit.atomic import copy_file
from imageevalkit.benchmark.contract import Answers, Benchmark, Sample, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, Question, ask
from imageevalkit.benchmark.reply_formats import grade_in, yes_no_in
from imageevalkit.cell import short_path
from imageevalkit.cell.items import Item
from imageevalkit.cell.results import METRICS, Metric, Score, read_metrics
from imageevalkit.errors import CellFailure, suggest
from imageevalkit.metrics import mean, mean_by


class PromptFile(Benchmark):
    """Prompts in a JSON ``file`` beside ``benchmark.py``: a list of objects with ``prompt`` and whatever groups them.

    Of each prompt ``images_per_prompt`` images are made. ``by`` are the keys whose groups have a metric of their own;
    ``question`` is what the judge is asked, with fields such as ``{prompt}`` (braces that are none are doubled).
    """

    file: ClassVar[str] = "prompts.json"
    by: ClassVar[Sequence[str]] = ()
    question: ClassVar[str]
    max_tokens: ClassVar[int] = 512

    def samples(self) -> Iterable[Sample]:
        where, doubled = f"benchmark {self.name}", "a brace that names nothing is written twice: {{ or }}"
        try:
            fields = [name for _, name, _, _ in Formatter().parse(self.question) if name is not None]
        except ValueError as error:
            raise CellFailure(f"{where}: question: {error}; {doubled}") from None
        asked = [re.split(r"[.\[]", name)[0] for name in fields]
        needed = dict.fromkeys(("prompt", *self.by, *asked))
        rows = self.read_json(self.file)
        if not isinstance(rows, list) or not rows or not all(isinstance(row, Mapping) for row in rows):
            keys = ", ".join(f'"{key}"' for key in needed)
            raise CellFailure(
                f"{where}: {self.file} holds {reprlib.repr(rows)}, and must be a list of objects with {keys}"
            )
        for n, row in enumerate(rows):
            if missing := [key for key in needed if key not in row]:
                lacks = f"{where}: {self.file}, entry {n} (counted from 0) lacks {', '.join(missing)}"
                near = suggest(missing[0], set(row) - set(needed)).replace("did you mean", "it has")
                only_asked = {*missing} - {"prompt", *self.by}
                raise CellFailure(f"{lacks}{near}" + f"; in question, {doubled}" * bool(only_asked))
            for repetition in range(self.images_per_prompt):
                yield Sample(f"images/{n:05d}_{repetition}.png", row["prompt"], repetition, row)

    @cached_property
    def prompts(self) -> Mapping[str, str]:
        return {"question": self.question}

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        text = self.question.format_map({**item.data, "prompt": item.prompt})
        return [ask("answer", image, text, max_tokens=self.max_tokens)]

    @abstractmethod
    def values(self, value: Any) -> Mapping[str, float]:
        """The numbers of an image by name, from what was read in the answer about it."""

    def score(self, item: Item, answers: Answers) -> Score:
        answer = answers["answer"]
        keys = {key: item.data[key] for key in self.by}
        return Score(self.values(answer.value), keys, {"answer": answer.text})

    def means(self, scores: Scores, value: str, top: float) -> dict[str, Metric]:
        """The mean of one of the values, and by group; images of one prompt are one to an interval."""
        found = {value: mean(scores, value, top=top, cluster=_prompt)}
        for key in self.by:
            found |= mean_by(scores, value, key, prefix=f"{value}/{key}/", top=top, cluster=_prompt)
        return found


def _prompt(score: Score) -> str:
    # the number of the image is what ends the id
    return score.item.rpartition("_")[0]


class YesNo(PromptFile):
    """A judge is asked one question about each image: ``accuracy`` is the share of yes, 0-1, of all and by group."""

    headline = ("accuracy",)
    max_tokens = 16

    def parse(self, question: Question, answer: Answer) -> int:
        """1 for yes, 0 for no."""
        text = answer.text or ""
        value = yes_no_in(text)
        if value is None:
            raise Unparsed("neither yes nor no", text)
        return value

    def values(self, value: int) -> Mapping[str, float]:
        return {"accuracy": value}

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        return self.means(scores, "accuracy", 1)


class Grades(PromptFile):
    """A judge gives each image some ``grades`` (their names), as ``name: number``, in JSON or in a table.

    ``scale`` is the lowest and the highest grade. A reply in which a grade is missing, or off the scale, is unparsed.
    The metrics are the mean of each grade and ``overall``, over all images and by group. ``overall`` is the mean grade
    of an image, unless a grade has that name.
    """

    headline = ("overall",)
    grades: ClassVar[Sequence[str]]
    scale: ClassVar[tuple[float, float]] = (0, 10)

    @property
    def item_values(self) -> Sequence[str]:  # type: ignore[override]
        """Returns the names of :meth:`values`; a class that overrides it may have others."""
        return ("overall", *self.grades) if type(self).values is Grades.values else ()

    def parse(self, question: Question, answer: Answer) -> dict[str, float]:
        """The grades by name."""
        found, text = dict[str, float](), answer.text or ""
        low, high = self.scale
        for name in self.grades:
            grade = grade_in(text, name, high)
            if grade is None:
                raise Unparsed(f"no {name}", text)
            if not low <= grade <= high:
                raise Unparsed(f"{name} {grade:g} is not on the scale of {low:g} to {high:g}")
            found[name] = grade
        return found

    def values(self, value: Mapping[str, float]) -> Mapping[str, float]:
        return {"overall": sum(value.values()) / len(value), **value}

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        means = (self.means(scores, name, self.scale[1]) for name in ("overall", *self.grades))
        return {name: metric for metrics in means for name, metric in metrics.items()}


class OfficialScript(Benchmark):
    """Runs the official program of a benchmark on the images of the run.

    The program's output is in the log; the files that it writes are in ``official/``. ``metrics.json`` among them holds
    the metrics, unless :meth:`read` finds them elsewhere.
    """

    needs_all_items = "its official program scores the whole set"

    _files: Mapping[str, bytes] = {}

    @abstractmethod
    def command(self, images: Path, output: Path) -> Sequence[str]:
        """Returns the command line. It runs in the folder :attr:`data`, which holds the program's code.

        Args:
            images: a folder with copies of the run's images, named as in :meth:`samples`. The program may change them.
            output: an empty folder for the program's files.
        """

    def read(self, output: Path, images: int) -> Mapping[str, Metric]:
        """The metrics over so many ``images``, from the files in ``output``. Raises CellFailure: they are not there."""
        return read_metrics(output / METRICS, images)

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        return ()

    def score(self, item: Item, answers: Answers) -> Score:
        return Score({})

    def metrics(self, scores: Scores) -> Mapping[str, Metric]:
        program = f"benchmark {self.name}: its official program"
        if not self.data.is_dir():
            raise CellFailure(
                f"{program} runs in {short_path(self.data)}, which is no folder: put the program there, or "
                "name it in assets"
            )
        # On the images' own disk, where a copy may share their blocks. One fixed name: after a kill -9 the next
        # evaluation removes what is left.
        work = scores.items[0].item.folder.absolute() / ".official"
        shutil.rmtree(work, ignore_errors=True)
        try:
            images, output = work / "images", work / "output"
            output.mkdir(parents=True)
            self._copy_images(scores, images, program)
            try:
                status = subprocess.run(self.command(images, output), cwd=self.data, check=False).returncode
            except OSError as error:
                raise CellFailure(f"{program} cannot be run: {error.strerror}: {error.filename}") from None
            if status:
                raise CellFailure(f"{program} ended with status {status}; the log has what it said")
            self._files = {path.name: path.read_bytes() for path in output.iterdir() if path.is_file()}
            return self.read(output, len(scores))
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _copy_images(self, scores: Scores, folder: Path, program: str) -> None:
        """Copy the images that have a score to ``folder``. Raises CellFailure: an image cannot be copied."""
        for one in scores.items:
            if one.score is not None and one.image is not None:
                copy = folder / f"{one.item.id}{one.image.suffix}"
                copy.parent.mkdir(parents=True, exist_ok=True)
                try:
                    copy_file(one.image, copy)
                except OSError as error:
                    raise CellFailure(
                        f"{program} needs a copy of each image, and {short_path(copy)} cannot be written: "
                        f"{error.strerror}"
                    ) from None

    def official_files(self, scores: Scores) -> Mapping[str, str | bytes]:
        return self._files
