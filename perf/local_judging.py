"""Judges and encoders that run here, against the plain way: one call of the model for each question or image.

Soft-TIFA: GenEval 2's questions to a tiny random Qwen3-VL in float32, one ``generate`` call for each as the official
script does, and the judge of the toolkit, which looks at an image once.

Encoders: two tasks of OneIG-Bench over the same PNGs of 768 pixels a side, four of each prompt. Style asks two encoders
about each image; diversity compares the six pairs of each prompt's images. The official way goes image by image: it
writes each as a JPEG to disk, and for every use opens that, prepares it and runs the model on it alone; for a pair it
does so with both. The toolkit decodes in threads, runs batches, and encodes each image once. The encoders are vision
transformers with random weights, small enough for two cores.

Both ways run on the same device over the same images in turns, so that only the way differs; their numbers must agree.
"""

from __future__ import annotations

import argparse
import itertools
import json
import operator
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from PIL import Image, ImageChops

from eval_models.encoders.encoder import Encoder, clip_pixels, to_device, to_floats
from eval_models.encoders.style import StyleEncoder, load_csd, style_vectors
from eval_models.encoders.weights import find
from imageevalkit import registry
from imageevalkit.benchmark.question import Encoding, Picture, Question
from imageevalkit.images import sha256_file
from imageevalkit.judges.choice import JudgeOptions
from imageevalkit.machine import available_cores
from perf.harness import Bar, Cost, Row, Table, WrongOption, at_least, at_most, run_program
from tests.support.image_questions import ask_about, atom_questions, read_prompts, save_image
from tests.support.plain_judge import PlainJudge
from tests.support.tiny_encoders import STYLES, save_csd, save_references, save_se
from tests.support.tiny_vlm import save_qwen3_vl
from tests.support.vision_passes import VisionPasses

_PHOTO, _PER_PROMPT, _TURNS, _BATCH = 768, 4, 5, 32
_ENCODER: dict[str, Any] = {"width": 256, "layers": 4, "patch": 32, "size": 224}
# Large enough for vision and text to dominate, as they do at real size, and small enough for two cores.
_JUDGE: dict[str, Any] = {
    "text": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4},
    "vision": {"hidden_size": 64, "intermediate_size": 192, "depth": 4},
}
_TIFA_BARS = {"CPU": at_least(6.0)}
_STYLE_BARS, _DIVERSITY_BARS = {"wall": at_least(1.2)}, {"wall": at_least(2.0)}
_PROBABILITIES_APART, _NUMBERS_APART = 5e-6, 1e-5

Work = Callable[[Sequence[Question]], Iterator[Sequence[float]]]
"""Does a task for questions: the numbers that it gives of each."""


class Way:
    """One way to do a task, with what it has cost so far and the numbers it gave."""

    def __init__(self, work: Work) -> None:
        self.cost, self.vision = Cost(), 0
        self.numbers: list[Sequence[float]] = []
        self._work = work

    def take_turn(self, questions: Sequence[Question]) -> None:
        """Do the task for ``questions``."""
        with VisionPasses() as vision, self.cost:
            self.numbers += self._work(questions)
        self.vision += vision.images


def compare(
    label: str,
    work: tuple[Work, Work],
    turns: Sequence[Sequence[Question]],
    images: int,
    bars: Mapping[str, Bar],
    apart: float,
) -> tuple[Way, Way, list[Row]]:
    """Do ``work``, the plain way and ours, over the same questions in turns: a machine that slows down slows both.

    The rows: how many times as fast ours is by the clock and by CPU, against ``bars`` of those, and how far apart the
    numbers of both are, as a share of ``apart``.
    """
    for each in work:
        list(each(turns[0][:_PER_PROMPT]))  # weights are loaded, uncounted
    plain, ours = map(Way, work)
    for asked in turns:
        plain.take_turn(asked)
        ours.take_turn(asked)
    figures = {
        f"{name} {kind}": f"{1e3 * seconds / images:.1f}"
        for name, cost in (("plain", plain.cost), ("ours", ours.cost))
        for kind, seconds in (("ms", cost.wall), ("CPU ms", cost.cpu))
    }
    ratios = {"wall": plain.cost.wall / ours.cost.wall, "CPU": plain.cost.cpu / ours.cost.cpu}
    others = max(plain.cost.others, ours.cost.others)
    rows = [
        Row(f"{label}: {kind} of the plain way / ours", ratio, bars.get(kind), figures, others=others)
        for kind, ratio in ratios.items()
    ]
    distance = max(
        abs(a - b)
        for mine, theirs in zip(ours.numbers, plain.numbers, strict=True)
        for a, b in zip(mine, theirs, strict=True)
    )
    words = f"  numbers differ by {distance:.1g}; share of {apart:g}"
    return plain, ours, [*rows, Row(words, distance / apart, at_most(1.0))]


