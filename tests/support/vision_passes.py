"""Counts what really goes through vision towers, whoever calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class VisionPasses:
    """As a context manager, counts the images that go through any vision tower in the process, and its calls."""

    def __init__(self) -> None:
        self.images = 0
        self.calls = 0

    def __enter__(self) -> VisionPasses:
        from torch.nn.modules.module import register_module_forward_hook

        self._hook = register_module_forward_hook(self._saw, with_kwargs=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def _saw(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], _: Any) -> None:
        name = type(module).__name__
        if "Vision" in name and name.endswith(("VisionModel", "VisionTransformerPretrainedModel")):
            # in the Qwen family the pixels of all images are one long row
            per_image = kwargs.get("grid_thw", args[0] if args else kwargs.get("pixel_values"))
            self.images += len(per_image)
            self.calls += 1
