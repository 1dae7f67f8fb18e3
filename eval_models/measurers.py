"""The models that measure without a question in words, by the name that a benchmark or a user gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple


class MeasurerSetting(NamedTuple):
    """``module`` and ``class_name`` say where it is; a "reader" reads text, an "encoder" takes images to numbers, a
    "measurer" is a benchmark's own. ``weights`` are names in :mod:`eval_models.encoders.weights`.
    """

    module: str
    class_name: str
    kind: Literal["encoder", "reader", "measurer"]
    weights: Sequence[str] = ()


MEASURERS: dict[str, MeasurerSetting] = {
    "ppocr": MeasurerSetting("eval_models.ocr", "PPOCR", "reader"),
    "csd+se": MeasurerSetting("eval_models.encoders.style", "StyleEncoder", "encoder", ("csd", "se")),
    "dreamsim": MeasurerSetting("eval_models.encoders.dreamsim", "DreamSimEncoder", "encoder", ("dreamsim",)),
    "llm2clip": MeasurerSetting(
        "eval_models.encoders.llm2clip", "Llm2ClipEncoder", "encoder", ("llm2clip_vision", "llm2clip_text")
    ),
}
