"""Stand-in for transformers."""

from __future__ import annotations

from typing import Any


class AutoTokenizer:
    @staticmethod
    def from_pretrained(folder: str, **kwargs: Any) -> Any:
        return {"folder": folder, **kwargs}
