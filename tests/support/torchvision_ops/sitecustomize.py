"""Declares torchvision's compiled operators where its build does not load beside the installed torch.

PyPI's torchvision is compiled against the CUDA build of torch; beside the CPU build its library does not load, and
its Python part then fails to import for want of two operators' declarations. In that case they are declared here,
without a computation behind them: transforms and models work, calling such an operator fails.
This folder on PYTHONPATH does that for a whole process.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_DECLARATIONS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
# a declaration lasts as long as its library
_libraries: list[Any] = []


class _FindTorchvision(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname == "torchvision" else None
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Declaring(spec.loader)
        return spec


class _Declaring(Loader):
    """The loader of torchvision, with a second attempt."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        try:
            self._loader.exec_module(module)
        except RuntimeError as error:
            if "operator torchvision::" not in str(error):
                raise
            _declare()
            self._loader.exec_module(module)


def _declare() -> None:
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for declaration in _DECLARATIONS:
        library.define(declaration)
    _libraries.append(library)


sys.meta_path.insert(0, _FindTorchvision())
