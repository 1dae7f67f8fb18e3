"""The base classes of encoders: names, devices, batches, images read ahead in threads, and CLIP's
preprocessing.

torchvision's transforms for Pillow images and transformers' CLIPImageProcessor (the slow one of 4.50) both resize
with Pillow and round the longer side down. They round the border of an odd centre crop differently. This
module does both bit for bit with Pillow and numpy, so their versions cannot change a score.
"""

from __future__ import annotations

import gc
import json
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from PIL import Image

from eval_models.encoders.weights import ENCODERS, WEIGHTS, find
from imageevalkit.assets.weights import WeightsSource, first_line, package_versions
from imageevalkit.benchmark.answerer import Answerer, device_lost, digest, without_packages
from imageevalkit.benchmark.question import TRANSFORMERS, Answer, PixelRule, Question
from imageevalkit.common.errors import CellFailure, say
from imageevalkit.common.images import CorruptImage, map_threads
from imageevalkit.common.machine import available_cores
from imageevalkit.common.redaction import one_line
from imageevalkit.judges.api import open_picture
from imageevalkit.store.results import Evaluator

if TYPE_CHECKING:
    import numpy as np
    import torch

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
TORCH = ("torch", "transformers", "numpy", "pillow")
"""The packages of every encoder."""
kept_models: dict[str, Any] = {}
"""The judge that this process keeps for its next result, by source and settings; at most one."""
# how each library rounds half of an odd border at the left and top: to the nearest even number, or down
_ROUNDED: dict[str, Callable[[float], int]] = {"torchvision": round, "transformers": math.floor}


class Measurer(Answerer):
    """An evaluator that answers with a JSON value.

    Its full name contains a hash of everything that affects the value, except package versions. ``weights``
    maps names from ``weight_names`` to paths or hub ids that replace the defaults.
    """

    name: ClassVar[str]
    weight_names: ClassVar[Sequence[str]] = ()
    packages: ClassVar[Sequence[str]] = ()
    """The packages that compute the answer."""
    kind: ClassVar[str]
    """The key of its identity in the details of the evaluator."""
    official: ClassVar[bool] = False
    """True if this class alone, with the weights of :data:`WEIGHTS`, is the official evaluator of a
    benchmark.

    Every recorded request contains this value: a changed value would repeat all recorded measurements.
    """

    @property
    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Everything that affects the answers, except packages: weights, precision, reference data. It has no
        paths."""

    def __init__(self, weights: Mapping[str, str] | None = None) -> None:
        self.weights = weights or {}

    @cached_property
    def sources(self) -> dict[str, WeightsSource]:
        """The weights by name. Raises CellFailure if weights are missing."""
        return {name: find(name, self.weights) for name in self.weight_names}

    @cached_property
    def evaluator(self) -> Evaluator:
        # first, so a missing package is reported before identity needs it
        packages = package_versions(ENCODERS, self.packages)
        identity = {**self.identity, "packages": packages}
        name = f"{self.name}/{digest(without_packages(identity))[:8]}"
        has_others = any(self.weights.get(one, WEIGHTS[one]) != WEIGHTS[one] for one in self.weight_names)
        return Evaluator(name, self.official and not has_others, {self.kind: identity})


def why_no_number(error: Exception) -> str:
    """Returns one line about an error of the disk, Pillow or another library that fails a single image."""
    return f"unreadable image: {one_line(error)}" if isinstance(error, CorruptImage) else first_line(error)


class Encoder(Measurer):
    """An evaluator that runs neural networks on images. The text of an answer is a JSON value.

    ``device`` is a torch device, by default the first GPU, else the CPU. ``batch_size`` is the number of
    images in a forward pass; it is halved when memory runs out. ``models`` holds the result of :meth:`load`
    during :meth:`ask`.
    """

    kind = "encoder"
    packages: ClassVar[Sequence[str]] = TORCH
    precision: ClassVar[Any] = ""
    """The precision of the computation, a part of :attr:`identity`."""
    pixels: ClassVar[PixelRule] = TRANSFORMERS
    """The pixel rule for images if the benchmark has no rule of its own."""
    models: Any = None

    def __init__(
        self, weights: Mapping[str, str] | None = None, device: str = "", batch_size: int = 32
    ) -> None:
        super().__init__(weights)
        self.batch_size = batch_size
        self._device = device

    @cached_property
    def device(self) -> str:
        import torch

        name = self._device or ("cuda:0" if torch.cuda.is_available() else "cpu")
        try:
            torch.empty(0, device=name)
        except Exception as error:  # the exception type depends on the device's backend
            raise CellFailure(
                f"encoders: torch cannot use the device '{name}': {first_line(error)}"
            ) from error
        return name

    @property
    def identity(self) -> dict[str, Any]:
        weights = {name: source.identity for name, source in self.sources.items()}
        return {"encoder": self.name, "weights": weights, "precision": self.precision}

    @abstractmethod
    def load(self, questions: Sequence[Question]) -> Any:
        """Loads the models for ``questions``. Raises CellFailure if the weights do not load."""

    @abstractmethod
    def prepare(self, image: Image.Image) -> Any:
        """Returns the models' input for ``image`` (RGB). Several threads call this method."""

    @abstractmethod
    def forward(self, batch: list[Any]) -> Sequence[Any]:
        """Returns the features of each element of ``batch``. Runs in torch's inference mode."""

    @abstractmethod
    def measure(self, question: Question, features: Any) -> Any:
        """Returns the answer, a JSON value, from the ``features`` of the question's picture.

        Raises ValueError if a number is not finite (overflow in half precision, damaged weights) and the
        value would not show it.
        """

    def autocast(self, **options: Any) -> torch.amp.autocast_mode.autocast:
        """Returns torch's autocast for the type of the device."""
        import torch

        return torch.amp.autocast(torch.device(self.device).type, **options)

    def holdup(self) -> str:
        return f"{self.name} loads and measures"  # takes minutes; answers come in batches

    def ask(self, questions: Sequence[Question], workers: int = 1) -> Iterator[Answer]:
        """Yields the answer to each question, which holds one picture. The end of the iterator frees the
        models.

        If a batch does not fit into memory, this and all later batches are halved. Questions about the same
        picture share its features. Only a few batches of pictures are in memory at a time.
        """
        about: dict[Any, list[Question]] = {}
        for question in questions:
            (picture,) = question.pictures
            about.setdefault((picture.sha256, picture.encoding, picture.pixels), []).append(question)
        kept_models.clear()  # the judge of an earlier result may take the memory
        fit = self.batch_size  # the largest batch that has not failed
        self.models = self.load(questions)
        try:
            for batch in self._prepared(list(about.values())):
                yield from (Answer(one, None, error) for group, _, error in batch if error for one in group)
                waiting = [(group, inputs) for group, inputs, error in batch if not error]
                while waiting:
                    part, started = waiting[:fit], time.monotonic()
                    features = self._features([inputs for _, inputs in part])
                    if features is None:
                        fit = len(part) // 2
                        free_memory()
                        say(f"encoders: out of GPU memory; from now on {fit} images in one forward pass")
                        continue
                    seconds = (time.monotonic() - started) / len(part)
                    for (group, _), found in zip(part, features, strict=True):
                        yield from (self._answer(one, found, seconds) for one in group)
                    waiting = waiting[len(part) :]
        finally:
            self.models = None
            free_memory()

    def _prepared(
        self, groups: Sequence[Sequence[Question]]
    ) -> Iterator[list[tuple[Sequence[Question], Any, str]]]:
        """Yields batches of (group, model input, error) in order; a failed picture has None as input.

        With a GPU, threads prepare the next two batches ahead. A model on the CPU uses all cores, so
        preparation does not run beside it: the threads would slow each other down.
        """

        def inputs(group: Sequence[Question]) -> tuple[Sequence[Question], Any, str]:
            try:
                picture = group[0].pictures[0]
                image = open_picture(picture._replace(pixels=picture.pixels or self.pixels))
                return group, self.prepare(image), ""
            except Exception as error:
                return group, None, why_no_number(error)

        at_once = self.batch_size if self.device == "cpu" else len(groups)
        # 16 threads decode faster than any GPU encodes; more would only use memory
        threads = min(16, available_cores())
        for start in range(0, len(groups), at_once):
            prepared = map_threads(inputs, groups[start : start + at_once], threads, 2 * self.batch_size)
            while batch := list(islice(prepared, self.batch_size)):
                yield batch

    def _features(self, batch: list[Any]) -> Sequence[Any] | None:
        """Returns the features, or None if memory ran out. After the return no reference to the failed pass
        remains."""
        import torch

        with inference("one image"):
            try:
                return self.forward(batch)
            except torch.OutOfMemoryError:
                if len(batch) == 1:
                    raise
        return None

    def _answer(self, question: Question, features: Any, seconds: float) -> Answer:
        try:
            text = json.dumps(self.measure(question, features), allow_nan=False)
        except ValueError:
            return Answer(question, None, "the encoder gave no finite number", seconds=seconds)
        return Answer(question, text, seconds=seconds)


