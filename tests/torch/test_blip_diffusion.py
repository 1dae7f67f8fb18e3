"""BLIP-Diffusion's real pipeline on a tiny checkpoint, in packages of its own list: others no longer load it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.beside import run_beside


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the registered model does, with the packages of requirements/test_blip_diffusion.txt."""
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
