"""What OneIG-Bench's image encoders cost: ``python perf/encoder_scoring.py [--images 1000]`` (about four minutes on
two cores).

Two tasks over the same images, PNGs of 768 pixels a side, four of each prompt. Style asks two encoders about each
image; diversity compares the six pairs of each prompt's images. The official way goes image by image: it writes each
image as a JPEG to disk, and for every use opens that, prepares it and runs the model on it alone; for a pair it
does so with both images. The toolkit decodes in threads, runs batches, and encodes each image once.

The encoders are vision transformers with random weights, small enough for two cores: both ways run the same on the
same device (the first GPU, else the CPU), so that only the way differs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import operator
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from PIL import Image, ImageChops

from eval_models.encoders.encoder import Encoder, to_device
from eval_models.encoders.pixels import clip_pixels, to_floats
from eval_models.encoders.style import StyleEncoder, load_csd, style_vectors
from eval_models.encoders.weights import find
from imageevalkit.benchmark.question import Encoding, Picture, Question
from imageevalkit.images import sha256_file
from imageevalkit.machine import available_cores
from tests.support.image_questions import ask_about
from tests.support.tiny_encoders import STYLES, save_csd, save_references, save_se

_SIDE, _PER_PROMPT, _TURNS = 768, 4, 5
_SHAPE: dict[str, Any] = {"width": 256, "layers": 4, "patch": 32, "size": 224}
_LARGEST_DIFFERENCE = 1e-5  # of CSD's products and of the distances, both float32
_LIMITS = {"style": 1.2, "diversity": 2.0}


class Way:
    """One way to do a task, with the seconds it has taken so far and the numbers it gave."""

    def __init__(self, work: Callable[[Sequence[Question]], Iterator[Sequence[float]]]) -> None:
        self.wall = self.cpu = 0.0
        self.numbers: list[Sequence[float]] = []
        self._work = work

    def warm_up(self, questions: Sequence[Question]) -> None:
        """Do it once, uncounted."""
        list(self._work(questions))

    def take_turn(self, questions: Sequence[Question]) -> None:
        """Do the task for ``questions``."""
        wall, cpu = time.perf_counter(), time.process_time()
        self.numbers += self._work(questions)
        self.wall += time.perf_counter() - wall
        self.cpu += time.process_time() - cpu


class Official:
    """Image by image, as the official scripts, with the models and the preprocessing of the toolkit."""

    def __init__(self, encoder: StyleEncoder, folder: Path) -> None:
        self._device = encoder.device
        self._csd, self._se, self._references = encoder.load(())
        self._folder = folder

    def style(self, questions: Sequence[Question]) -> Iterator[Sequence[float]]:
        """The products of CSD, of each question."""
        for question in questions:
            (path,) = self._split([question])
            csd = self._vector(self._csd, *clip_pixels(_open(path), _SHAPE["size"], "torchvision"))
            se = self._vector(self._se, *clip_pixels(_open(path), _SHAPE["size"], "transformers"))
            (se @ self._references["se"][question.text].T).max().item()
            yield (csd @ self._references["csd"][question.text].T)[0].tolist()

    def diversity(self, questions: Sequence[Question]) -> Iterator[Sequence[float]]:
        """The distances of all pairs of images, of each prompt."""
        for start in range(0, len(questions), _PER_PROMPT):
            paths = self._split(questions[start : start + _PER_PROMPT])
            yield [1 - self._similarity(*pair) for pair in itertools.combinations(paths, 2)]

    def _similarity(self, first: Path, second: Path) -> float:
        import torch

        vectors = [self._vector(self._csd, stretched(_open(path))) for path in (first, second)]
        return float(torch.nn.functional.cosine_similarity(*vectors).item())

    def _split(self, questions: Sequence[Question]) -> list[Path]:
        paths = []
        for n, question in enumerate(questions):
            paths.append(self._folder / f"{n}.jpg")
            with Image.open(question.pictures[0].path) as image:
                image.save(paths[-1])
        return paths

    def _vector(self, encoder: Any, pixels: Any) -> Any:
        import torch

        with torch.no_grad():
            return style_vectors(encoder, to_device([pixels], self._device))


def _open(path: Path) -> Image.Image:
    return Image.open(path).convert("RGB")


def stretched(image: Image.Image) -> Any:
    """What the encoder of diversity takes."""
    size = _SHAPE["size"]
    return to_floats(image.resize((size, size), Image.Resampling.BICUBIC))


class DiversityEncoder(Encoder):
    """CSD in DreamSim's place."""

    name = "csd"

    @property
    def identity(self) -> dict[str, Any]:
        return {}

    def load(self, questions: Sequence[Question]) -> Any:
        return load_csd(find("csd", self.weights), self.device)

    def prepare(self, image: Image.Image) -> Any:
        return stretched(image)

    def forward(self, batch: list[Any]) -> Any:
        return style_vectors(self.models, to_device(batch, self.device)).cpu()

    def measure(self, question: Question, features: Any) -> dict[str, list[float]]:
        return {"vector": features.tolist()}


