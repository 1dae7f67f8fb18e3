"""A training run without a framework: checkpoints that say how good they are, and a model that loads them."""

from __future__ import annotations

import json
from pathlib import Path

TRAINED = '''
import json
import time
from pathlib import Path
from PIL import Image


class Trained:
    """Draws as bright as its weights say; weights that are cut short do not load."""

    model_name = "trained"

    def __init__(self, model_path, seconds=0.0):
        data = (Path(model_path) / "model.safetensors").read_bytes()
        length = int.from_bytes(data[:8], "little")
        end = json.loads(data[8:8 + length])["level"]["data_offsets"][1]
        if len(data) != 8 + length + end:
            raise OSError("weights are cut short")
        self.level, self.seconds = data[-1], seconds

    def generate(self, prompt, seed=42):
        time.sleep(self.seconds)
        return Image.new("RGB", (32, 32), (self.level, seed % 256, 7))
'''
"""A class as the extension guide says; ``level`` is from 1 to 255."""


def weights(level: int, size: int = 4096) -> bytes:
    """A safetensors file whose one tensor ends in ``level``."""
    header = json.dumps({"level": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(size - 1) + bytes([level])


def begin_checkpoint(folder: Path) -> None:
    """Writes the first half of the checkpoint ``folder``, as a trainer does."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights(1)[:1000])


def end_checkpoint(folder: Path, level: int) -> None:
    """Write ``folder`` to its end."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights(level))
