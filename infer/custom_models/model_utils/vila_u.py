"""VILA-U-7B with the authors' code. It generates residual image tokens in order, with classifier-free
guidance."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from PIL import Image

from custom_models.authors import AuthorsModel
from custom_models.model_utils.loading import levels_to_image
from imageevalkit.generate.model import ModelUnusable

_TRANSFORMERS = "4.36.2"
_REPLACED = (
    "transformers.generation.utils",
    "transformers.models.llama.modeling_llama",
    "transformers.models.llama.tokenization_llama",
)


@dataclass(kw_only=True, eq=False)
class VilaUT2I(AuthorsModel):
    """VILA-U-7B; vila-u-7b-256 generates images of 256 x 256 pixels. The authors' code always uses CUDA.

    ``cfg`` is w in ``unconditional + w * (conditional - unconditional)``, applied to logits.

    Source: mit-han-lab/vila-u@096623ce, inference.py (settings, order of the calls, bfloat16), and
    environment_setup.sh (the files that replace transformers' own).
    """

    code = "vila-u"

    cfg: float

    def load(self) -> None:
        replace_transformers_modules(self.repository / "vila_u/train/transformers_replace")
        import vila_u

        self._model: Any = vila_u.load(self.weights())

    def make(self, given: str, seed: int) -> Image.Image:
        """Returns one square image."""
        return levels_to_image(self._model.generate_image_content(given, self.cfg, 1)[0])


class _FindReplacement(MetaPathFinder):
    """An import finder that loads replaced modules of transformers from ``folder``, which has the same
    layout."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _REPLACED:
            return None
        file = self._folder.joinpath(*fullname.split(".")[1:]).with_suffix(".py")
        return importlib.util.spec_from_file_location(fullname, file)


def replace_transformers_modules(folder: Path) -> None:
    """Makes imports of some transformers modules load the authors' files in ``folder`` instead.

    The files fit one version of transformers. The authors' install script overwrites the installed files;
    this function leaves the environment unchanged.

    Raises ModelUnusable if transformers has another version, or if a replaced module is already imported.
    """
    import transformers

    if transformers.__version__ != _TRANSFORMERS:
        raise ModelUnusable(
            f"VILA-U's code is made for transformers {_TRANSFORMERS}, this environment has "
            f"{transformers.__version__}; name one in INFER_ENV_MAP that has requirements/model/vila-u.txt"
        )
    finder = _FindReplacement(folder)
    for name in _REPLACED:
        loaded = sys.modules.get(name)
        if loaded is not None and folder not in Path(str(loaded.__file__)).parents:
            raise ModelUnusable(
                f"{name} was imported before VILA-U could put its authors' version in its place"
            )
    sys.meta_path.insert(0, finder)