def answers_of(encoder: Encoder, questions: Sequence[Question]) -> list[dict[str, list[float]]]:
    """What the encoder says of each question."""
    answers = {answer.question.item: answer for answer in encoder.ask(questions)}
    texts = [answers[question.item].text for question in questions]
    return [json.loads(text or "") for text in texts]


def toolkit_style(encoder: Encoder, questions: Sequence[Question]) -> Iterator[Sequence[float]]:
    """The products of CSD, of each question."""
    return (answer["csd"] for answer in answers_of(encoder, questions))


def toolkit_diversity(encoder: Encoder, questions: Sequence[Question]) -> Iterator[Sequence[float]]:
    """The distances of all pairs of images, of each prompt."""
    vectors = [answer["vector"] for answer in answers_of(encoder, questions)]
    for start in range(0, len(questions), _PER_PROMPT):
        pairs = itertools.combinations(vectors[start : start + _PER_PROMPT], 2)
        yield [1 - sum(map(operator.mul, first, second)) for first, second in pairs]


def make_questions(folder: Path, count: int) -> list[Question]:
    """One about each of ``count`` images of soft shapes with some grain, as photographs have."""
    grain = Image.effect_noise((_SIDE, _SIDE), 12).convert("RGB")

    def save(n: int) -> Picture:
        rng = random.Random(n)
        soft = Image.frombytes("RGB", (24, 24), rng.randbytes(1728)).resize((_SIDE, _SIDE))
        path = folder / f"{n:04d}.png"
        # quickly: it is not packing that is measured
        Image.blend(soft, ImageChops.offset(grain, n), 0.2).save(path, compress_level=1)
        return Picture(path, sha256_file(path), encoding=Encoding("JPEG"))

    with ThreadPoolExecutor(available_cores()) as threads:
        pictures = list(threads.map(save, range(count)))
    return [ask_about(picture, STYLES[n % len(STYLES)]) for n, picture in enumerate(pictures)]


def measure(folder: Path, count: int, batch_size: int) -> list[str]:
    """Run both tasks both ways and print what they cost; the limits that are broken, in words."""
    save_csd(folder / "checkpoint.pth", **_SHAPE)
    save_se(folder / "se", **_SHAPE)
    references = save_references(folder)
    weights = {"csd": str(folder / "checkpoint.pth"), "se": str(folder / "se")}
    questions = make_questions(folder, count)
    encoder = StyleEncoder(references, weights=weights, batch_size=batch_size)
    diversity = DiversityEncoder(weights, batch_size=batch_size)
    official, device = Official(encoder, folder), encoder.device
    tasks = {
        "style": (Way(official.style), Way(lambda asked: toolkit_style(encoder, asked))),
        "diversity": (Way(official.diversity), Way(lambda asked: toolkit_diversity(diversity, asked))),
    }
    # whole prompts, both ways in turn: a machine that slows down slows both
    per_turn = -(-count // _PER_PROMPT // _TURNS) * _PER_PROMPT
    broken = []
    where = f"{device}, {available_cores()} cores"
    print(f"{count} PNGs of {_SIDE} × {_SIDE}, {where}, batches of {batch_size}")
    for task, (plain, ours) in tasks.items():
        for way in (plain, ours):
            way.warm_up(questions[:_PER_PROMPT])
        for start in range(0, count, per_turn):
            for way in (plain, ours):
                way.take_turn(questions[start : start + per_turn])
        for name, way in (("one by one", plain), ("toolkit", ours)):
            print(
                f"{task}, {name}: {1e3 * way.wall / count:.1f} ms and {1e3 * way.cpu / count:.1f} CPU ms per image"
            )
        apart = max(
            abs(a - b)
            for mine, theirs in zip(ours.numbers, plain.numbers, strict=True)
            for a, b in zip(mine, theirs, strict=True)
        )
        ratio = plain.wall / ours.wall
        print(
            f"{task}: {ratio:.1f} × faster, {plain.cpu / ours.cpu:.1f} × less CPU; numbers differ by {apart:.1g}"
        )
        if ratio < _LIMITS[task]:
            broken.append(f"{task}: {ratio:.1f} × faster < {_LIMITS[task]:g}")
        if apart > _LARGEST_DIFFERENCE:
            broken.append(f"{task}: numbers differ by {apart:.1g}")
    return broken


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=1000, help="a multiple of four (default: 1000)")
    parser.add_argument("--batch_size", type=int, default=32, help="images in one forward pass (default: 32)")
    options = parser.parse_args()
    if options.images < _PER_PROMPT or options.images % _PER_PROMPT:
        raise SystemExit("--images takes a multiple of four")
    with tempfile.TemporaryDirectory() as name:
        broken = measure(Path(name), options.images, options.batch_size)
    for words in broken:
        print(f"LIMIT BROKEN: {words}")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
