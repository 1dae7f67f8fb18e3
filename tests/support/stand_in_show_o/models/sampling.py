from __future__ import annotations

from typing import Any


def get_mask_chedule(method: str, **schedule_kwargs: Any) -> Any:
    return f"the {method} schedule"
