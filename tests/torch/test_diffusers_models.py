"""The generic diffusers classes on real pipelines with tiny random weights."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
def one_thread() -> Iterator[None]:
    """Threads that wait for each other cost such small tensors more than they compute."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


def test_what_the_model_is_and_runs_on_is_visible(sd: DiffusersT2I) -> None:
    assert (sd.model_name, sd.pipeline_class, sd.dtype) == ("sd", "StableDiffusionPipeline", "float32")
    assert sd.device in ("cuda", "mps", "cpu")


def test_size_is_honoured_and_recorded(pipelines: Path, sd: DiffusersT2I) -> None:
    model = DiffusersT2I(str(pipelines / "sd"), width=48, height=32, **FAST)
    assert image_of(model, "a red bus", 7).size == (48, 32)
    assert model.generate("a red bus", 7).requested_size == (48, 32)
    assert sd.generate("a red bus", 7).requested_size is None


@pytest.mark.parametrize(
    "settings",
    [
        {"guidance_scale": 1.5},
        {"negative_prompt": "blurry"},
        {"num_inference_steps": 3},
        {"dtype": "bfloat16"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_every_setting_reaches_the_pipeline(
    pipelines: Path, sd: DiffusersT2I, settings: dict[str, Any]
) -> None:
    assert differ(t2i(pipelines / "sd", **settings), image_of(sd, "a red bus", 7))


def test_none_keeps_the_default_of_the_pipeline(pipelines: Path, sd: DiffusersT2I) -> None:
    same = t2i(pipelines / "sd", guidance_scale=None, pipeline_class="StableDiffusionPipeline")
    assert not differ(same, image_of(sd, "a red bus", 7))


def test_safety_checker_refuses_instead_of_a_black_image(pipelines: Path, sd: DiffusersT2I) -> None:
    with pytest.raises(Refused, match="safety checker"):
        t2i(pipelines / "sd-prude")
    assert not differ(t2i(pipelines / "sd-checked"), image_of(sd, "a red bus", 7))


def test_second_pipeline_family_from_the_same_class(pipelines: Path) -> None:
    model = DiffusersT2I(str(pipelines / "klein"), width=32, height=32, **KLEIN)
    first = image_of(model, "a red bus", 7)
    assert first.size == (32, 32)
    assert not differ(first, image_of(model, "a red bus", 7))
    assert differ(first, image_of(model, "a red bus", 8))


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
        ({"data_type": "float32"}, "takes no argument 'data_type'"),
        ({"true_cfg_scale": 4}, "takes no argument 'true_cfg_scale'"),
        ({"num_images_per_prompt": 4}, "'num_images_per_prompt' cannot be set"),
        ({"dtype": "float23"}, "is not one of bfloat16, float16, float32 (did you mean 'float32'?)"),
        ({"device": "cuda:99"}, "device 'cuda:99' is not usable here"),
        ({"generator_device": "abacus"}, "device 'abacus' is not usable here"),
        ({"pipeline_class": "StableDifusionPipeline"}, "(did you mean 'StableDiffusionPipeline'?)"),
        ({"variant": "fp16"}, "does not load"),
    ],
)  # fmt: skip
def test_bad_setting_is_one_line(pipelines: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelUnusable) as error:
        DiffusersT2I(str(pipelines / "sd"), **settings)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_argument_that_a_pipeline_would_swallow_is_an_error(pipelines: Path) -> None:
    with pytest.raises(ModelUnusable, match="takes no argument 'height'"):
        DiffusersEdit(str(pipelines / "pix2pix"), height=512)


def test_missing_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelUnusable, match=r"^there is no folder /.*/nowhere; .*$"):
        DiffusersT2I(str(tmp_path / "nowhere"))


def test_damaged_folder_is_one_line(pipelines: Path, tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "NoSuchPipeline"}')
    with pytest.raises(ModelUnusable, match=r"needs NoSuchPipeline, which diffusers .*; upgrade diffusers"):
        DiffusersT2I(str(tmp_path))
    (tmp_path / "model_index.json").write_text('{"_class_name": ')
    with pytest.raises(ModelUnusable, match=r"does not load: .*$"):
        DiffusersT2I(str(tmp_path))


def test_hub_id_that_is_not_cached_is_one_line_offline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # what HF_HUB_OFFLINE=1 sets at import
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        ModelUnusable,
        match=r"^nobody/nothing is no local folder .* HF_HUB_OFFLINE=1 forbids .*prefetch.*$",
    ):
        DiffusersT2I("nobody/nothing")


def test_environment_without_torch_is_one_line(monkeypatch: pytest.MonkeyPatch, pipelines: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModelUnusable, match=r"^package torch is missing .*requirements/model/diffusers.txt$"):
        DiffusersT2I(str(pipelines / "sd"))


class RefusingHub(BaseHTTPRequestHandler):
    """Answers as the hub does for a repository it does not give out: gated by name, or unknown."""

    def do_HEAD(self) -> None:
        gated = "gated" in self.path
        self.send_response(403 if gated else 401)
        self.send_header("X-Error-Code", "GatedRepo" if gated else "RepoNotFound")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.parametrize(
    ("model_path", "message"),
    [
        (
            "somebody/gated",
            "somebody/gated is gated: accept its licence on the hub, set HF_TOKEN and run bash",
        ),
        ("somebody/wrong", "somebody/wrong is neither a local folder nor a hub repository"),
    ],
)
def test_repository_the_hub_does_not_give_out_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model_path: str, message: str
) -> None:
    from huggingface_hub import constants

    hub = ThreadingHTTPServer(("127.0.0.1", 0), RefusingHub)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{hub.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(ModelUnusable) as error:
        DiffusersT2I(model_path)
    hub.shutdown()
    hub.server_close()
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