def to_floats(
    image: Image.Image, mean: Sequence[float] = CLIP_MEAN, std: Sequence[float] = CLIP_STD
) -> np.ndarray:
    """Returns ``image`` (RGB) as float32, (3, height, width): scaled to 0-1, minus ``mean``, divided by
    ``std``.

    The float32 quotient equals transformers' float64 product rounded to float32.
    """
    import numpy as np

    values = np.asarray(image, dtype=np.float32) / np.float32(255)
    values = (values - np.array(mean, dtype=np.float32)) / np.array(std, dtype=np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1))


def clip_pixels(image: Image.Image, size: int, *libraries: str) -> list[np.ndarray]:
    """Returns CLIP's input for ``image`` (RGB) as each of ``libraries`` prepares it: float32, (3, size,
    size).

    The shorter side is resized to ``size`` (bicubic), then the centre is cropped and normalised.
    """
    longer = int(size * max(image.size) / min(image.size))
    shape = (size, longer) if image.width <= image.height else (longer, size)
    resized = image.resize(shape, Image.Resampling.BICUBIC)
    found = []
    for library in libraries:
        left, top = (_ROUNDED[library]((side - size) / 2) for side in shape)
        found.append(to_floats(resized.crop((left, top, left + size, top + size))))
    return found


def to_device(pixels: Sequence[np.ndarray], device: str) -> Any:
    """Returns one float32 tensor (batch, 3, height, width) on ``device``."""
    import numpy as np
    import torch

    return torch.from_numpy(np.stack(pixels)).to(device)


def free_memory() -> None:
    """Releases the GPU memory of unreferenced models."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def inference(what: str) -> Iterator[None]:
    """A block in torch's inference mode. ``what`` names the work in the message about missing memory.

    Raises CellFailure if the GPU memory is too small or the model fails.
    """
    import torch

    try:
        with torch.inference_mode():
            yield
    except CellFailure:
        raise
    except torch.OutOfMemoryError as error:
        raise CellFailure(
            f"encoders: too little GPU memory is free for {what}; give the job a larger GPU (EVAL_GPU_MAP), or none, "
            "to compute on the CPU"
        ) from error
    except Exception as error:  # an error of the device, or inputs that do not fit the model
        if isinstance(error, torch.AcceleratorError):
            device_lost.set()
        raise CellFailure(f"encoders: the model failed: {first_line(error)}") from error
