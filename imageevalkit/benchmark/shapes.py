"""Base classes for common shapes of benchmarks. Subclasses define prompts, questions and groups; the base
classes parse the replies and average the values."""

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

from imageevalkit.benchmark.contract import Answers, Benchmark, Sample, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, Question, ask
from imageevalkit.benchmark.reply_formats import grade_in, yes_no_in
from imageevalkit.common.atomic import copy_file
from imageevalkit.common.errors import CellFailure, suggest
from imageevalkit.metrics import mean, mean_by
from imageevalkit.store.cell import short_path
from imageevalkit.store.items import Item
from imageevalkit.store.results import METRICS, Metric, Score, read_metrics


class PromptFile(Benchmark):
    """A benchmark with prompts in a JSON ``file`` beside ``benchmark.py``: a list of objects with ``prompt``.

    Each prompt gets ``images_per_prompt`` images. ``by`` are keys of the objects: each value of such a key
    gets metrics of its own. ``question`` is the text for the judge, with fields such as ``{prompt}``; write
    other braces twice.
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
        """Returns the values of an image by name, computed from the parsed ``value`` of its answer."""

    def score(self, item: Item, answers: Answers) -> Score:
        answer = answers["answer"]
        keys = {key: item.data[key] for key in self.by}
        return Score(self.values(answer.value), keys, {"answer": answer.text})

    def means(self, scores: Scores, value: str, top: float) -> dict[str, Metric]:
        """Returns the mean of ``value`` over all images and over each group, on a scale from 0 to ``top``.

        Confidence intervals treat the images of one prompt as one cluster."""
        found = {value: mean(scores, value, top=top, cluster=_prompt)}
        for key in self.by:
            found |= mean_by(scores, value, key, prefix=f"{value}/{key}/", top=top, cluster=_prompt)
        return found


def _prompt(score: Score) -> str:
    # an id ends with the number of the image among the images of its prompt
    return score.item.rpartition("_")[0]


class YesNo(PromptFile):
    """A benchmark with one yes/no question per image. ``accuracy`` is the share of yes, 0-1."""

    headline = ("accuracy",)
    max_tokens = 16

    def parse(self, question: Question, answer: Answer) -> int:
        """Returns 1 for yes, 0 for no. Raises Unparsed if the answer is neither."""
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
    """A benchmark in which a judge gives grades to each image, as ``name: number``, in JSON or a table.

    ``grades`` are the names, ``scale`` the lowest and highest grade. A reply with a missing grade, or a grade
    outside the scale, is unparsed. The metrics are the mean of each grade and of ``overall``, over all images
    and by group. ``overall`` is the mean grade of an image, unless a grade has that name.
    """

    headline = ("overall",)
    grades: ClassVar[Sequence[str]]
    scale: ClassVar[tuple[float, float]] = (0, 10)

    @property
    def item_values(self) -> Sequence[str]:  # type: ignore[override]
        """The names of :meth:`values`; empty (unknown) if a subclass overrides ``values``."""
        return ("overall", *self.grades) if type(self).values is Grades.values else ()

    def parse(self, question: Question, answer: Answer) -> dict[str, float]:
        """Returns the grades by name. Raises Unparsed if a grade is missing or outside the scale."""
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
    """A benchmark that runs its official program on the images of the run.

    The log contains the program's output, ``official/`` the files that the program writes. The metrics come
    from its ``metrics.json``, unless a subclass overrides :meth:`read`.
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
        """Returns the metrics from the files in ``output``. ``images`` is the number of scored images.

        Raises CellFailure if the metrics are missing."""
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
        # On the disk of the images a copy may share their blocks. The name is fixed, so that after a kill -9
        # the next evaluation removes the rest.
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
                raise CellFailure(f"{program} ended with status {status}; the log has its output")
            self._files = {path.name: path.read_bytes() for path in output.iterdir() if path.is_file()}
            return self.read(output, len(scores))
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _copy_images(self, scores: Scores, folder: Path, program: str) -> None:
        """Copies the images that have a score to ``folder``. Raises CellFailure if a copy fails."""
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
