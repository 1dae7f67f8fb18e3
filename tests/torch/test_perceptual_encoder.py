"""DreamSim by its real package, at its real size with random weights; and the embeddings' form and distance."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from eval_models.encoders.dreamsim import DreamSimEncoder, distances, packed, read_embedding
from imageevalkit.assets.weights import WeightsSource
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


def test_embeddings_are_of_mean_0_and_length_1_and_the_same_for_the_same_image(
    said: Mapping[str, Any],
) -> None:
    by_item: dict[str, set[str]] = {}
    for item, text in said["replies"]:
        by_item.setdefault(item, set()).add(text)
        values = read_embedding(text)
        assert math.fsum(value * value for value in values) == pytest.approx(1, abs=1e-6)
        assert math.fsum(values) == pytest.approx(0, abs=1e-5)
    assert len(said["replies"]) == len(SIZES) + 1
    assert all(len(texts) == 1 for texts in by_item.values())


def test_loading_leaves_the_folder_and_the_identity_as_they_were(said: Mapping[str, Any]) -> None:
    assert said["added"] == []
    assert said["identity"] == said["identity_after"]
    assert said["identity"]["packages"]["dreamsim"] == "0.2.1"
    assert all(said["identity"]["weights"].values())


def test_weights_that_peft_would_leave_random_are_found(said: Mapping[str, Any]) -> None:
    # of twelve blocks of three models
    assert len(said["lacking"]) == 36
    assert all(name.endswith("attn.qkv.lora_B.weight") for name in said["lacking"])


@pytest.mark.parametrize(
    "missing",
    [
        "clip_vitb16_pretrain.pth.tar",
        "ensemble_lora/adapter_model.safetensors",
        "facebookresearch_dino_main/hubconf.py",
        "checkpoints/dino_vitbase16_pretrain.pth",
    ],
)
def test_a_missing_file_is_one_line_with_where_to_get_it(tmp_path: Path, missing: str) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    encoder = DreamSimEncoder({"dreamsim": str(tmp_path)})
    assert encoder.identity["weights"]["ensemble_lora"]
    (tmp_path / missing).unlink()
    with pytest.raises(CellFailure) as failure:
        _ = DreamSimEncoder({"dreamsim": str(tmp_path)}).identity
    line = str(failure.value)
    assert missing in line and str(tmp_path) in line and "\n" not in line
    assert "bash utils/prefetch.sh --ds_names oneig" in line


def test_no_folder_at_all_is_one_line_with_where_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(CellFailure, match=r"dreamsim_ensemble_checkpoint\.zip"):
        _ = DreamSimEncoder({"dreamsim": str(tmp_path / "nowhere")}).identity


def test_a_half_loaded_file_is_not_the_adapters_weights_but_a_pickled_one_is(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    weights = tmp_path / "ensemble_lora" / "adapter_model.safetensors"
    torn = weights.rename(f"{weights}.part")
    both = r"lacks ensemble_lora/adapter_model\.safetensors or ensemble_lora/adapter_model\.bin;"
    with pytest.raises(CellFailure, match=both):
        _ = DreamSimEncoder({"dreamsim": str(tmp_path)}).identity
    torn.rename(weights.with_suffix(".bin"))
    assert DreamSimEncoder({"dreamsim": str(tmp_path)}).identity


def test_a_package_that_fails_on_import_does_not_blame_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dreamsim.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "dreamsim", raising=False)
    encoder = DreamSimEncoder(device="cpu")
    encoder.sources = {"dreamsim": WeightsSource("/weights", None, {})}
    with pytest.raises(CellFailure, match=r"dreamsim does not import here .*nms.*make_env\.sh") as failure:
        encoder.load([])
    assert "/weights" not in str(failure.value)


@pytest.mark.skipif(importlib.util.find_spec("dreamsim") is not None, reason="the package is installed here")
def test_a_missing_package_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CellFailure, match=r"package dreamsim does not import .*make_env\.sh"):
        _ = DreamSimEncoder({"dreamsim": str(tmp_path)}).evaluator


def test_an_embedding_comes_back_as_the_float32_values_it_was() -> None:
    assert embedding_text([1.0, -2.5]) == '{"embedding": "AACAPwAAIMA="}'
    values = [0.1, -1e-30, 3e38]
    found = read_embedding(embedding_text(values))
    assert list(found) == pytest.approx(values, rel=1e-7)
    assert list(read_embedding(embedding_text(found))) == list(found)
    with pytest.raises(ValueError, match="not finite"):
        packed([0.1, math.nan])


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"embedding": "%"}', '{"embedding": "AAA="}', '{"embedding": 1}']
)
def test_another_text_is_no_embedding(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        read_embedding(text)


def test_the_distance_is_one_less_the_cosine_whatever_the_lengths() -> None:
    assert distances([[1, 0], [0, 2]])[0] == [0, 1]
    assert distances([[3, 4], [6, 8]])[0][1] == pytest.approx(0, abs=1e-15)
    assert distances([[3, 4], [-3, -4]])[0][1] == 2
    assert distances([[1, 0], [1, 1]])[0][1] == pytest.approx(1 - 0.5**0.5)
