"""Many images through an encoder: read in threads ahead of the model, each different image once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from PIL import Image

from eval_models.encoders.device import choose_device, free_memory
from eval_models.encoders.interface import EncoderOptions
from eval_models.judge.local.pictures import open_picture
from imageevalkit.cores import available_cores
from imageevalkit.errors import CellFailure, say
from imageevalkit.evaluation.question import Picture, Question
from imageevalkit.images import CorruptImage
from imageevalkit.load_errors import first_line
from imageevalkit.secrets import one_line

# More decode faster than any GPU encodes, and only hold memory.
_MOST_THREADS = 16
# Beside a GPU. A model on the CPU uses all cores: threads beside it would make its own wait for each other.
_BATCHES_AHEAD = 2


class Encoded(NamedTuple):
    """``features`` of the question's picture, as ``forward`` gave them, or None and a one-line ``error``.

    ``seconds``: its share of the model's time.
    """

    question: Question
    features: Any
    error: str = ""
    seconds: float = 0.0


class _Task(NamedTuple):
    """A picture, and all questions about it."""

    picture: Picture
    questions: Sequence[Question]


class _Ready(NamedTuple):
    """What the model takes of a picture, or None and why there is none."""

    task: _Task
    pixels: Any
    error: str = ""


def run_batches(
    questions: Sequence[Question],
    prepare: Callable[[Image.Image], Any],
    forward: Callable[[list[Any]], Sequence[Any]],
    options: EncoderOptions,
) -> Iterator[Encoded]:
    """What ``forward`` says of the one picture of each question, in any order.

    ``prepare`` gets a picture as RGB with the losses of its encoding, in one of several threads. ``forward`` gets a
    batch of what it made and gives as many features in the same order, in torch's inference mode; a batch that does
    not fit into memory is halved, and so are all later ones. A picture that several questions share goes through
    both once. Only the pictures of a few batches are in memory. One that does not decode is an error.

    Raises:
        CellFailure: not even one picture fits into memory, or the model fails.
    """
    model = _Model(forward, options.batch_size)
    ahead = 0 if choose_device(options) == "cpu" else _BATCHES_AHEAD
    for batch in _prepared(_tasks(questions), prepare, options.batch_size, ahead):
        for ready in batch:
            if ready.error:
                yield from (Encoded(question, None, ready.error) for question in ready.task.questions)
        yield from model.run([ready for ready in batch if not ready.error])


def _tasks(questions: Sequence[Question]) -> list[_Task]:
    about: dict[Any, tuple[Picture, list[Question]]] = {}
    for question in questions:
        (picture,) = question.pictures
        key = picture.sha256, picture.encoding, picture.pixels
        about.setdefault(key, (picture, []))[1].append(question)
    return [_Task(*found) for found in about.values()]


def _prepared(
    tasks: Sequence[_Task], prepare: Callable[[Image.Image], Any], batch_size: int, ahead: int
) -> Iterator[list[_Ready]]:
    """``tasks`` in order, ready, in batches; ``ahead`` more are ready or on their way."""
    threads = ThreadPoolExecutor(min(_MOST_THREADS, available_cores()), "prepare")
    upcoming: deque[list[Future[_Ready]]] = deque()
    try:
        for start in range(0, len(tasks), batch_size):
            batch = tasks[start : start + batch_size]
            upcoming.append([threads.submit(_ready, task, prepare) for task in batch])
            if len(upcoming) > ahead:
                yield [future.result() for future in upcoming.popleft()]
        for futures in upcoming:
            yield [future.result() for future in futures]
    finally:
        threads.shutdown(cancel_futures=True)


def _ready(task: _Task, prepare: Callable[[Image.Image], Any]) -> _Ready:
    try:
        return _Ready(task, prepare(open_picture(task.picture)))
    except CorruptImage as error:
        return _Ready(task, None, f"unreadable image: {one_line(error)}")
    except Exception as error:  # whatever the disk or Pillow raises costs this image, not the cell
        return _Ready(task, None, first_line(error))


class _Model:
    """``forward`` on batches that fit into memory; ``batch_size`` is how many pictures do, as far as is known."""

    def __init__(self, forward: Callable[[list[Any]], Sequence[Any]], batch_size: int) -> None:
        self._forward = forward
        self.batch_size = batch_size

    def run(self, batch: Sequence[_Ready]) -> Iterator[Encoded]:
        """The features of all of ``batch``."""
        while batch:
            part = batch[: self.batch_size]
            started = time.monotonic()
            features = self._features(part)
            if features is None:
                continue
            seconds = (time.monotonic() - started) / len(part)
            for ready, found in zip(part, features, strict=True):
                for question in ready.task.questions:
                    yield Encoded(question, found, seconds=seconds)
            batch = batch[len(part) :]

    def _features(self, part: Sequence[_Ready]) -> Sequence[Any] | None:
        """None where memory ran out: then ``batch_size`` is smaller than before."""
        import torch

        try:
            with torch.inference_mode():
                return self._forward([ready.pixels for ready in part])
        except CellFailure:
            raise
        except torch.OutOfMemoryError as error:
            if len(part) == 1:
                raise CellFailure(
                    "encoders: too little GPU memory is free for one image; give the job a larger GPU "
                    "(EVAL_GPU_MAP), or none, to compute on the CPU"
                ) from error
        except Exception as error:  # of the device, or of a model that its images do not fit
            raise CellFailure(f"encoders: the model failed: {first_line(error)}") from error
        # only now is nothing of the failed pass referred to any more
        self.batch_size = len(part) // 2
        free_memory()
        say(f"encoders: out of GPU memory; from now on {self.batch_size} images in one forward pass")
        return None
