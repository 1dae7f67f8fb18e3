"""mPLUG, the evaluator of DPG-Bench. It uses ModelScope's network and needs its own environment."""

from __future__ import annotations

import contextlib
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from eval_models.encoders.encoder import TORCH, Encoder, inference, to_device, to_floats
from eval_models.encoders.weights import loading, refuse_unfit
from imageevalkit.assets.weights import WeightsSource
from imageevalkit.benchmark.question import PILLOW, Question

if TYPE_CHECKING:
    import numpy as np
    import torch

# the limit of ModelScope's MPlugPreprocessor, with [CLS] and [SEP]; longer questions are truncated
_TOKENS = 25
# CLIP's text encoder with its projection, and position ids, which are computed
_UNUSED = r"visual_encoder\.((?!visual\.).*|visual\.proj)|.*\.position_ids"


class MPlug(Encoder):
    """A question holds a picture and a text. The answer is a JSON string: "yes", or another word or two.

    The result equals ModelScope's pipeline for visual question answering, but all questions about an image
    share its features. The pipeline itself imports unrelated networks that need compiled packages such as
    fairseq.
    """

    name = "mplug"
    weight_names = ("mplug",)
    packages = (*TORCH, "modelscope")
    official = True
    precision = "float32"
    pixels = PILLOW

    @property
    def identity(self) -> dict[str, Any]:
        return {**super().identity, "weights": self.sources["mplug"].identity}

    def load(self, questions: Sequence[Question]) -> _Models:
        source = self.sources["mplug"]
        with loading(source):
            # ModelScope prints long messages while it loads
            with contextlib.redirect_stdout(io.StringIO()):
                network = _network(source)
            network = network.to(self.device).eval()
            tower = network.visual_encoder.visual
            # forward() then gets features in place of pixels, and changes them in place: hence the clone
            del network.visual_encoder.visual
            network.visual_encoder.visual = lambda features, skip_last_layer: features.clone()
            return _Models(network, tower, network.config.image_res)

    def prepare(self, image: Image.Image) -> np.ndarray:
        """Returns the image as float32, resized to a square without regard to its aspect ratio."""
        side = self.models.side
        return to_floats(image.resize((side, side), Image.Resampling.BICUBIC))

    def forward(self, batch: list[np.ndarray]) -> list[torch.Tensor]:
        """Returns the features of each image, (patches + 1, width)."""
        return list(self.models.tower(to_device(batch, self.device), skip_last_layer=True))

    def measure(self, question: Question, features: torch.Tensor) -> str:
        """Returns the best answer of a beam search."""
        network = self.models.network
        tokens = network.tokenizer(
            question.text.lower(),
            padding="max_length",
            truncation=True,
            max_length=_TOKENS,
            return_tensors="pt",
        ).to(self.device)
        with inference("a question"):
            found, chances = network(features[None], tokens, train=False)
        if not math.isfinite(chances[0][0]):
            raise ValueError("an answer without a probability")
        return str(network.tokenizer.decode(found[0][0], skip_special_tokens=True))


class _Models(NamedTuple):
    """``tower`` is the image encoder of ``network``; ``side`` is the side of its input in pixels."""

    network: Any
    tower: Any
    side: int


def _network(source: WeightsSource) -> Any:
    """Returns the network with the weights of a folder in ModelScope's layout. Raises CellFailure if some are
    missing."""
    import torch
    from modelscope.models.multi_modal.mplug import CONFIG_NAME, MPlugConfig
    from modelscope.models.multi_modal.mplug.modeling_mplug import MPlugForVisualQuestionAnswering

    folder = Path(source.model_path)
    config = MPlugConfig.from_yaml_file(str(folder / CONFIG_NAME))
    config.model_dir = str(folder)
    config.distill = False  # distillation needs a second copy of the network, and only for training
    network = MPlugForVisualQuestionAnswering(config)
    state = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    for part in ("model", "module"):
        state = state.get(part, state)
    state = {name.replace("model.", ""): tensor for name, tensor in state.items()}
    absent = set(network.load_state_dict(state, strict=False).missing_keys)
    # named_parameters() lists a shared parameter once, so its second name does not count as missing
    lacking = [name for name, _ in network.named_parameters() if name in absent]
    refuse_unfit(source, {"lacks": [name for name in lacking if not re.fullmatch(_UNUSED, name)]})
    return network
