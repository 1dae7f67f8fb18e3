"""shapes-tiny: its training goes on where it was interrupted; diffusers and onnxruntime make the same images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks.quickshapes.benchmark import QuickShapes
from benchmarks.quickshapes.judge import objects_in
from benchmarks.quickshapes.prompts import problem_of, request_of
from custom_models.model_settings.own import CHECKPOINTS
from custom_models.model_utils.diffusers_models import DiffusersT2I
from custom_models.model_utils.shapes_tiny import ShapesTiny, noise
from tests.support.function_judge import items
from tests.support.native_contract import apart, image_of

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
shapes_tiny: Any = pytest.importorskip("training.shapes_tiny")

LATE = str(CHECKPOINTS / "late")
SETTINGS: dict[str, Any] = {"num_inference_steps": 12, "guidance_scale": 4.0}
ITEMS = items(QuickShapes())[:12]
"""Two of each category."""
PROMPTS, SEEDS = [str(item.prompt) for item in ITEMS], [item.seed for item in ITEMS]
CONFIGURATION = Path(shapes_tiny.__file__).with_suffix(".json")


@pytest.fixture
def small() -> dict[str, Any]:
    """The shipped configuration, but a training of seconds."""
    found: dict[str, Any] = json.loads(CONFIGURATION.read_text(encoding="utf-8"))
    found["autoencoder"] |= {"channels": 8, "steps": 2, "batch": 2, "scenes": 4}
    found["unet"] |= {"block_out_channels": [16, 16], "attention_head_dim": 1}
    found["diffusion"] |= {"steps": 6, "batch": 4, "warmup": 2, "decay": 2}
    return found | {"scenes": 8}


def test_a_training_goes_on_as_if_nothing_had_happened(small: dict[str, Any], tmp_path: Path) -> None:
    log, cpu = shapes_tiny.Log(tmp_path / "log.jsonl"), torch.device("cpu")
    shapes_tiny.train_autoencoder(small, tmp_path, cpu, log)

    def losses(training: Any, steps: int) -> list[float]:
        return [training.one_step().item() for _ in range(steps)]

    whole = losses(shapes_tiny.Training(small, tmp_path, cpu, log), 5)
    first = shapes_tiny.Training(small, tmp_path, cpu, log)
    before = losses(first, 3)
    first.save()
    after = losses(shapes_tiny.Training(small, tmp_path, cpu, log), 2)
    assert before + after == pytest.approx(whole, rel=1e-4)
    assert whole[-1] != whole[0]


def test_both_routes_draw_the_same_noise() -> None:
    for seed in (0, 42, 2**31, 2**32 + 42):
        drawn = torch.randn((8, 12, 12), generator=torch.Generator().manual_seed(seed)).numpy()
        assert noise(seed, (8, 12, 12)) == pytest.approx(drawn, abs=1e-5)


@pytest.fixture(scope="module")
def onnx() -> ShapesTiny:
    return ShapesTiny(LATE, **SETTINGS)


@pytest.fixture(scope="module")
def plain(onnx: ShapesTiny) -> list[Image.Image]:
    """The images of the quick start."""
    return onnx.generate_batch(PROMPTS, SEEDS)


def diffusers_model(**settings: Any) -> DiffusersT2I:
    return DiffusersT2I(LATE, **{**SETTINGS, "device": "cpu", "dtype": "float32", **settings})


def batch(model: DiffusersT2I) -> list[Image.Image]:
    return [image_of(one) for one in model.generate_batch(PROMPTS, SEEDS)]


def right(images: Sequence[Image.Image]) -> int:
    """Returns the number of images that show what their prompts ask for. Of a word, only the colour counts."""
    pairs = zip(ITEMS, images, strict=True)
    return sum(not problem_of(request_of(item.data), objects_in(image)) for item, image in pairs)


def test_diffusers_and_onnxruntime_make_the_same_images(plain: list[Image.Image]) -> None:
    assert max(map(apart, batch(diffusers_model()), plain)) <= 2
    assert right(plain) >= 9


def test_an_image_is_the_same_in_a_batch_and_alone(onnx: ShapesTiny, plain: list[Image.Image]) -> None:
    model = diffusers_model(batch_size=8, negative_prompt="a red heart")
    images = [image_of(one) for one in model.generate_batch(PROMPTS[:8], SEEDS[:8])]
    for n in (0, 5, 7):
        assert apart(image_of(model.generate(PROMPTS[n], SEEDS[n])), images[n]) <= 2
        assert apart(onnx.generate(PROMPTS[n], SEEDS[n]), plain[n]) <= 2
        assert apart(images[n], plain[n]) > 2, "the negative prompt counts"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_draws_what_is_asked_for(dtype: str, plain: list[Image.Image]) -> None:
    images = batch(diffusers_model(dtype=dtype))
    assert max(map(apart, images, plain)) > 0, "it is another precision"
    assert right(images) >= right(plain) - 1


def test_a_seed_decides_where_things_are_and_the_prompt_what_they_are() -> None:
    model = diffusers_model()
    images = [image_of(model.generate("a red star", seed)) for seed in (7, 7, 8, 9)]
    assert images[0].tobytes() == images[1].tobytes()
    found = [objects_in(image) for image in images[1:]]
    assert [[(one.shape, one.colour) for one in each] for each in found] == [[("star", "red")]] * 3
    assert len({(round(one.x, 2), round(one.y, 2)) for (one,) in found}) == 3
