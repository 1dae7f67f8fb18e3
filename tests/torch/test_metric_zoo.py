"""The metrics of one image that any benchmark can name: beside plain calls of their libraries, and in a benchmark."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from eval_models.encoders.clip_metrics import AestheticPredictor, ClipScore
from eval_models.encoders.vqascore import Llava
from eval_models.image_metrics import NAKED, Niqe, NudeNet
from imageevalkit import registry
from imageevalkit.benchmark.answerer import Answerer
from imageevalkit.benchmark.contract import Answers, Benchmark, Measurer, Sample, Scores
from imageevalkit.benchmark.question import Message, Picture, Question, Sampling, measure
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.images import sha256_file
from imageevalkit.metrics import mean
from imageevalkit.store.items import Item
from imageevalkit.store.results import Metric, Score
from tests.support.beside import packages_beside
from tests.support.function_judge import evaluate, items
from tests.support.mirror import official_source
from tests.support.tiny_measurers import save_aesthetic, save_clip, save_llava, save_niqe

_SKIN = (224, 172, 140)
SIZES = ((300, 200), (64, 91), (96, 96))
CAPTION = "a red cup"
FIRST = 12.6908


@pytest.fixture
def nudenet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its package, which is beside the environment."""
    monkeypatch.syspath_prepend(packages_beside("nudenet"))


def noise(size: tuple[int, int], seed: int = 0) -> Image.Image:
    """Coloured spots."""
    small = Image.frombytes("RGB", (12, 12), random.Random(seed).randbytes(432))
    return small.resize(size, Image.Resampling.BICUBIC)


def torso(is_dressed: bool = False) -> Image.Image:
    """A body of a few ellipses, which the detector takes for one."""
    image = Image.new("RGB", (640, 640), (60, 60, 70))
    draw = ImageDraw.Draw(image)
    draw.rounded_rectangle((170, 120, 470, 640), 90, fill=(40, 60, 160) if is_dressed else _SKIN)
    for x in () if is_dressed else (245, 395):
        draw.ellipse((x - 75, 250, x + 75, 400), fill=(232, 180, 148), outline=(190, 135, 105), width=4)
        draw.ellipse((x - 20, 320, x + 20, 360), fill=(170, 95, 85))
    return image.filter(ImageFilter.GaussianBlur(5))


def pictures(folder: Path, *images: Image.Image) -> list[Picture]:
    made = images or [noise(size, n) for n, size in enumerate(SIZES)]
    found = []
    for n, image in enumerate(made):
        image.save(folder / f"{n}.png")
        found.append(Picture(folder / f"{n}.png", sha256_file(folder / f"{n}.png")))
    return found


def said(answerer: Answerer, questions: list[Question]) -> list[Any]:
    """Returns the answers in the order of ``questions``; for a failure its error."""
    answers = {(one.question.pictures, one.question.text): one for one in answerer.ask(questions, 2)}
    found = [answers[question.pictures, question.text] for question in questions]
    return [one.error if one.text is None else json.loads(one.text) for one in found]


# CLIP


def test_clipscore_is_the_cosine_with_the_prefixed_caption(tmp_path: Path) -> None:
    import torch
    from transformers import AutoTokenizer

    from eval_models.encoders.encoder import clip_pixels

    model = save_clip(tmp_path / "clip")
    tokens, encoder = (
        AutoTokenizer.from_pretrained(tmp_path / "clip"),
        ClipScore({"clip_vit_b_32": str(tmp_path / "clip")}, "cpu", 2),
    )
    # of the last CLIP sees the beginning
    captions = [CAPTION, "two dogs, one of them blue", "a very long caption " * 20]
    shown = pictures(tmp_path)
    asked = [measure("fit", picture, caption) for picture in shown for caption in captions]
    expected = []
    with torch.inference_mode():
        for question in asked:
            pixels = clip_pixels(Image.open(question.pictures[0].path), 32, "torchvision")[0]
            words = tokens(f"A photo depicts {question.text}", truncation=True, return_tensors="pt")
            output = model(words.input_ids, torch.from_numpy(pixels)[None])
            cosine = float(output.logits_per_image / model.logit_scale.exp())
            expected.append(2.5 * max(0.0, cosine))
    assert said(encoder, asked) == pytest.approx(expected, abs=1e-5)
    assert 0.0 in expected and len({*expected}) > 4, "some are opposed, others are not"


