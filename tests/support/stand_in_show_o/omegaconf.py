"""Stand-in for omegaconf, which the tests' environment lacks."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class OmegaConf:
    @staticmethod
    def load(file: Path) -> Any:
        return json.loads(file.read_text(), object_hook=lambda fields: SimpleNamespace(**fields))
