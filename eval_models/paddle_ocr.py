"""PaddleOCR 2.10 for English: reads the text in an image, as CVTG-2K's official program does."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eval_models.encoders.weights import ENCODERS, WEIGHTS, find, loading
from eval_models.ocr import PPOCR
from imageevalkit.assets.weights import WeightsSource, package_versions
from imageevalkit.benchmark.answerer import digest
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.images import decode
from imageevalkit.store.results import Evaluator

_WEIGHTS = "paddleocr_en"
_PACKAGES = ("paddleocr", "paddlepaddle", "numpy", "pillow")
# the other settings are the defaults of the package: PP-OCRv4, the longer side at most 960 pixels in the detector
_SETTINGS: dict[str, Any] = {"lang": "en", "use_angle_cls": True}
_PARTS = ("det", "rec", "cls")
_FILES = ("inference.pdmodel", "inference.pdiparams")


class PaddleOCR(PPOCR):
    """The detector en_PP-OCRv3, the recogniser en_PP-OCRv4 and the classifier of turned lines, on the CPU.

    ``weights`` maps "paddleocr_en" to another folder with the folders det, rec and cls.
    """

    def __init__(self, weights: Mapping[str, str] | None = None) -> None:
        self.weights = weights or {}

    @functools.cached_property
    def source(self) -> WeightsSource:
        """The weights. Raises CellFailure if a file is missing: the package would download another one."""
        source = find(_WEIGHTS, self.weights)
        names = [f"{part}/{file}" for part in _PARTS for file in _FILES]
        if absent := [name for name in names if not (Path(source.model_path) / name).is_file()]:
            raise CellFailure(
                f"evaluator paddleocr: {source.model_path} lacks {', '.join(absent)}; docs/benchmarks/cvtg2k.md has "
                "the commands to download them"
            )
        return source

    @functools.cached_property
    def evaluator(self) -> Evaluator:
        packages = package_versions(ENCODERS, _PACKAGES)
        identity = {"weights": self.source.identity, "settings": _SETTINGS}
        # nobody publishes the hashes of the weights: other weights must make another name
        name = f"paddleocr-{packages['paddleocr']}-en/{digest(identity)[:8]}"
        is_default = self.weights.get(_WEIGHTS, WEIGHTS[_WEIGHTS]) == WEIGHTS[_WEIGHTS]
        return Evaluator(name, is_default, {**identity, "packages": packages})

    def read(self, data: bytes) -> str:
        """Returns the lines of text in the image file ``data`` in the package's order; empty without text.

        Raises CorruptImage if ``data`` is no complete image.
        """
        decode(data)  # the package would read the rest of a damaged image without an error
        pages = self._engine.ocr(data, cls=True)
        return "\n".join(text for page in pages for _, (text, _) in page or ())

    @functools.cached_property
    def _engine(self) -> Any:
        folders = {f"{part}_model_dir": str(Path(self.source.model_path) / part) for part in _PARTS}
        with loading(self.source):
            import cv2
            from paddleocr import PaddleOCR as Engine

            cv2.setNumThreads(1)
            return Engine(**_SETTINGS, **folders, use_gpu=False, show_log=False)
