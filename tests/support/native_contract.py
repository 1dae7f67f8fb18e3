"""The contract of registered native models, tested on a tiny checkpoint of their pipeline's class.

``python -m tests.support.native_contract FOLDER TASK/MODEL…`` prints the findings as JSON, one line for each model: for
models that need packages which no other test may see.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image, ImageChops

from benchmarks.quickshapes.judge import objects_in
from custom_models.load_model import MODEL_SETTINGS, load_model
from custom_models.model_settings.own import CHECKPOINTS as SHAPES
from custom_models.model_utils.diffusers_models import DiffusersT2I
from imageevalkit.generate.model import Generated, ImageModel, ModelUnusable, Refused
from tests.support.attention import use_plain_attention
from tests.support.tiny_checkpoints import diffusers_others as others
from tests.support.tiny_checkpoints import flux, qwen_image, stable_diffusion, transformers_models

SIZE = (128, 64)
PHOTO = Image.linear_gradient("L").resize(SIZE).convert("RGB")
OTHER_PHOTO = Image.radial_gradient("L").resize(SIZE).convert("RGB")
LORA = Path(__file__).with_name("shapes_tiny_lora") / "pytorch_lora_weights.safetensors"
"""Trained by ``infer/training/shapes_tiny_lora.py``: all backgrounds are green."""
STEPS: dict[str, Any] = {"num_inference_steps": 12, "guidance_scale": 4.0}
DRAWN = {
    "a red star": ["red star"],
    "a blue ring": ["blue ring"],
    "two orange squares": ["orange square"] * 2,
}
"""Prompts for shapes-tiny, and the objects that they ask for."""
SHORT, LONG = "a red bus", "two black cats that dance on a table"


class Checkpoint(NamedTuple):
    """How the tiny checkpoint of a hub id is built, and what is set for it besides the small size.

    ``size`` is that of its images where the model decides it.
    """

    build: Callable[[Path], None]
    settings: Mapping[str, Any] = {}
    torchvision: bool = False
    size: tuple[int, int] = SIZE


# its text encoder has 3 layers; the pipelines' defaults ask for later ones
_LAYERS = {"text_encoder_out_layers": [1, 2, 3]}
# edit pipelines of Qwen-Image and FLUX.1 Kontext aim at 1024² pixels
_SMALL = {"width": SIZE[0], "height": SIZE[1]}
_KONTEXT = {"max_area": SIZE[0] * SIZE[1], "_auto_resize": False}

# the pipelines' defaults are 50 and 100 steps
_FEW_STEPS: dict[str, Any] = {"num_inference_steps": 2}
_QWEN_PLUS = Checkpoint(qwen_image.save_qwen_image_edit_plus, _SMALL, torchvision=True)
_JANUS = Checkpoint(transformers_models.save_janus, size=(8, 8))

CHECKPOINTS: dict[str, Checkpoint] = {
    # without the words that are read from the authors' repositories, here and for Emu3
    "Qwen/Qwen-Image": Checkpoint(qwen_image.save_qwen_image, {"prompt_suffix": ""}),
    "Qwen/Qwen-Image-2512": Checkpoint(qwen_image.save_qwen_image, {"negative_prompt": " "}),
    "Qwen/Qwen-Image-Edit-2509": _QWEN_PLUS,
    "Qwen/Qwen-Image-Edit-2511": _QWEN_PLUS,
    "black-forest-labs/FLUX.1-dev": Checkpoint(flux.save_flux),
    "black-forest-labs/FLUX.1-Kontext-dev": Checkpoint(flux.save_flux_kontext, _KONTEXT),
    "black-forest-labs/FLUX.2-klein-4B": Checkpoint(flux.save_flux2_klein, _LAYERS),
    "stabilityai/stable-diffusion-3.5-medium": Checkpoint(stable_diffusion.save_stable_diffusion_3),
    "PixArt-alpha/PixArt-Sigma-XL-2-1024-MS": Checkpoint(others.save_pixart_sigma),
    "Shitao/OmniGen-v1-diffusers": Checkpoint(others.save_omnigen, torchvision=True),
    "timbrooks/instruct-pix2pix": Checkpoint(stable_diffusion.save_instruct_pix2pix, _FEW_STEPS),
    # 512 × 512 pixels are 16 × 16 for its UNet
    "MudeHui/HQ-Edit": Checkpoint(
        functools.partial(stable_diffusion.save_instruct_pix2pix, vae_blocks=6), size=(512, 512)
    ),
    "deepseek-community/Janus-Pro-1B": _JANUS,
    "deepseek-community/Janus-Pro-7B": _JANUS,
    "BAAI/Emu3-Gen-hf": Checkpoint(
        transformers_models.save_emu3,
        {"image_area": SIZE[0] * SIZE[1], "ratio": "2:1", "prompt_suffix": "", "negative_prompt": ""},
    ),
}
"""One of each class of ours and of each family of pipelines."""


def tiny_model(task: str, name: str, folder: Path, **more: Any) -> Any:
    """The registered model, built from its entry with a tiny checkpoint below ``folder`` in place of its weights."""
    entry = MODEL_SETTINGS[task][name]
    checkpoint = CHECKPOINTS[entry["model_path"]]
    kwargs = {key: value for key, value in entry["model_kwargs"].items() if key != "revision"}
    small: dict[str, Any] = {"dtype": "float32", "device": "cpu", **checkpoint.settings}
    if "num_inference_steps" in kwargs:
        small["num_inference_steps"] = 2
    if "width" in kwargs:
        small |= _SMALL
    if "ip_adapter" in kwargs:
        adapter = built(folder, flux.save_flux_ip_adapter)
        small |= {"ip_adapter": str(adapter / "adapter"), "image_encoder": str(adapter / "encoder")}
        kwargs.pop("image_encoder_revision", None)
    path = str(built(folder, checkpoint.build))
    return load_model({**entry, "model_path": path, "model_kwargs": {**kwargs, **small, **more}})


_folders: dict[tuple[Path, Any], Path] = {}


def built(folder: Path, build: Callable[[Path], None]) -> Path:
    """Returns the folder that ``build`` saved; models of one class share it."""
    key = (folder, build)
    if key not in _folders:
        _folders[key] = folder / str(len(_folders))
        build(_folders[key])
    return _folders[key]


_findings: dict[str, dict[str, Any]] = {}


def findings(task: str, name: str, folder: Path) -> dict[str, Any]:
    """Returns sizes of images, and the largest difference of a channel (0..255) between images.

    Entries that differ in their weights alone are one model here.
    """
    entry = MODEL_SETTINGS[task][name]
    kwargs = {key: value for key, value in entry["model_kwargs"].items() if key != "revision"}
    same = repr((task, entry["module"], entry["class"], kwargs, CHECKPOINTS[entry["model_path"]]))
    if same not in _findings:
        _findings[same] = _tried(task, name, folder)
    return _findings[same]


def _tried(task: str, name: str, folder: Path) -> dict[str, Any]:
    model = tiny_model(task, name, folder)

    def image(text: str = SHORT, seed: int = 7, photo: Image.Image = PHOTO) -> Image.Image:
        shown = {"t2i": text, "edit": [photo, text], "subject": ["bus", photo, text]}[task]
        return image_of(model.generate(shown, seed))

    first = image()
    found = {
        "size": list(first.size),
        "wanted": list(CHECKPOINTS[MODEL_SETTINGS[task][name]["model_path"]].size),
        "mode": first.mode,
        "again": apart(first, image()),
        "other seed": apart(first, image(seed=8)),
        "other text": apart(first, image(LONG)),
    }
    if task != "t2i":
        found["other photo"] = apart(first, image(photo=OTHER_PHOTO))
    if type(model).generate_batch is not ImageModel.generate_batch:
        both = [result.image for result in model.generate_batch([SHORT, LONG], [7, 8])]
        found["batch"] = max(apart(both[0], first), apart(both[1], image(LONG, 8)))
    return found


def lora_findings(folder: Path) -> dict[str, Any]:
    """Returns the colours of backgrounds and the objects that shapes-tiny draws, by the way in which ``lora`` is set.

    The adapter makes backgrounds green. ``messages`` are about weights that fit no part of the model, and about a
    truncated file.
    """
    from safetensors.torch import load_file, save_file

    found: dict[str, Any] = {"messages": []}
    for name, lora, dtype in (
        ("none", None, "float32"),
        ("file", LORA, "float32"),
        ("folder", LORA.parent, "float32"),
        ("half", LORA, "bfloat16"),
    ):
        settings: dict[str, Any] = {"lora": str(lora)} if lora else {}
        model = DiffusersT2I(str(SHAPES / "late"), dtype=dtype, device="cpu", **STEPS, **settings)
        images = [image_of(one) for one in model.generate_batch([*DRAWN], range(len(DRAWN)))]
        found[name] = [
            (image.getpixel((1, 1)), [f"{one.colour} {one.shape}" for one in objects_in(image)])
            for image in images
        ]
    foreign, torn = folder / "lora-foreign.safetensors", folder / "lora-torn.safetensors"
    save_file({key.replace("unet", "decoder"): value for key, value in load_file(LORA).items()}, foreign)
    torn.write_bytes(LORA.read_bytes()[:100])
    for path in (foreign, torn):
        try:
            DiffusersT2I(str(SHAPES / "late"), lora=str(path), device="cpu")
        except ModelUnusable as error:
            found["messages"].append(str(error))
    return found


def image_of(result: Generated | Refused) -> Image.Image:
    """Returns the image of a result that has one."""
    assert isinstance(result, Generated)
    assert isinstance(result.image, Image.Image)
    return result.image


def apart(one: Image.Image, other: Image.Image) -> int:
    """The largest difference of a channel, 0..255."""
    extrema: Any = ImageChops.difference(one, other).getextrema()
    return max(high for _, high in extrema)


def _smaller(dimensions: Callable[[int, float], Any], area: int, ratio: float) -> Any:
    return dimensions(area // 64, ratio)


def main(folder: Path, keys: list[str]) -> None:
    """Print the findings about the models ``keys``, each TASK/MODEL, and about LoRA weights."""
    import torch
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus

    torch.set_num_threads(1)
    # whatever the size of its images, a pipeline reads photos at 1024² pixels: nearly all of the time
    for module in (pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus):
        module.calculate_dimensions = functools.partial(_smaller, module.calculate_dimensions)
    for key in keys:
        task, _, name = key.partition("/")
        print(json.dumps([key, findings(task, name, folder)]), flush=True)
    print(json.dumps(["lora", lora_findings(folder)]), flush=True)


if __name__ == "__main__":
    use_plain_attention()
    main(Path(sys.argv[1]), sys.argv[2:])