def soft_tifa(folder: Path, count: int) -> list[Row]:
    """The questions about each of ``count`` images of 512 to 1024 pixels a side."""
    folder.mkdir()
    rng = random.Random(0)
    source, prompts = read_prompts(count)
    questions = []
    for n, prompt in enumerate(prompts):
        size = (rng.randrange(512, 1025, 64), rng.randrange(512, 1025, 64))
        questions.append(atom_questions(prompt, save_image(folder / f"{n:04d}.png", size, seed=n)))
    save_qwen3_vl(folder / "judge", **_JUDGE)
    official = PlainJudge(folder / "judge")
    options = JudgeOptions({"device_map": "cpu"})
    judge = registry.judge(f"transformers:{folder / 'judge'}", {}, options=options)

    def ask_judge(asked: Sequence[Question]) -> Iterator[Sequence[float]]:
        answers = {(answer.question.item, answer.question.name): answer for answer in judge.ask(asked)}
        for question in asked:
            answer = answers[question.item, question.name]
            if answer.probabilities is None:
                raise SystemExit(f"no reply: {answer.error}")
            yield [answer.probabilities[wanted] for wanted in question.choices]

    def ask_plain(asked: Sequence[Question]) -> Iterator[Sequence[float]]:
        for question in asked:
            probabilities = official.ask(question).probabilities
            yield [probabilities[wanted] for wanted in question.choices]

    turns = [[question for about in questions[turn::_TURNS] for question in about] for turn in range(_TURNS)]
    label = f"Soft-TIFA, {sum(map(len, questions))} questions ({source})"
    work = (ask_plain, ask_judge)
    plain, ours, rows = compare(label, work, turns, count, _TIFA_BARS, _PROBABILITIES_APART)
    passes = f"  vision passes / images (the plain way: {plain.vision})"
    return [*rows, Row(passes, ours.vision / count, at_most(1.0))]


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
            csd = self._vector(self._csd, *clip_pixels(_open(path), _ENCODER["size"], "torchvision"))
            se = self._vector(self._se, *clip_pixels(_open(path), _ENCODER["size"], "transformers"))
            (se @ self._references["se"][question.text].T).max().item()
            yield (csd @ self._references["csd"][question.text].T)[0].tolist()

    def diversity(self, questions: Sequence[Question]) -> Iterator[Sequence[float]]:
        """The distances of all pairs of images, of each prompt."""
        import torch

        for start in range(0, len(questions), _PER_PROMPT):
            paths = self._split(questions[start : start + _PER_PROMPT])
            distances = []
            for pair in itertools.combinations(paths, 2):
                vectors = [self._vector(self._csd, stretched(_open(path))) for path in pair]
                distances.append(1 - torch.nn.functional.cosine_similarity(*vectors).item())
            yield distances

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
    size = _ENCODER["size"]
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
        return {"csd": features.tolist()}


def vectors_of(encoder: Encoder, questions: Sequence[Question]) -> list[list[float]]:
    """What the encoder says of each question, from CSD."""
    answers = {answer.question.item: answer for answer in encoder.ask(questions)}
    return [json.loads(answers[question.item].text or "")["csd"] for question in questions]


def photo_questions(folder: Path, count: int) -> list[Question]:
    """One about each of ``count`` images of soft shapes with some grain, as photographs have."""
    grain = Image.effect_noise((_PHOTO, _PHOTO), 12).convert("RGB")

    def save(n: int) -> Picture:
        rng = random.Random(n)
        soft = Image.frombytes("RGB", (24, 24), rng.randbytes(1728)).resize((_PHOTO, _PHOTO))
        path = folder / f"{n:04d}.png"
        # quickly: it is not packing that is measured
        Image.blend(soft, ImageChops.offset(grain, n), 0.2).save(path, compress_level=1)
        return Picture(path, sha256_file(path), encoding=Encoding("JPEG"))

    with ThreadPoolExecutor(available_cores()) as threads:
        pictures = list(threads.map(save, range(count)))
    return [ask_about(picture, STYLES[n % len(STYLES)]) for n, picture in enumerate(pictures)]


def encoders(folder: Path, count: int) -> Iterator[Row]:
    """Both tasks over ``count`` images, both ways."""
    folder.mkdir()
    save_csd(folder / "checkpoint.pth", **_ENCODER)
    save_se(folder / "se", **_ENCODER)
    weights = {"csd": str(folder / "checkpoint.pth"), "se": str(folder / "se")}
    style = StyleEncoder(save_references(folder), weights=weights, batch_size=_BATCH)
    diversity = DiversityEncoder(weights, batch_size=_BATCH)
    official = Official(style, folder)

    def our_style(questions: Sequence[Question]) -> Iterator[Sequence[float]]:
        return iter(vectors_of(style, questions))

    def our_diversity(questions: Sequence[Question]) -> Iterator[Sequence[float]]:
        vectors = vectors_of(diversity, questions)
        for start in range(0, len(questions), _PER_PROMPT):
            pairs = itertools.combinations(vectors[start : start + _PER_PROMPT], 2)
            yield [1 - sum(map(operator.mul, first, second)) for first, second in pairs]

    questions = photo_questions(folder, count)
    per_turn = -(-count // _PER_PROMPT // _TURNS) * _PER_PROMPT  # whole prompts
    turns = [questions[start : start + per_turn] for start in range(0, count, per_turn)]
    for task, work, bars in (
        ("style", (official.style, our_style), _STYLE_BARS),
        ("diversity", (official.diversity, our_diversity), _DIVERSITY_BARS),
    ):
        label = f"{task}, {count} images on {style.device}"
        yield from compare(label, work, turns, count, bars, _NUMBERS_APART)[-1]


def main(options: argparse.Namespace, folder: Path) -> Table:
    if options.images < _PER_PROMPT or options.images % _PER_PROMPT:
        raise WrongOption(f"--images {options.images}: use a multiple of {_PER_PROMPT}")
    table = Table("milliseconds are of each image", *("plain ms", "plain CPU ms", "ours ms", "ours CPU ms"))
    table.add(*soft_tifa(folder / "judge", options.prompts))
    table.add(*encoders(folder / "encoders", options.images))
    return table


if __name__ == "__main__":
    run_program(
        __doc__,
        main,
        prompts=(50, "of Soft-TIFA, one image each"),
        images=(1000, "of the encoders"),
    )
