"""PP-OCRv4 (Chinese and English, mobile) on the CPU: rapidocr-onnxruntime, weights from its wheel."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from imageevalkit.cell.results import Evaluator
from imageevalkit.errors import CellFailure
from imageevalkit.images import decode, on_white, sha256_file

if TYPE_CHECKING:
    import numpy as np

_PACKAGES = (
    "rapidocr-onnxruntime",
    "onnxruntime",
    "opencv-python",
    "opencv-python-headless",
    "numpy",
    "pillow",
)
# A change of settings moves scores, so it needs a new id as well.
_ID = "ppocr-v4"
_SETTINGS: dict[str, Any] = {
    "text_score": 0.5,
    # without it text turned by 90° or 180° is lost; 3 % of the time
    "use_cls": True,
    # RapidOCR's 0.9 turns 3.3 % of short upright words upside down, this 0.5 %; both find most turned lines
    "cls_thresh": 0.99,
    "det_limit_side_len": 736,
    "det_limit_type": "min",
    "max_side_len": 2000,
    # lines of one batch are padded to the widest: one by one takes half the time and reads slightly better
    "rec_batch_num": 1,
}
# Measured on 8 English texts in 3 typefaces, 3 sizes and 5 looks: recall is 0.57 without it and 0.98-0.99
# (precision 0.97-0.99) with any value of 0.002-0.01; below, words are cut to pieces.
_SPACE_PROBABILITY = 0.005
_REMEDY = "in the benchmark's environment run: pip install -r requirements/benchmark/t2i/longtext.txt"


class Box(NamedTuple):
    """A piece of text and its upright bounding box in pixels."""

    text: str
    left: float
    top: float
    bottom: float


class PPOCR:
    """The reader ``ppocr``. One onnxruntime thread: parallelism is processes (see ``parallel.py``)."""

    @functools.cached_property
    def evaluator(self) -> Evaluator:
        weights = sorted((_package_folder() / "models").glob("*.onnx"))
        return Evaluator(
            id=_ID,
            official=False,
            details={
                "packages": _installed_versions(),
                "weights_sha256": {path.name: sha256_file(path) for path in weights},
                "settings": {**_SETTINGS, "space_probability": _SPACE_PROBABILITY},
            },
        )

    def read(self, path: Path) -> str:
        """See :class:`eval_models.ocr.interface.TextReader`."""
        found, _ = self._engine(_bgr(decode(path.read_bytes())))
        boxes = []
        for corners, text, _ in found or []:
            ys = [y for _, y in corners]
            boxes.append(Box(text, min(x for x, _ in corners), min(ys), max(ys)))
        return "\n".join(lines(boxes))

    @functools.cached_property
    def _engine(self) -> Any:
        _package_folder()
        try:
            import cv2
            from rapidocr_onnxruntime import RapidOCR

            cv2.setNumThreads(1)
            engine = RapidOCR(intra_op_num_threads=1, inter_op_num_threads=1, **_SETTINGS)
        except Exception as error:  # a missing system library, a damaged weight file: no image can be read
            raise CellFailure(
                f"evaluator ppocr does not load ({type(error).__name__}: {error}); {_REMEDY}"
            ) from error
        engine.text_rec.postprocess_op = SpaceDecoder(engine.text_rec.postprocess_op)
        return engine


class SpaceDecoder:
    """CTC decoding that keeps the spaces between Latin words.

    The recogniser was trained on Chinese: at a gap between words its best guess is mostly "blank", with the
    space a distant second, and plain greedy decoding glues a whole line into one word. Inside words the
    space's probability is far lower still, so a small threshold tells the two apart. ``decode`` is
    RapidOCR's decoder (scores stay its own); the space is its last character, the blank its first.
    """

    def __init__(self, decode: Any) -> None:
        self._decode = decode

    def __call__(self, predictions: np.ndarray, *args: Any, **options: Any) -> list[tuple[str, float]]:
        """``predictions``: probabilities, shape (lines, columns, characters)."""
        plain = self._decode(predictions, *args, **options)
        blank = predictions.argmax(axis=2) == 0
        spaced = predictions.copy()
        spaced[blank & (predictions[..., -1] >= _SPACE_PROBABILITY), -1] = 2.0  # above any probability
        texts = self._decode(spaced, *args, **options)
        return [(text, score) for (text, *_), (_, score, *_) in zip(texts, plain, strict=True)]


def lines(boxes: list[Box]) -> list[str]:
    """Texts in reading order: boxes whose centre lies within a line's height are one line, left to right."""
    rows: list[list[Box]] = []
    for box in sorted(boxes, key=lambda box: box.top + box.bottom):
        centre = (box.top + box.bottom) / 2
        if rows and rows[-1][0].top <= centre <= rows[-1][0].bottom:
            rows[-1].append(box)
        else:
            rows.append([box])
    return [" ".join(box.text for box in sorted(row, key=lambda box: box.left)) for row in rows]


def _bgr(image: Image.Image) -> np.ndarray:
    """Pixels as (height, width, BGR), transparency on white (RapidOCR itself would invert colours)."""
    import numpy as np

    return np.asarray(on_white(image))[:, :, ::-1]


def _installed_versions() -> dict[str, str]:
    """Version of each package that has a part in the reading; of OpenCV's two only one is installed."""
    versions = {}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _package_folder() -> Path:
    """Where rapidocr-onnxruntime is installed. Raises CellFailure when it is not."""
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None or not spec.submodule_search_locations:
        raise CellFailure(f"evaluator ppocr needs the package rapidocr-onnxruntime; {_REMEDY}")
    return Path(spec.submodule_search_locations[0])
