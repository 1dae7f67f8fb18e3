"""What encoders have in common: their name, their device, and many images read in threads ahead of the model."""

from __future__ import annotations

import gc
import json
import math
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from PIL import Image

from eval_models.encoders.weights import ENCODERS
from imageevalkit.benchmark.answerer import Answerer, digest, without_packages
from imageevalkit.benchmark.question import Answer, Question
from imageevalkit.cell.results import Evaluator
from imageevalkit.errors import CellFailure, say
from imageevalkit.images import CorruptImage
from imageevalkit.judges.api import open_picture
from imageevalkit.machine import available_cores
from imageevalkit.secrets import one_line
from imageevalkit.weights import first_line, package_versions

if TYPE_CHECKING:
    import numpy as np

# More decode faster than any GPU encodes, and only hold memory.
_MOST_THREADS = 16
# Beside a GPU. A model on the CPU uses all cores: threads beside it would make its own wait for each other.
_BATCHES_AHEAD = 2


class NotMeasured(Exception):
    """A question that has no numbers: one line why."""


class EncoderModel(Protocol):
    """A loaded model: see :func:`run_batches` for the first two."""

    def prepare(self, image: Image.Image) -> Any:
        """What the model takes of ``image``."""

    def forward(self, batch: list[Any]) -> Sequence[Any]:
        """The features of each of ``batch``."""

    def measure(self, question: Question, features: Any) -> Mapping[str, float | Sequence[float]]:
        """The numbers that ``features`` of the question's picture are. Raises NotMeasured: there are none."""


class Encoder(Answerer):
    """One measurement by image encoders: the text of an answer is a JSON object of numbers.

    ``weights`` are places by their names in :data:`eval_models.encoders.weights.WEIGHTS`, over the defaults there.
    ``device`` "" is the first GPU, else the CPU. ``batch_size`` counts images in one forward pass; it is halved where
    memory runs out.
    """

    name: ClassVar[str]
    packages: ClassVar[Sequence[str]] = ()
    """Those that compute the answer besides torch, transformers, numpy and Pillow."""

    def __init__(
        self, weights: Mapping[str, str] | None = None, device: str = "", batch_size: int = 32
    ) -> None:
        self.weights = weights or {}
        self.device = device
        self.batch_size = batch_size

    @property
    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """All that decides what it answers but the packages: weights, precision, reference data; no places."""

    @abstractmethod
    def load(self, questions: Sequence[Question], device: str) -> EncoderModel:
        """The model for ``questions``. Raises CellFailure: the weights do not load."""

    def text(self, numbers: Mapping[str, Any]) -> str:
        """The answer that ``numbers``, all of them finite, are."""
        return json.dumps(numbers)

    @cached_property
    def evaluator(self) -> Evaluator:
        """Named by a hash of weights and settings; versions of packages are among its details only.

        Whether its weights are the official ones is a matter of their content, which is in the identity; ``official``
        is a part of every request, so that another value would measure anew what is on record.
        """
        # first: the rest needs them
        packages = package_versions(ENCODERS, ("torch", "transformers", "numpy", "pillow", *self.packages))
        identity = {**self.identity, "packages": packages}
        name = f"{self.name}/{digest(without_packages(identity))[:8]}"
        return Evaluator(name, official=False, details={"encoder": identity})

    @property
    def is_official(self) -> bool:
        """Unless it computes in another precision than the official code.

        That runs on CUDA, where torch's autocast takes float16; on the CPU it takes bfloat16.
        """
        precision = self.evaluator.details["encoder"]["precision"]
        return not (isinstance(precision, dict) and precision.get("official") == "bfloat16")

    def holdup(self) -> str:
        """Its weights take minutes to load, and its answers come a batch at a time."""
        return f"{self.name} loads and measures"

    def ask(self, questions: Sequence[Question], workers: int = 1) -> Iterator[Answer]:
        """Images are prepared on as many cores as the job has. The model is freed when the iterator ends."""
        if not questions:
            return
        device = choose_device(self.device)
        model = self.load(questions, device)
        try:
            for found in run_batches(questions, model.prepare, model.forward, device, self.batch_size):
                text, error = None, found.error
                if not error:
                    try:
                        text = self.text(_finite(model.measure(found.question, found.values)))
                    except NotMeasured as reason:
                        error = str(reason)
                yield Answer(found.question, text, error, seconds=found.seconds)
        finally:
            del model
            free_memory()


def _finite(numbers: Mapping[str, float | Sequence[float]]) -> Mapping[str, float | Sequence[float]]:
    for found in numbers.values():
        if not all(map(math.isfinite, found if isinstance(found, Sequence) else [found])):
            # no JSON, and no measurement: half precision overflowed, or the weights are damaged
            raise NotMeasured("the encoder gave no finite number")
    return numbers


