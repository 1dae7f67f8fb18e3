"""The models that measure without a question in words, by the name that a benchmark or a user gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple


class MeasurerSetting(NamedTuple):
    """``module`` and ``class_name`` say where it is. ``weights`` are names in :mod:`eval_models.encoders.weights`.

    A "reader" reads text, an "encoder" takes images to numbers, a "detector" finds objects, a "vqascore" says how
    probable a yes is, a "vqa" answers in a word, a "preference" is a score of people's taste; a "measurer" is a
    benchmark's own.
    """

    module: str
    class_name: str
    kind: Literal["encoder", "reader", "detector", "vqascore", "vqa", "preference", "measurer"]
    weights: Sequence[str] = ()


MEASURERS: dict[str, MeasurerSetting] = {
    "ppocr": MeasurerSetting("eval_models.ocr", "PPOCR", "reader"),
    "csd+se": MeasurerSetting("eval_models.encoders.style", "StyleEncoder", "encoder", ("csd", "se")),
    "dreamsim": MeasurerSetting("eval_models.encoders.dreamsim", "DreamSimEncoder", "encoder", ("dreamsim",)),
    "llm2clip": MeasurerSetting(
        "eval_models.encoders.llm2clip", "Llm2ClipEncoder", "encoder", ("llm2clip_vision", "llm2clip_text")
    ),
    "mask2former": MeasurerSetting(
        "eval_models.encoders.mask2former", "Mask2Former", "detector", ("mask2former", "geneval_clip")
    ),
    "clip-flant5-xxl": MeasurerSetting(
        "eval_models.encoders.clip_flant5", "ClipFlanT5", "vqascore", ("clip_flant5_xxl", "clip_vit_l_336")
    ),
    "clip-flant5-xl": MeasurerSetting(
        "eval_models.encoders.clip_flant5", "ClipFlanT5XL", "vqascore", ("clip_flant5_xl", "clip_vit_l_336")
    ),
    "hpsv2": MeasurerSetting("eval_models.encoders.hpsv2", "HPSv2Encoder", "preference", ("hpsv2",)),
    "mplug": MeasurerSetting("eval_models.mplug", "MPlug", "vqa", ("mplug",)),
}