def test_the_aesthetic_predictor_is_linear_in_normalised_features(tmp_path: Path) -> None:
    import torch

    from eval_models.encoders.encoder import clip_pixels

    model, state = save_clip(tmp_path / "clip"), save_aesthetic(tmp_path / "head.pth")
    weights = {"clip_vit_l_14": str(tmp_path / "clip"), "aesthetic": str(tmp_path / "head.pth")}
    encoder, expected = AestheticPredictor(weights, "cpu"), []
    shown = pictures(tmp_path)
    with torch.inference_mode():
        for picture in shown:
            pixels = clip_pixels(Image.open(picture.path), 32, "torchvision")[0]
            vector = model.get_image_features(torch.from_numpy(pixels)[None]).pooler_output[0]
            vector /= vector.norm()
            for place in (0, 2, 4, 6, 7):
                vector = state[f"layers.{place}.weight"] @ vector + state[f"layers.{place}.bias"]
            expected.append(float(vector))
    assert said(encoder, [measure("beauty", picture) for picture in shown]) == pytest.approx(
        expected, abs=1e-4
    )
    assert len({round(value, 3) for value in expected}) == 3


@pytest.mark.parametrize("lacks", ["layers.4.weight", "layers.7.bias"])
def test_a_predictor_of_another_shape_is_refused(tmp_path: Path, lacks: str) -> None:
    import torch

    save_clip(tmp_path / "clip")
    state = save_aesthetic(tmp_path / "head.pth")
    torch.save({name: one for name, one in state.items() if name != lacks}, tmp_path / "head.pth")
    weights = {"clip_vit_l_14": str(tmp_path / "clip"), "aesthetic": str(tmp_path / "head.pth")}
    with pytest.raises(
        CellFailure, match=f"head.pth does not hold the weights of its model: it lacks {lacks}"
    ):
        said(AestheticPredictor(weights, "cpu"), [measure("beauty", *pictures(tmp_path)[:1])])


# VQAScore


@pytest.mark.parametrize("brings", [True, False])
def test_llavas_vqascore_is_the_probability_of_yes_and_the_end(tmp_path: Path, brings: bool) -> None:
    import torch
    from transformers import AutoTokenizer

    save_llava(tmp_path / "llava")
    encoder = Llava("" if brings else "A chat.", weights={"llava_13b": str(tmp_path / "llava")}, device="cpu")
    shown = pictures(tmp_path)
    system = [Message("system", ("A chat.",))] if brings else []
    asked = [
        Question("yes", (*system, Message("user", ("Is it a cup?", picture))), Sampling(0))
        for picture in shown
    ]
    answered = said(encoder, asked)
    encoder.models = encoder.load([])
    tokens, network = AutoTokenizer.from_pretrained(tmp_path / "llava"), encoder.models.network
    expected = []
    for picture in shown:
        pixels = torch.from_numpy(encoder.prepare(Image.open(picture.path)))[None]
        text = f"A chat. USER: {'<image>' * 16}\nIs it a cup? ASSISTANT: Yes<|endoftext|>"
        ids = tokens(text, return_tensors="pt").input_ids
        with torch.inference_mode(), torch.amp.autocast("cpu", dtype=torch.bfloat16):
            logits = network(input_ids=ids, pixel_values=pixels.bfloat16()).logits[0].float()
        # " Yes" are four tokens here, and the end
        chances = logits.log_softmax(-1)[torch.arange(-6, -1), ids[0, -5:]]
        expected.append(float(chances.mean().exp()))
    assert answered == pytest.approx(expected, rel=0.05)
    assert len({round(value, 4) for value in answered}) == 3


# NIQE


def test_niqe_is_that_of_the_official_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    source = official_source(
        "fesvhtr/TRIG", "e43923c30f7a64f742bc42d7bacc5ebd941412e2", "trig/metrics/niqe.py"
    )
    monkeypatch.chdir(tmp_path)
    Path("TRIG/trig/utils").mkdir(parents=True)
    save_niqe(Path("TRIG/trig/utils/niqe_pris_params.npz"))
    space: dict[str, Any] = {}
    exec(compile(source, "official", "exec"), space)
    ours = Niqe({"niqe": "TRIG/trig/utils/niqe_pris_params.npz"})
    for image in (grain((300, 200)), grain((400, 291), 4), grain((193, 96), 1)):
        theirs = space["calculate_niqe"](np.asarray(image)[:, :, ::-1], crop_border=0)
        assert ours.number(image) == pytest.approx(float(np.squeeze(theirs)), rel=1e-3)


def grain(size: tuple[int, int], seed: int = 0) -> Image.Image:
    """Fine noise over spots, in which a pixel is like its neighbours, each of them in another degree."""
    fine = Image.frombytes("RGB", size, random.Random(seed).randbytes(3 * size[0] * size[1]))
    for step, share in (((1, 1), 0.45), ((1, 0), 0.2)):
        fine = Image.blend(fine, ImageChops.offset(fine, *step), share)
    return Image.blend(noise(size, seed), fine, 0.3)


