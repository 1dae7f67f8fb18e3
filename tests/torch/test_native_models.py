"""Every registered model of the environment ``diffusers``, on a tiny checkpoint of its pipeline's class."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from custom_models.load_model import MODEL_SETTINGS
from imageevalkit.generate.model import ItemFailed, ModelUnusable
from imageevalkit.plan.config import parse_kwargs
from imageevalkit.store.cell import REPO
from tests.support.beside import run_beside
from tests.support.native_contract import CHECKPOINTS, PHOTO, SHORT, built, findings, tiny_model

pytest.importorskip("diffusers")

_FIELDS = {"model_path", "module", "class", "model_kwargs", "gpus", "api", "patterns", "assets"}
MODULES = sorted({entry["module"] for models in MODEL_SETTINGS.values() for entry in models.values()})
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


@pytest.mark.parametrize("name", ["stable-diffusion-v1-5", "flux.1-dev"])
def test_lora_weights_change_the_image_or_are_a_line(
    name: str, found_with_torchvision: Mapping[str, Any]
) -> None:
    found = found_with_torchvision[f"lora {name}"]
    assert found["file"] == found["folder"] > 0
    assert found["bfloat16"] > 0
    foreign, torn = found["messages"]
    assert re.fullmatch(r"lora '.*-foreign.safetensors' has no weights for any part of \w+Pipeline", foreign)
    assert re.match(r"lora '.*-torn.safetensors' does not load: \w+: ", torn)
    assert "\n" not in foreign + torn


def test_lora_that_cannot_be_is_a_line_before_the_weights_are_read(folder: Path, tmp_path: Path) -> None:
    for name, lora, message in (
        ("pixart-sigma", str(tmp_path), "lora cannot be set: PixArtSigmaPipeline takes none"),
        ("flux.1-dev", "my/lora", "lora 'my/lora' is no absolute path of a file or folder that is there"),
        (
            "flux.1-dev",
            str(tmp_path / "lora"),
            "/lora' is no absolute path of a file or folder that is there",
        ),
    ):
        with pytest.raises(ModelUnusable) as error:
            tiny_model("t2i", name, folder, lora=lora)
        assert str(error.value).endswith(message)


# its AVAILABLE_Model at commit e43923c
_OF_TRIG = {
    *("onediffusion", "omnigen", "dalle3", "sdxl", "pixart_sigma", "sana", "sd35"),
    *("flux", "janus", "janus_flow", "sd15", "sd15_ddpo", "flux_ft", "instructp2p"),
    *("freediff", "flowedit", "hqedit", "rfinversion", "rfsolver", "blipdiffusion", "ssrencoder"),
    *("ominicontrol", "xflux", "altdiffusion", "mulan", "peadiffusion", "…_dtm", "…_dtm_dim"),
}


def rows_of_trig(document: str) -> list[list[str]]:
    """Returns the rows about its models: name there, then name here and settings, or the reason."""
    text = (REPO / document).read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return [row for row in rows if set(re.findall(r"`([^`]+)`", row[0])) <= _OF_TRIG]


@pytest.mark.parametrize("document", ["docs/benchmarks/trig.md", "docs/benchmarks/trig.zh.md"])
def test_each_model_of_trig_is_here_or_has_its_reason(document: str, folder: Path) -> None:
    rows = rows_of_trig(document)
    assert sorted(name for row in rows for name in re.findall(r"`([^`]+)`", row[0])) == sorted(_OF_TRIG)
    here = {name: (task, entry) for task, models in MODEL_SETTINGS.items() for name, entry in models.items()}
    tried = set()
    for _, names, *settings in (row for row in rows if len(row) == 3):
        for name in re.findall(r"`([\w.-]+)`", names):
            task, entry = here[name]
            for given in re.findall(r"`(\w+=[^`/]+)`", settings[0]):
                kwargs = parse_kwargs(given)
                assert all(entry["model_kwargs"].get(key) != value for key, value in kwargs.items()), name
                if not kwargs.keys() <= entry["model_kwargs"].keys() | {"generator_device"}:
                    tiny_model(task, name, folder, **kwargs)
                tried.add(name)
    assert tried >= {"stable-diffusion-3.5-large", "sana", "janusflow-1.3b", "flux-ip-adapter", "omnigen"}


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


@pytest.mark.parametrize("key", NATIVE)
def test_what_decides_pixels_stands_in_the_entry(key: str) -> None:
    dtype = NATIVE[key]["model_kwargs"]["dtype"]
    names = set(dtype.values()) if isinstance(dtype, dict) else {dtype}
    assert names <= {"bfloat16", "float16"}


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


def test_classes_import_nothing_heavy_before_they_are_built() -> None:
    heavy = "{'torch', 'diffusers', 'transformers'} & set(sys.modules)"
    code = "\n".join(f"import custom_models{one}; assert not {heavy}, '{one}'" for one in MODULES)
    environ = {**os.environ, "PYTHONPATH": f"{REPO}:{REPO / 'infer'}"}
    command = [sys.executable, "-c", f"import sys\n{code}"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_pipeline_that_mixes_images_of_a_batch_makes_none(folder: Path) -> None:
    with pytest.raises(ModelUnusable, match=r"^CogView4Pipeline makes no batches: it pads prompts"):
        tiny_model("t2i", "cogview4-6b", folder, batch_size=2)


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


def test_follow_input_gives_way_to_a_size_that_is_set(folder: Path) -> None:
    tall = PHOTO.resize((64, 128))
    follows = tiny_model("edit", "flux.1-kontext-dev", folder)
    assert follows.generate([tall, SHORT], 7).image.size == (64, 128)
    fixed = tiny_model("edit", "flux.1-kontext-dev", folder, width=128, height=64)
    assert fixed.generate([tall, SHORT], 7).image.size == (128, 64)
