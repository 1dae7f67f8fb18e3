"""The generic diffusers classes and their options: on shapes-tiny, and on pipelines with tiny random weights."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from custom_models.model_settings.own import CHECKPOINTS
from custom_models.model_utils.diffusers_models import DiffusersEdit, DiffusersT2I, part_dtype
from imageevalkit.generate.model import ItemFailed, ModelUnusable, Refused
from tests.support.native_contract import apart, image_of
from tests.support.tiny_checkpoints.diffusers_others import save_pixart_sigma
from tests.support.tiny_checkpoints.flux import save_flux, save_flux2_klein
from tests.support.tiny_checkpoints.stable_diffusion import save_instruct_pix2pix, save_with_checker

pytest.importorskip("diffusers")

LATE = CHECKPOINTS / "late"
FAST: dict[str, Any] = {"num_inference_steps": 2, "dtype": "float32", "device": "cpu"}
# its text encoder has 3 layers; the pipeline's default asks for the 27th
KLEIN: dict[str, Any] = {**FAST, "text_encoder_out_layers": [0, 1, 2], "max_sequence_length": 16}


@pytest.fixture(scope="module")
def pipelines(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipelines")
    for name, rejects in (("prude", True), ("checked", False)):
        save_with_checker(LATE, folder / name, rejects)
    save_instruct_pix2pix(folder / "pix2pix")
    save_flux2_klein(folder / "klein")
    save_flux(folder / "flux")
    save_pixart_sigma(folder / "sigma")
    return folder


@pytest.fixture
def usual_attention() -> Iterator[None]:
    """diffusers keeps the last backend for all models of the process."""
    yield
    from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

    _AttentionBackendRegistry.set_active_backend(AttentionBackendName.NATIVE)


def t2i(path: Path, prompt: str = "a red bus", **settings: Any) -> Image.Image:
    return image_of(DiffusersT2I(str(path), **{**FAST, **settings}).generate(prompt, 7))


def test_size_is_honoured_and_recorded() -> None:
    made = DiffusersT2I(str(LATE), width=48, height=32, **FAST).generate("a red bus", 7)
    assert image_of(made).size == made.requested_size == (48, 32)
    assert DiffusersT2I(str(LATE), **FAST).generate("a red bus", 7).requested_size is None


def test_the_size_that_a_benchmark_asks_for_replaces_that_of_the_settings() -> None:
    model = DiffusersT2I(str(LATE), width=48, height=32, batch_size=2, **FAST)
    assert model.takes_size
    alone = model.generate("a red bus", 7, (32, 64))
    assert image_of(alone).size == alone.requested_size == (32, 64)
    assert [image_of(one).size for one in model.generate_batch(["a", "b"], [7, 8], (32, 64))] == [
        (32, 64)
    ] * 2


def test_safety_checker_refuses_instead_of_a_black_image(pipelines: Path) -> None:
    with pytest.raises(Refused, match="safety checker"):
        t2i(pipelines / "prude")
    assert not apart(t2i(pipelines / "checked"), t2i(LATE))
    assert not apart(t2i(pipelines / "prude", safety_checker=False), t2i(LATE))


PHOTO = Image.linear_gradient("L").resize((80, 64)).convert("RGBA")
OTHER = Image.radial_gradient("L").resize((80, 64)).convert("RGB")


def test_edit_shows_the_image_and_the_joined_instruction(pipelines: Path) -> None:
    model = DiffusersEdit(str(pipelines / "pix2pix"), **FAST)
    first = image_of(model.generate(["make it", PHOTO, "blue"], 7))
    assert first.size == PHOTO.size
    assert not apart(first, image_of(model.generate([PHOTO, "make it blue"], 7)))
    assert apart(first, image_of(model.generate([PHOTO, "make it red"], 7)))
    assert apart(first, image_of(model.generate([OTHER, "make it blue"], 7)))
    other = DiffusersEdit(str(pipelines / "pix2pix"), image_guidance_scale=4.0, **FAST)
    assert apart(first, image_of(other.generate([PHOTO, "make it blue"], 7)))


def test_single_image_pipeline_fails_the_item_without_exactly_one_image(pipelines: Path) -> None:
    model = DiffusersEdit(str(pipelines / "pix2pix"), **FAST)
    with pytest.raises(ItemFailed, match="exactly one input image, the item has 2"):
        model.generate([PHOTO, OTHER, "merge"], 7)
    with pytest.raises(ItemFailed, match="the item has 0") as caught:
        model.generate(["draw"], 7)
    assert caught.value.attempts == 0, "nothing was tried"


def test_multi_image_pipeline_sees_every_image(pipelines: Path) -> None:
    model = DiffusersEdit(str(pipelines / "klein"), multi_image=True, **KLEIN)
    both = image_of(model.generate([PHOTO, OTHER, "merge"], 7))
    assert apart(both, image_of(model.generate([PHOTO, "merge"], 7)))
    with pytest.raises(ItemFailed, match="at least one"):
        model.generate(["draw"], 7)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"guidence_scale": 4}, "takes no argument 'guidence_scale' (did you mean 'guidance_scale'?)"),
        ({"dtype": "float23"}, "is not one of bfloat16, float16, float32 (did you mean 'float32'?)"),
        ({"device": "cuda:99"}, "device 'cuda:99' is not usable here"),
        ({"pipeline_class": "StableDifusionPipeline"}, "(did you mean 'StableDiffusionPipeline'?)"),
        ({"batch_size": 0}, "batch_size must be a whole number from 1, not 0"),
        ({"scheduler": "EulerScheduler"}, "scheduler 'EulerScheduler' is not in diffusers"),
        ({"offload": "model"}, "offload=model moves weights between CPU and GPU, and the device is the CPU"),
        ({"attention": "flash"}, "UNet2DConditionModel takes no attention backend but xformers"),
    ],
)  # fmt: skip
def test_bad_setting_is_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelUnusable) as error:
        DiffusersT2I(str(LATE), **{**FAST, **settings})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_weights_that_are_not_to_be_had_are_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
        DiffusersT2I(str(LATE))


def test_the_denoiser_of_a_trainers_checkpoint_takes_the_place_of_the_pipelines(tmp_path: Path) -> None:
    bare = t2i(LATE)
    assert t2i(LATE, denoiser=str(LATE)).tobytes() == bare.tobytes()
    assert t2i(LATE, denoiser=str(CHECKPOINTS / "early")).tobytes() != bare.tobytes()
    with pytest.raises(
        ModelUnusable, match="is no absolute path of a folder with unet/ for StableDiffusionPipeline"
    ):
        t2i(LATE, denoiser=str(tmp_path))
    shutil.copytree(LATE / "unet", tmp_path / "checkpoint-500/unet")
    (tmp_path / "checkpoint-500/unet/diffusion_pytorch_model.safetensors").write_bytes(b"half")
    with pytest.raises(ModelUnusable, match="checkpoint-500/unet does not load"):
        t2i(LATE, denoiser=str(tmp_path / "checkpoint-500"))


def test_refusals_of_a_batch_stand_in_their_places(pipelines: Path) -> None:
    model = DiffusersT2I(str(pipelines / "prude"), batch_size=2, **FAST)
    answers = model.generate_batch(["a red bus", "two cats"], [7, 7])
    assert len(answers) == 2
    assert all(isinstance(answer, Refused) for answer in answers)


def test_scheduler_keeps_the_configuration_and_changes_the_image(pipelines: Path) -> None:
    model = DiffusersEdit(str(pipelines / "pix2pix"), scheduler="EulerAncestralDiscreteScheduler", **FAST)
    scheduler = model._pipeline.scheduler
    assert type(scheduler).__name__ == "EulerAncestralDiscreteScheduler"
    assert scheduler.config.steps_offset == 1
    usual = DiffusersEdit(str(pipelines / "pix2pix"), **FAST)
    assert apart(*(image_of(m.generate([PHOTO, "blue"], 7)) for m in (model, usual))) > 0


@pytest.mark.usefixtures("usual_attention")
def test_options_for_memory_and_speed_leave_the_image(pipelines: Path) -> None:
    size: dict[str, Any] = {"width": 32, "height": 32}
    usual = t2i(pipelines / "flux", **size)
    other = t2i(pipelines / "flux", **size, vae_slicing=True, vae_tiling=True, attention="_native_math")
    assert apart(other, usual) <= 1


def test_offload_takes_the_place_of_the_entrys_device_map(
    pipelines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """diffusers offloads no pipeline that has a device map; no weights can be moved to "meta" and back."""
    import diffusers

    seen: list[tuple[Any, str]] = []

    def offload(self: Any, device: str) -> None:
        seen.append((self.hf_device_map, device))

    monkeypatch.setattr(diffusers.DiffusionPipeline, "enable_model_cpu_offload", offload)
    settings = {**FAST, "device": "meta", "device_map": "cpu", "offload": "model"}
    model = DiffusersT2I(str(pipelines / "flux"), **settings)
    assert seen == [(None, "meta")]
    assert model._pipeline.device.type == "cpu", "offloading moves the parts itself"


def test_errors_of_the_accelerator_are_no_reason_why_a_model_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import diffusers

    error = "CUDA out of memory. Attempt to allocate 2 GiB"

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError(error)

    monkeypatch.setattr(diffusers.DiffusionPipeline, "to", fail)
    with pytest.raises(RuntimeError, match=error):
        DiffusersT2I(str(LATE), **FAST)


def test_a_part_has_its_own_type_or_that_of_all_others() -> None:
    import torch

    types = {"default": "bfloat16", "image_encoder": "float16"}
    assert part_dtype(types, "image_encoder") == torch.float16
    assert part_dtype(types, "qformer") == torch.bfloat16
    assert part_dtype({"vae": "float16"}, "qformer") == torch.float32
    assert part_dtype("float16", "qformer") == torch.float16


def test_compile_is_asked_for_the_denoiser() -> None:
    model = DiffusersT2I(str(LATE), compile=True, **FAST)
    denoiser = model._pipeline.unet
    # torch compiles at the first call, which takes longer than all other tests of this file
    assert any(module._compiled_call_impl is not None for module in denoiser.modules())
    assert all(module._compiled_call_impl is None for module in model._pipeline.vae.modules())


def test_captions_are_not_silently_left_uncleaned(pipelines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ftfy" else find(name))
    with pytest.raises(ModelUnusable, match=r"cleans captions with the package ftfy, .*clean_caption=false$"):
        DiffusersT2I(str(pipelines / "sigma"), **FAST)
    DiffusersT2I(str(pipelines / "sigma"), clean_caption=False, **FAST)
