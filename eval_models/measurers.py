"""The evaluators other than judges, by the name that benchmarks and users give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple


class MeasurerSetting(NamedTuple):
    """Where to find an evaluator. ``weights`` are names in :mod:`eval_models.encoders.weights`.

    Kinds: a "reader" reads text, an "encoder" maps images to numbers, a "detector" finds objects. A
    "vqascore" returns the probability of a yes, a "vqa" answers in a word, a "preference" scores human
    preference. A "metric" is another number of one image, and a "measurer" belongs to a benchmark. ``place``
    is where it runs. "gpu" means on a GPU if there is one; "cpu" means in the environment of its benchmark;
    "driver" means in the driver's environment.
    """

    module: str
    class_name: str
    kind: Literal["encoder", "reader", "detector", "vqascore", "vqa", "preference", "metric", "measurer"]
    weights: Sequence[str] = ()
    place: Literal["gpu", "cpu", "driver"] = "gpu"


MEASURERS: dict[str, MeasurerSetting] = {
    "ppocr": MeasurerSetting("eval_models.ocr", "PPOCR", "reader", place="driver"),
    "paddleocr": MeasurerSetting(
        "eval_models.paddle_ocr", "PaddleOCR", "reader", ("paddleocr_en",), place="cpu"
    ),
    "csd+se": MeasurerSetting("eval_models.encoders.style", "StyleEncoder", "encoder", ("csd", "se")),
    "dreamsim": MeasurerSetting("eval_models.encoders.dreamsim", "DreamSimEncoder", "encoder", ("dreamsim",)),
    "llm2clip": MeasurerSetting(
        "eval_models.encoders.llm2clip", "Llm2ClipEncoder", "encoder", ("llm2clip_vision", "llm2clip_text")
    ),
    "mask2former-mmdet": MeasurerSetting(
        "eval_models.encoders.mask2former_mmdet",
        "MmdetMask2Former",
        "detector",
        ("mask2former_mmdet", "geneval_clip"),
    ),
    "mask2former": MeasurerSetting(
        "eval_models.encoders.mask2former", "Mask2Former", "detector", ("mask2former", "geneval_clip")
    ),
    "clip-flant5-xxl": MeasurerSetting(
        "eval_models.encoders.vqascore", "ClipFlanT5", "vqascore", ("clip_flant5_xxl", "clip_vit_l_336")
    ),
    "clip-flant5-xl": MeasurerSetting(
        "eval_models.encoders.vqascore", "ClipFlanT5XL", "vqascore", ("clip_flant5_xl", "clip_vit_l_336")
    ),
    "llava-v1.5-13b": MeasurerSetting("eval_models.encoders.vqascore", "Llava", "vqascore", ("llava_13b",)),
    "hpsv2": MeasurerSetting("eval_models.encoders.clip", "HPSv2Encoder", "preference", ("hpsv2",)),
    "mplug": MeasurerSetting("eval_models.mplug", "MPlug", "vqa", ("mplug",)),
    "clipscore": MeasurerSetting(
        "eval_models.encoders.clip_metrics", "ClipScore", "metric", ("clip_vit_b_32",)
    ),
    "clipscore-l14": MeasurerSetting(
        "eval_models.encoders.clip_metrics", "ClipScoreL14", "metric", ("clip_vit_l_14",)
    ),
    "pickscore": MeasurerSetting(
        "eval_models.encoders.clip_metrics", "PickScore", "metric", ("pickscore", "clip_vit_h_14")
    ),
    "imagereward": MeasurerSetting(
        "eval_models.encoders.imagereward", "ImageReward", "metric", ("imagereward", "bert")
    ),
    "hpsv3": MeasurerSetting("eval_models.encoders.hpsv3", "HPSv3", "metric", ("hpsv3", "qwen2_vl")),
    "aesthetic_predictor": MeasurerSetting(
        "eval_models.encoders.clip_metrics", "AestheticPredictor", "metric", ("aesthetic", "clip_vit_l_14")
    ),
    "aesthetic_predictor-v1": MeasurerSetting(
        "eval_models.encoders.clip_metrics", "LinearPredictor", "metric", ("aesthetic_v1", "clip_vit_l_14")
    ),
    "niqe": MeasurerSetting("eval_models.image_metrics", "Niqe", "metric", ("niqe",), place="driver"),
    "nudenet": MeasurerSetting("eval_models.image_metrics", "NudeNet", "metric", place="cpu"),
}
