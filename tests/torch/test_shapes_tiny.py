"""shapes-tiny: its training goes on where it was interrupted, and its two routes draw the same noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from custom_models.model_utils.shapes_tiny import noise

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
shapes_tiny: Any = pytest.importorskip("training.shapes_tiny")

CONFIGURATION = Path(shapes_tiny.__file__).with_suffix(".json")


@pytest.fixture
def small() -> dict[str, Any]:
    """The shipped configuration, but a training of seconds."""
    found: dict[str, Any] = json.loads(CONFIGURATION.read_text(encoding="utf-8"))
    found["autoencoder"] |= {"channels": 8, "steps": 2, "batch": 2, "scenes": 4}
    found["unet"] |= {"block_out_channels": [16, 16], "attention_head_dim": 1}
    found["diffusion"] |= {"steps": 6, "batch": 4, "warmup": 2, "decay": 2}
    return found | {"scenes": 8}


def test_a_training_goes_on_as_if_nothing_had_happened(small: dict[str, Any], tmp_path: Path) -> None:
    log, cpu = shapes_tiny.Log(tmp_path / "log.jsonl"), torch.device("cpu")
    shapes_tiny.train_autoencoder(small, tmp_path, cpu, log)

    def losses(training: Any, steps: int) -> list[float]:
        return [training.one_step().item() for _ in range(steps)]

    whole = losses(shapes_tiny.Training(small, tmp_path, cpu, log), 5)
    first = shapes_tiny.Training(small, tmp_path, cpu, log)
    before = losses(first, 3)
    first.save()
    after = losses(shapes_tiny.Training(small, tmp_path, cpu, log), 2)
    assert before + after == pytest.approx(whole, rel=1e-4)
    assert whole[-1] != whole[0]


def test_both_routes_draw_the_same_noise() -> None:
    for seed in (0, 42, 137, 2**31):
        drawn = torch.randn((8, 12, 12), generator=torch.Generator().manual_seed(seed)).numpy()
        assert noise(seed, (8, 12, 12)) == pytest.approx(drawn, abs=1e-5)
