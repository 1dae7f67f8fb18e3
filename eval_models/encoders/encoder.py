"""What encoders have in common: their name, their device, many images read in threads ahead of the model, and pixels.

torchvision's transforms for Pillow images and transformers' CLIPImageProcessor (the slow one of 4.50) both resize
with Pillow and round the longer side down; they differ in how they round the border of an odd centre crop.
Both are done here with Pillow and numpy, bit for bit, so that no version of either decides a score.
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
from imageevalkit.benchmark.answerer import Answerer, digest, without_packages
from imageevalkit.benchmark.question import TRANSFORMERS, Answer, PixelRule, Question
from imageevalkit.cell.results import Evaluator
from imageevalkit.errors import CellFailure, say
from imageevalkit.images import CorruptImage, map_threads
from imageevalkit.judges.api import open_picture
from imageevalkit.machine import available_cores
from imageevalkit.secrets import one_line

if TYPE_CHECKING:
    import numpy as np
    import torch

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
TORCH = ("torch", "transformers", "numpy", "pillow")
"""The packages of every encoder."""
# half of an odd border, at the left and top: to the nearest even number, or down
_ROUNDED: dict[str, Callable[[float], int]] = {"torchvision": round, "transformers": math.floor}


class Measurer(Answerer):
    """It answers with a JSON value; its name has a hash of all that decides the value but the packages' versions.

    ``weights`` are places by their names, over the defaults; ``weight_names`` says which there are.
    """

    name: ClassVar[str]
    weight_names: ClassVar[Sequence[str]] = ()
    packages: ClassVar[Sequence[str]] = ()
    """Those that compute the answer."""
    kind: ClassVar[str]
    """What it is called among the details of its evaluator."""
    official: ClassVar[bool] = False
    """Whether alone, with the weights of :data:`WEIGHTS`, it is the official evaluator of a benchmark.

    This is a part of every request: another value would measure anew what is on record.
    """

    @property
    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """All that decides what it answers but the packages: weights, precision; reference data, if any; no places."""

    def __init__(self, weights: Mapping[str, str] | None = None) -> None:
        self.weights = weights or {}

    @cached_property
    def sources(self) -> dict[str, WeightsSource]:
        """Its weights by their names. Raises CellFailure: they are not there."""
        return {name: find(name, self.weights) for name in self.weight_names}

    @cached_property
    def evaluator(self) -> Evaluator:
        # first: the rest needs them
        packages = package_versions(ENCODERS, self.packages)
        identity = {**self.identity, "packages": packages}
        name = f"{self.name}/{digest(without_packages(identity))[:8]}"
        has_others = any(self.weights.get(one, WEIGHTS[one]) != WEIGHTS[one] for one in self.weight_names)
        return Evaluator(name, self.official and not has_others, {self.kind: identity})


def why_no_number(error: Exception) -> str:
    """One line for what the disk, Pillow or another library raised: it costs an image, not the cell."""
    return f"unreadable image: {one_line(error)}" if isinstance(error, CorruptImage) else first_line(error)


class Encoder(Measurer):
    """One measurement by image encoders: the text of an answer is a JSON object of numbers.

    ``device`` is torch's word for one, by default the first GPU, else the CPU. ``batch_size`` counts images in one
    forward pass; it is halved where memory runs out. ``models`` are what :meth:`load` gives, while it answers.
    """

    kind = "encoder"
    packages: ClassVar[Sequence[str]] = TORCH
    precision: ClassVar[Any] = ""
    """Of its numbers, as a part of its name."""
    pixels: ClassVar[PixelRule] = TRANSFORMERS
    """How it decodes an image for which the benchmark has no rule of its own."""
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
        except Exception as error:  # torch raises what the device's backend does
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
        """The models for ``questions``. Raises CellFailure: the weights do not load."""

    @abstractmethod
    def prepare(self, image: Image.Image) -> Any:
        """What the models take of ``image`` (RGB); called in one of several threads."""

    @abstractmethod
    def forward(self, batch: list[Any]) -> Sequence[Any]:
        """The features of each of ``batch``; called in torch's inference mode."""

    @abstractmethod
    def measure(self, question: Question, features: Any) -> Any:
        """The answer, a JSON value, that ``features`` of the question's picture are.

        A number may be none: half precision overflows, weights are damaged. Where that cannot be seen in the value,
        it raises ValueError.
        """

    def autocast(self, **options: Any) -> torch.amp.autocast_mode.autocast:
        """torch's autocast for the kind of its device."""
        import torch

        return torch.amp.autocast(torch.device(self.device).type, **options)

    def holdup(self) -> str:
        return f"{self.name} loads and measures"  # minutes, and answers come a batch at a time

    def ask(self, questions: Sequence[Question], workers: int = 1) -> Iterator[Answer]:
        """Of the one picture of each question. The models are freed when the iterator ends.

        A batch that does not fit into memory is halved, and so are all later ones. A picture that several questions
        share is encoded once. Only the pictures of a few batches are in memory.
        """
        about: dict[Any, list[Question]] = {}
        for question in questions:
            (picture,) = question.pictures
            about.setdefault((picture.sha256, picture.encoding, picture.pixels), []).append(question)
        fit = self.batch_size  # as many as do, as far as is known
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
        """``groups`` in order, in batches: what the models take of the shared picture, or None and why there is none.

        Beside a GPU those of the next two are under way. A model on the CPU uses all cores: threads beside it would
        make its own wait for each other.
        """

        def inputs(group: Sequence[Question]) -> tuple[Sequence[Question], Any, str]:
            try:
                picture = group[0].pictures[0]
                image = open_picture(picture._replace(pixels=picture.pixels or self.pixels))
                return group, self.prepare(image), ""
            except Exception as error:
                return group, None, why_no_number(error)

        at_once = self.batch_size if self.device == "cpu" else len(groups)
        # more decode faster than any GPU encodes, and only hold memory
        threads = min(16, available_cores())
        for start in range(0, len(groups), at_once):
            prepared = map_threads(inputs, groups[start : start + at_once], threads, 2 * self.batch_size)
            while batch := list(islice(prepared, self.batch_size)):
                yield batch

    def _features(self, batch: list[Any]) -> Sequence[Any] | None:
        """None where memory ran out: when this returns, nothing of the failed pass is referred to any more."""
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
    """``image`` (RGB) as float32, (3, height, width): scaled to 0-1, less ``mean``, divided by ``std``.

    The quotient of float32 numbers is the same as transformers' product in float64 that is rounded to float32.
    """
    import numpy as np

    values = np.asarray(image, dtype=np.float32) / np.float32(255)
    values = (values - np.array(mean, dtype=np.float32)) / np.array(std, dtype=np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1))


def clip_pixels(image: Image.Image, size: int, *libraries: str) -> list[np.ndarray]:
    """What CLIP takes of ``image`` (RGB), prepared as by each of ``libraries``: float32, (3, size, size).

    The shorter side becomes ``size``, bicubic; the centre is cropped, and CLIP's normalisation applied.
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


@contextmanager
def inference(what: str) -> Iterator[None]:
    """A block in torch's inference mode, which needs memory for ``what``.

    Raises CellFailure: it does not fit into memory, or the model fails.
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
    except Exception as error:  # of the device, or of a model that its inputs do not fit
        raise CellFailure(f"encoders: the model failed: {first_line(error)}") from error
