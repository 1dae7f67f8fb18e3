"""The generic diffusers classes on real pipelines with tiny random weights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops

from custom_models.model_utils.diffusers_models import DiffusersEdit, DiffusersT2I
from imageevalkit.generate.model import ItemFailed, ModelUnusable, Refused
from tests.support.tiny_checkpoints.flux import save_flux2_klein
from tests.support.tiny_checkpoints.stable_diffusion import save_instruct_pix2pix, save_stable_diffusion

pytest.importorskip("diffusers")

FAST: dict[str, Any] = {"num_inference_steps": 2, "dtype": "float32"}
# its text encoder has 3 layers; the pipeline's default asks for the 27th
KLEIN: dict[str, Any] = {**FAST, "text_encoder_out_layers": [0, 1, 2], "max_sequence_length": 16}


@pytest.fixture(scope="module")
def pipelines(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipelines")
    save_stable_diffusion(folder / "sd")
    save_stable_diffusion(folder / "sd-prude", safety_checker_rejects=True)
    save_stable_diffusion(folder / "sd-checked", safety_checker_rejects=False)
    save_instruct_pix2pix(folder / "pix2pix")
    save_flux2_klein(folder / "klein")
    return folder


@pytest.fixture(scope="module")
def sd(pipelines: Path) -> DiffusersT2I:
    return DiffusersT2I(str(pipelines / "sd"), **FAST)


def differ(a: Image.Image, b: Image.Image) -> bool:
    return ImageChops.difference(a, b).getbbox() is not None


def image_of(model: DiffusersT2I | DiffusersEdit, inputs: Any, seed: int) -> Image.Image:
    image = model.generate(inputs, seed).image
    assert isinstance(image, Image.Image)
    return image


def t2i(path: Path, **settings: Any) -> Image.Image:
    return image_of(DiffusersT2I(str(path), **{**FAST, **settings}), "a red bus", 7)


def test_seed_decides_the_image(sd: DiffusersT2I) -> None:
    first = image_of(sd, "a red bus", 7)
    assert first.size == (64, 64)
    assert not differ(first, image_of(sd, "a red bus", 7))
    assert differ(first, image_of(sd, "a red bus", 8))
    assert differ(first, image_of(sd, "two cats", 7))


def test_size_is_honoured_and_recorded(pipelines: Path, sd: DiffusersT2I) -> None:
    model = DiffusersT2I(str(pipelines / "sd"), width=48, height=32, **FAST)
    assert image_of(model, "a red bus", 7).size == (48, 32)
    assert model.generate("a red bus", 7).requested_size == (48, 32)
    assert sd.generate("a red bus", 7).requested_size is None


@pytest.mark.parametrize("settings", [{"negative_prompt": "blurry"}, {"dtype": "bfloat16"}], ids=str)
def test_every_setting_reaches_the_pipeline(
    pipelines: Path, sd: DiffusersT2I, settings: dict[str, Any]
) -> None:
    assert differ(t2i(pipelines / "sd", **settings), image_of(sd, "a red bus", 7))


def test_safety_checker_refuses_instead_of_a_black_image(pipelines: Path, sd: DiffusersT2I) -> None:
    with pytest.raises(Refused, match="safety checker"):
        t2i(pipelines / "sd-prude")
    assert not differ(t2i(pipelines / "sd-checked"), image_of(sd, "a red bus", 7))


PHOTO = Image.linear_gradient("L").resize((80, 64)).convert("RGBA")
OTHER = Image.radial_gradient("L").resize((80, 64)).convert("RGB")


def test_edit_shows_the_image_and_the_joined_instruction(pipelines: Path) -> None:
    model = DiffusersEdit(str(pipelines / "pix2pix"), **FAST)
    first = image_of(model, ["make it", PHOTO, "blue"], 7)
    assert first.size == PHOTO.size
    assert not differ(first, image_of(model, [PHOTO, "make it blue"], 7))
    assert differ(first, image_of(model, [PHOTO, "make it red"], 7))
    assert differ(first, image_of(model, [OTHER, "make it blue"], 7))
    other = DiffusersEdit(str(pipelines / "pix2pix"), image_guidance_scale=4.0, **FAST)
    assert differ(first, image_of(other, [PHOTO, "make it blue"], 7))


def test_single_image_pipeline_fails_the_item_without_exactly_one_image(pipelines: Path) -> None:
    model = DiffusersEdit(str(pipelines / "pix2pix"), **FAST)
    with pytest.raises(ItemFailed, match="exactly one input image, the item has 2"):
        model.generate([PHOTO, OTHER, "merge"], 7)
    with pytest.raises(ItemFailed, match="the item has 0") as caught:
        model.generate(["draw"], 7)
    assert caught.value.attempts == 0, "nothing was tried"


def test_multi_image_pipeline_sees_every_image(pipelines: Path) -> None:
    model = DiffusersEdit(str(pipelines / "klein"), multi_image=True, **KLEIN)
    both = image_of(model, [PHOTO, OTHER, "merge"], 7)
    assert differ(both, image_of(model, [PHOTO, "merge"], 7))
    with pytest.raises(ItemFailed, match="at least one"):
        model.generate(["draw"], 7)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"guidence_scale": 4}, "takes no argument 'guidence_scale' (did you mean 'guidance_scale'?)"),
        ({"dtype": "float23"}, "is not one of bfloat16, float16, float32 (did you mean 'float32'?)"),
        ({"device": "cuda:99"}, "device 'cuda:99' is not usable here"),
        ({"pipeline_class": "StableDifusionPipeline"}, "(did you mean 'StableDiffusionPipeline'?)"),
    ],
)  # fmt: skip
def test_bad_setting_is_one_line(pipelines: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelUnusable) as error:
        DiffusersT2I(str(pipelines / "sd"), **settings)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_weights_that_are_not_to_be_had_are_one_line(
    monkeypatch: pytest.MonkeyPatch, pipelines: Path, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # what HF_HUB_OFFLINE=1 sets at import
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "model_index.json").write_text('{"_class_name": "NoSuchPipeline"}')
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn/model_index.json").write_text('{"_class_name": ')
    for path, said in (
        (tmp_path / "nowhere", r"^there is no folder /.*/nowhere; .*$"),
        (tmp_path, r"needs NoSuchPipeline, which diffusers .*; upgrade diffusers"),
        (tmp_path / "torn", r"does not load: .*$"),
        ("nobody/nothing", r"^nobody/nothing is no local folder .* HF_HUB_OFFLINE=1 forbids .*prefetch.*$"),
    ):
        with pytest.raises(ModelUnusable, match=said):
            DiffusersT2I(str(path))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModelUnusable, match=r"^package torch is missing .*requirements/model/diffusers.txt$"):
        DiffusersT2I(str(pipelines / "sd"))
