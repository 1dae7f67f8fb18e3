"""Every registered model of the environment ``diffusers``, on a tiny checkpoint of its pipeline's class."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from custom_models.load_model import MODEL_SETTINGS
from imageevalkit.generate.model import ItemFailed
from imageevalkit.store.cell import REPO
from tests.support.beside import run_beside
from tests.support.native_contract import CHECKPOINTS, PHOTO, SHORT, built, findings, tiny_model

pytest.importorskip("diffusers")

_FIELDS = {"model_path", "module", "class", "model_kwargs", "gpus", "api", "patterns", "assets"}
# pipelines that let the images of a batch depend on each other
_NOT_IN_BATCHES = {"cogview4-6b", "omnigen"}


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


def needs_torchvision(key: str) -> bool:
    checkpoint = CHECKPOINTS.get(NATIVE[key]["model_path"])
    return checkpoint is not None and checkpoint.torchvision


WITH_TORCHVISION = [key for key in NATIVE if needs_torchvision(key)]


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


@pytest.mark.parametrize("key", [key for key in NATIVE if not needs_torchvision(key)])
def test_contract(key: str, folder: Path) -> None:
    task, _, name = key.partition("/")
    check(key, findings(task, name, folder))


@pytest.mark.parametrize("key", WITH_TORCHVISION)
def test_contract_with_torchvision(key: str, found_with_torchvision: Mapping[str, Any]) -> None:
    check(key, found_with_torchvision[key])


def test_lora_weights_change_the_image_or_are_a_line(found_with_torchvision: Mapping[str, Any]) -> None:
    found = found_with_torchvision["lora flux.1-dev"]
    assert found["file"] == found["folder"] > 0
    assert found["bfloat16"] > 0
    foreign, torn = found["messages"]
    assert re.fullmatch(r"lora '.*-foreign.safetensors' has no weights for any part of \w+Pipeline", foreign)
    assert re.match(r"lora '.*-torn.safetensors' does not load: \w+: ", torn)
    assert "\n" not in foreign + torn


def test_every_native_model_has_a_tiny_checkpoint() -> None:
    assert len(NATIVE) > 40
    assert {entry["model_path"] for entry in NATIVE.values()} == set(CHECKPOINTS)


@pytest.mark.parametrize(
    "key", [key for key, entry in NATIVE.items() if "patterns" in entry and not needs_torchvision(key)]
)
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
