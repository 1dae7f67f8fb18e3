"""Checkpoints of a training run without a framework."""

from __future__ import annotations

import json
from pathlib import Path


def weights(size: int = 4096) -> bytes:
    """A safetensors file with one tensor."""
    header = json.dumps({"level": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(size)


def begin_checkpoint(folder: Path) -> None:
    """Writes the first half of the checkpoint ``folder``, as a trainer does."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights()[:1000])


def end_checkpoint(folder: Path) -> None:
    """Write ``folder`` to its end."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights())
