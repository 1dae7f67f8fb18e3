"""GenEval's official evaluator: mmdetection's Mask2Former with its published weights, in transformers' network."""

from __future__ import annotations

from typing import Any, ClassVar

from eval_models.encoders.detector_check import check_detector
from eval_models.encoders.instances import Detected, Frame
from eval_models.encoders.mask2former import DETECTOR, NEEDLESS, Mask2Former
from eval_models.encoders.mmdet_weights import read_mmdet
from eval_models.encoders.weights import WEIGHTS, is_published, load_pretrained
from imageevalkit.assets.weights import WeightsSource
from imageevalkit.common.errors import CellFailure

_NAME = "mask2former_mmdet"


class MmdetMask2Former(Mask2Former):
    """As :class:`Mask2Former`, with a file of mmdetection 2.x as the weights of the detector.

    The convolutions run without TF32, so all GPUs compute alike.
    """

    name = "mask2former-mmdet"
    weight_names = (_NAME, "geneval_clip")
    official = True
    precision: ClassVar = {"objects": "float32 without TF32", "colors": "float16 on a GPU"}

    _is_checked = False

    def load_detector(self, source: WeightsSource) -> Any:
        """Loads the detector, and checks it once on drawn pictures (:func:`check_detector`).

        Raises CellFailure if the weights do not load, if the default file is not the published one, or if the
        check fails.
        """
        is_official = is_published(_NAME, source)
        if not is_official and self.weights.get(_NAME, WEIGHTS[_NAME]) == WEIGHTS[_NAME]:
            raise CellFailure(
                f"encoders: {source.model_path} is not the file that OpenMMLab has published: its hash differs; "
                "remove it and run bash eval.sh prefetch with the options of this run"
            )
        arguments = read_mmdet(source, self.classes)
        network = load_pretrained(
            source, DETECTOR, "float32", self.device, unused="", needless=NEEDLESS, **arguments
        )
        if not self._is_checked:
            with _without_tf32():
                check_detector(network, self.classes, self.device, is_official=is_official)
            self._is_checked = True
        return network

    def forward(self, batch: list[Frame]) -> list[tuple[Frame, dict[str, list[Detected]] | None]]:
        with _without_tf32():
            return super().forward(batch)


def _without_tf32() -> Any:
    import torch

    return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
