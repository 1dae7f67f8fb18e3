"""Counts what really goes through vision towers, whoever calls them."""

from __future__ import annotations

from typing import Any


class VisionPasses:
    """While used as a context manager, counts the forward passes of every vision tower in the process."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> VisionPasses:
        from torch.nn.modules.module import register_module_forward_hook

        self._hook = register_module_forward_hook(self._saw)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def _saw(self, module: Any, *_: object) -> None:
        name = type(module).__name__
        self.count += "Vision" in name and name.endswith(("VisionModel", "VisionTransformerPretrainedModel"))
