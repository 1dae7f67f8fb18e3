from __future__ import annotations

from typing import Any

from .model.vila_u_arch import VILAUMetaForCausalLM


def load(model_path: str, devices: Any = None, **kwargs: Any) -> Any:
    return VILAUMetaForCausalLM(model_path)
