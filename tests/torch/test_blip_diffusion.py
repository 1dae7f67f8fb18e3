"""BLIP-Diffusion's real pipeline on a tiny checkpoint, in packages of its own list: others no longer load it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from custom_models.model_utils.diffusers_special import BlipDiffusion
from imageevalkit.generate.model import ModelUnusable
from tests.support.beside import run_beside


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns the findings on the registered model, with the packages of requirements/test_blip_diffusion.txt."""
    folder = tmp_path_factory.mktemp("blip-diffusion")
    packages = ("blip_diffusion",)
    done = run_beside("tiny_checkpoints.blip_diffusion", folder, packages=packages, HF_HUB_OFFLINE="1")
    return {**json.loads(done.stdout.splitlines()[-1]), "bert": str(folder / "bert")}


def test_everything_that_it_is_shown_decides_the_image(found: dict[str, Any]) -> None:
    assert found["size"] == [64, 64]
    assert found["again"] == 0
    for what in ("other name", "other photo", "other prompt", "other seed"):
        assert found[what] > 0, what


def test_real_q_former_has_the_tokenizer_of_the_entry(found: dict[str, Any]) -> None:
    assert found["tokenizer"] == [found["bert"], "[DEC]", "right"]


def test_q_former_is_asked_for_with_tokenizer_commit_and_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With real files and a real configuration, but without a class that the installed packages no longer run."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    (tmp_path / "bert").mkdir()
    transformers.Blip2Config().save_pretrained(tmp_path / "pipeline" / "qformer")
    asked: list[dict[str, Any]] = []

    def from_pretrained(path: str, config: Any, **arguments: Any) -> str:
        asked.append({"path": path, "tokenizer": config.tokenizer, **arguments})
        return "the Q-Former"

    module = SimpleNamespace(Blip2QFormerModel=SimpleNamespace(from_pretrained=from_pretrained))
    monkeypatch.setitem(sys.modules, "diffusers.pipelines.blip_diffusion.modeling_blip2", module)
    monkeypatch.setitem(sys.modules, "diffusers.pipelines.blip_diffusion", SimpleNamespace())
    model = BlipDiffusion.__new__(BlipDiffusion)
    model._model_path, model._bert = str(tmp_path / "pipeline"), (str(tmp_path / "bert"), None)
    model.revision = "0" * 40
    model.dtype = {"default": "float16", "qformer": "float32"}
    assert model._load_parts() == {"qformer": "the Q-Former"}
    assert asked == [
        {
            "path": str(tmp_path / "pipeline"),
            "subfolder": "qformer",
            "revision": "0" * 40,
            "torch_dtype": torch.float32,
            "tokenizer": str(tmp_path / "bert"),
        }
    ]


def test_environment_that_lacks_its_packages_is_told_of_its_own_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(ModelUnusable, match=r"requirements/model/blip-diffusion\.txt$"):
        BlipDiffusion("Salesforce/blipdiffusion", bert="google-bert/bert-base-uncased")