def test_niqe_of_small_and_flat_images_is_none_and_no_failure(tmp_path: Path) -> None:
    save_niqe(tmp_path / "niqe.npz")
    niqe = Niqe({"niqe": str(tmp_path / "niqe.npz")})
    shown = pictures(
        tmp_path, grain((300, 200)), Image.new("RGB", (300, 200), "red"), grain((191, 150)), grain((50, 900))
    )
    broken = shown[0]._replace(path=tmp_path / "broken.png", sha256="0" * 64)
    broken.path.write_bytes(shown[0].path.read_bytes()[:500])
    first, *none, why = said(niqe, [measure("natural", picture) for picture in (*shown, broken)])
    # what the official program says with the same statistics
    assert first == pytest.approx(FIRST, rel=1e-3)
    assert none == [None] * 3 and why.startswith("unreadable image")


def test_niqe_needs_its_statistics(tmp_path: Path) -> None:
    with pytest.raises(
        CellFailure, match=r"'niqe' are not at .*/gone; bash utils/prefetch.sh with the options"
    ):
        _ = Niqe({"niqe": str(tmp_path / "gone")}).evaluator
    (tmp_path / "other.npz").write_bytes(b"PK no arrays")
    with pytest.raises(CellFailure, match=r"other\.npz does not load"):
        said(Niqe({"niqe": str(tmp_path / "other.npz")}), [])


# NudeNet


def test_nudity_is_told_by_the_package(tmp_path: Path, nudenet: None) -> None:
    from nudenet import NudeDetector

    shown = pictures(tmp_path, torso(), torso(is_dressed=True), noise((500, 300)))
    found = NudeDetector().detect(str(shown[0].path))
    surest = max(one["score"] for one in found if one["class"] in NAKED)
    assert surest > 0.6 and {one["class"] for one in found} - {*NAKED}, "a belly does not count"
    assert said(NudeNet(), [measure("free", picture) for picture in shown]) == [
        pytest.approx(1 - surest, abs=1e-6),
        1.0,
        1.0,
    ]
    identity = NudeNet().evaluator.details["metric"]
    assert [*identity["weights_sha256"]] == ["320n.onnx"] and identity["packages"]["nudenet"] == "3.4.2"


def test_without_the_package_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nudenet", None)
    with pytest.raises(CellFailure) as error:
        said(NudeNet(), [])
    assert "make_env.sh --benchmark" in str(error.value) and "\n" not in str(error.value)


# in a benchmark


class Looks(Benchmark):
    """A user's benchmark: three images, four metric models."""

    name, version, headline = "looks", "1", ("free", "fit")
    unbounded = ("natural", "beauty")
    weights: Mapping[str, str] = {}

    @property
    def measurers(self) -> Mapping[str, Measurer]:
        options = {"weights": self.weights}
        return {
            "free": Measurer("nudenet"),
            "fit": Measurer("clipscore", options),
            "natural": Measurer("niqe", options),
            "beauty": Measurer("aesthetic_predictor", options),
        }

    def samples(self) -> Iterable[Sample]:
        return [Sample(f"images/{n}.png", f"{CAPTION} and {n}") for n in range(3)]

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        yield measure("fit", image, item.prompt or "")
        yield from (measure(name, image) for name in ("free", "natural", "beauty"))

    def score(self, item: Item, answers: Answers) -> Score:
        return Score({name: one.value for name, one in answers.items() if one.value is not None})

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        tops = {"free": 1.0, "fit": 2.5, "natural": 100.0, "beauty": 10.0}
        return {
            name: mean([one for one in scores if name in one.values], name, top=top)
            for name, top in tops.items()
        }


def test_any_benchmark_can_name_them(tmp_path: Path, nudenet: None) -> None:
    save_clip(tmp_path / "clip")
    save_aesthetic(tmp_path / "head.pth")
    save_niqe(tmp_path / "niqe.npz")
    clip = str(tmp_path / "clip")
    Looks.weights = {
        "clip_vit_b_32": clip,
        "clip_vit_l_14": clip,
        "aesthetic": str(tmp_path / "head.pth"),
        "niqe": str(tmp_path / "niqe.npz"),
    }
    benchmark = Looks()
    made = items(benchmark)
    for item, image in zip(
        made, (torso(), grain((300, 200)), Image.new("RGB", (300, 200), "red")), strict=True
    ):
        item.path.parent.mkdir(parents=True, exist_ok=True)
        image.save(item.path)
    outcome, result = evaluate(benchmark, made)
    assert outcome.state == "complete" and result.coverage.judged == 3
    assert 0.6 < result.metrics["free"].value < 0.8, "one of three is not"  # type: ignore[operator]
    assert result.metrics["natural"].n == 2, "of one colour there is none"
    assert result.evaluator.id.startswith("metrics/official/")
    assert result.evaluator.details["answerers"]["free"]["metric"]["classes"] == [*NAKED]


def test_where_they_run() -> None:
    places = {name: registry.measurer_setting(name).place for name in registry.measurer_names("metric")}
    assert places == {"clipscore": "gpu", "aesthetic_predictor": "gpu", "niqe": "driver", "nudenet": "cpu"}
    assert registry.measurer_setting("tests.torch.test_metric_zoo:Own").place == "driver"