def choose_device(name: str) -> str:
    """``name``, else the first GPU, else the CPU, in torch's words. Raises CellFailure: torch knows no such device."""
    import torch

    name = name or ("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
    except Exception as error:  # torch raises what the device's backend does
        raise CellFailure(
            f"encoders: torch cannot use the device '{name}' ({first_line(error)}); leave it out, or say cuda:0 or cpu"
        ) from error
    return name


def to_device(pixels: list[np.ndarray], device: str) -> Any:
    """One float32 tensor (batch, 3, height, width) on ``device``."""
    import numpy as np
    import torch

    return torch.from_numpy(np.stack(pixels)).to(device)


def free_memory() -> None:
    """Give back what models that nothing refers to any more have held on the GPU."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class Features(NamedTuple):
    """``values`` of the question's picture, as ``forward`` gave them, or None and a one-line ``error``.

    ``seconds``: its share of the model's time.
    """

    question: Question
    values: Any
    error: str = ""
    seconds: float = 0.0


def run_batches(
    questions: Sequence[Question],
    prepare: Callable[[Image.Image], Any],
    forward: Callable[[list[Any]], Sequence[Any]],
    device: str,
    batch_size: int,
) -> Iterator[Features]:
    """What ``forward`` says of the one picture of each question, in any order.

    ``prepare`` gets a picture as RGB with the losses of its encoding, in one of several threads. ``forward`` gets a
    batch of what it made and gives as many features in the same order, in torch's inference mode; a batch that does
    not fit into memory is halved, and so are all later ones. A picture that several questions share goes through
    both once. Only the pictures of a few batches are in memory. One that does not decode is an error.

    Raises:
        CellFailure: not even one picture fits into memory, or the model fails.
    """
    about: dict[Any, list[Question]] = {}
    for question in questions:
        (picture,) = question.pictures
        about.setdefault((picture.sha256, picture.encoding, picture.pixels), []).append(question)
    fit = batch_size  # as many as do, as far as is known
    ahead = 0 if device == "cpu" else _BATCHES_AHEAD
    for batch in _prepared(list(about.values()), prepare, batch_size, ahead):
        waiting = []
        for group, pixels, error in batch:
            if error:
                yield from (Features(question, None, error) for question in group)
            else:
                waiting.append((group, pixels))
        while waiting:
            part, started = waiting[:fit], time.monotonic()
            values = _values(forward, [pixels for _, pixels in part])
            if values is None:
                fit = len(part) // 2
                free_memory()
                say(f"encoders: out of GPU memory; from now on {fit} images in one forward pass")
                continue
            seconds = (time.monotonic() - started) / len(part)
            for (group, _), found in zip(part, values, strict=True):
                yield from (Features(question, found, seconds=seconds) for question in group)
            waiting = waiting[len(part) :]


# what the model takes of the picture that the questions share, or None and why there is none
_GroupInputs = tuple[Sequence[Question], Any, str]


def _prepared(
    groups: Sequence[Sequence[Question]], prepare: Callable[[Image.Image], Any], batch_size: int, ahead: int
) -> Iterator[list[_GroupInputs]]:
    """The pictures of ``groups`` in order, in batches; those of ``ahead`` more are under way."""

    def prepared(group: Sequence[Question]) -> _GroupInputs:
        try:
            return group, prepare(open_picture(group[0].pictures[0])), ""
        except CorruptImage as error:
            return group, None, f"unreadable image: {one_line(error)}"
        except Exception as error:  # whatever the disk or Pillow raises costs this image, not the cell
            return group, None, first_line(error)

    threads = ThreadPoolExecutor(min(_MOST_THREADS, available_cores()), "prepare")
    upcoming: deque[list[Future[_GroupInputs]]] = deque()
    try:
        for start in range(0, len(groups), batch_size):
            upcoming.append([threads.submit(prepared, group) for group in groups[start : start + batch_size]])
            if len(upcoming) > ahead:
                yield [future.result() for future in upcoming.popleft()]
        for futures in upcoming:
            yield [future.result() for future in futures]
    finally:
        threads.shutdown(cancel_futures=True)


def _values(forward: Callable[[list[Any]], Sequence[Any]], batch: list[Any]) -> Sequence[Any] | None:
    """None where memory ran out: when this returns, nothing of the failed pass is referred to any more."""
    import torch

    try:
        with torch.inference_mode():
            return forward(batch)
    except CellFailure:
        raise
    except torch.OutOfMemoryError as error:
        if len(batch) == 1:
            raise CellFailure(
                "encoders: too little GPU memory is free for one image; give the job a larger GPU "
                "(EVAL_GPU_MAP), or none, to compute on the CPU"
            ) from error
    except Exception as error:  # of the device, or of a model that its images do not fit
        raise CellFailure(f"encoders: the model failed: {first_line(error)}") from error
    return None
