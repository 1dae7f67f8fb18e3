"""DreamSim by its real package, at its real size with random weights; and the embeddings' form and distance."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from eval_models.encoders.dreamsim import DreamSimEncoder, distances, packed, read_embedding
from imageevalkit.common.errors import CellFailure
from tests.support.beside import run_beside
from tests.support.dreamsim_run import SIZES
from tests.support.oneig_scored import embedding_text

FILES = (
    "dino_vitb16_pretrain.pth",
    "clip_vitb16_pretrain.pth.tar",
    "open_clip_vitb16_pretrain.pth.tar",
    "ensemble_lora/adapter_config.json",
    "ensemble_lora/adapter_model.safetensors",
    "facebookresearch_dino_main/hubconf.py",
    "facebookresearch_dino_main/vision_transformer.py",
    "checkpoints/dino_vitbase16_pretrain.pth",
)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns the findings of :mod:`tests.support.dreamsim_run`; skips without the package beside the tests."""
    folder = tmp_path_factory.mktemp("dreamsim")
    done = run_beside("dreamsim_run", folder, packages=("dreamsim",))
    assert done.stderr == ""
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("{"))
    found: dict[str, Any] = json.loads(line)
    return found


def test_distances_of_batches_are_the_packages_of_single_pairs(said: Mapping[str, Any]) -> None:
    assert said["same_pixels"]
    embeddings = {item: read_embedding(text) for item, text in said["replies"]}
    assert sorted(embeddings) == [str(seed) for seed in range(len(SIZES))]
    for one, other, expected in said["distances"]:
        assert expected > 1e-3
        assert distances([embeddings[str(one)], embeddings[str(other)]])[0][1] == pytest.approx(
            expected, abs=2e-6
        )


def test_loading_leaves_the_folder_and_the_identity_as_they_were(said: Mapping[str, Any]) -> None:
    assert said["added"] == []
    assert said["identity"] == said["identity_after"]
    assert said["identity"]["packages"]["dreamsim"] == "0.2.1"
    assert all(said["identity"]["weights"].values())


def test_weights_that_peft_would_leave_random_are_found(said: Mapping[str, Any]) -> None:
    # of twelve blocks of three models
    assert len(said["lacking"]) == 36
    assert all(name.endswith("attn.qkv.lora_B.weight") for name in said["lacking"])


def test_what_is_missing_is_one_line_with_where_to_get_it(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    encoder = DreamSimEncoder({"dreamsim": str(tmp_path)})
    assert encoder.identity["weights"]["ensemble_lora"]
    if importlib.util.find_spec("dreamsim") is None:
        with pytest.raises(CellFailure, match=r"package dreamsim does not import .*make_env\.sh"):
            _ = encoder.evaluator
    weights = tmp_path / "ensemble_lora" / "adapter_model.safetensors"
    weights.rename(f"{weights}.part")  # half loaded
    with pytest.raises(CellFailure, match=r"ensemble_lora/adapter_model\.safetensors.*--ds_names oneig"):
        _ = DreamSimEncoder({"dreamsim": str(tmp_path)}).identity
    with pytest.raises(CellFailure, match=r"dreamsim_ensemble_checkpoint\.zip"):
        _ = DreamSimEncoder({"dreamsim": str(tmp_path / "nowhere")}).identity


def test_an_embedding_comes_back_as_the_float32_values_it_was() -> None:
    assert embedding_text([1.0, -2.5]) == '{"embedding": "AACAPwAAIMA="}'
    values = [0.1, -1e-30, 3e38]
    found = read_embedding(embedding_text(values))
    assert list(found) == pytest.approx(values, rel=1e-7)
    assert list(read_embedding(embedding_text(found))) == list(found)
    with pytest.raises(ValueError, match="not finite"):
        packed([0.1, math.nan])
    for text in ("", "{}", '{"embedding": "AAA="}'):
        with pytest.raises((ValueError, KeyError)):
            read_embedding(text)


def test_the_distance_is_one_less_the_cosine_whatever_the_lengths() -> None:
    assert distances([[1, 0], [0, 2]])[0] == [0, 1]
    assert distances([[3, 4], [6, 8]])[0][1] == pytest.approx(0, abs=1e-15)
    assert distances([[3, 4], [-3, -4]])[0][1] == 2
    assert distances([[1, 0], [1, 1]])[0][1] == pytest.approx(1 - 0.5**0.5)
