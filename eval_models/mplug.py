"""mPLUG, which answers DPG-Bench's questions, by ModelScope's own network in an environment of its own."""

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

# of ModelScope's MPlugPreprocessor, [CLS] and [SEP] among them: the end of a longer question is not read
_TOKENS = 25
# CLIP's text encoder, and its projection; places, which are counted
_UNUSED = r"visual_encoder\.((?!visual\.).*|visual\.proj)|.*\.position_ids"


class MPlug(Encoder):
    """Asked by a message of a picture and a question; an answer is a text as JSON, "yes" or another word or two.

    It computes what ModelScope's pipeline for visual question answering does, but the features of an image once for
    all questions about it. The pipeline also imports networks that this one does without, and for them fairseq and
    others that have to be compiled.
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
            # it tells at length what it does
            with contextlib.redirect_stdout(io.StringIO()):
                network = _network(source)
            network = network.to(self.device).eval()
            tower = network.visual_encoder.visual
            # to its forward() features are pixels then; it changes them in place
            del network.visual_encoder.visual
            network.visual_encoder.visual = lambda features, skip_last_layer: features.clone()
            return _Models(network, tower, network.config.image_res)

    def prepare(self, image: Image.Image) -> np.ndarray:
        """As a square, whatever its shape."""
        side = self.models.side
        return to_floats(image.resize((side, side), Image.Resampling.BICUBIC))

    def forward(self, batch: list[np.ndarray]) -> list[torch.Tensor]:
        """(patches + 1, width) of each image."""
        return list(self.models.tower(to_device(batch, self.device), skip_last_layer=True))

    def measure(self, question: Question, features: torch.Tensor) -> str:
        """The best of a beam search."""
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
    """The ``tower`` is the image encoder of the ``network``, and ``side`` that of its input in pixels."""

    network: Any
    tower: Any
    side: int


def _network(source: WeightsSource) -> Any:
    """With the weights of a folder in ModelScope's layout. Raises CellFailure: it does not hold all of them."""
    import torch
    from modelscope.models.multi_modal.mplug import CONFIG_NAME, MPlugConfig
    from modelscope.models.multi_modal.mplug.modeling_mplug import MPlugForVisualQuestionAnswering

    folder = Path(source.model_path)
    config = MPlugConfig.from_yaml_file(str(folder / CONFIG_NAME))
    config.model_dir = str(folder)
    config.distill = False  # a second copy of all, which is of use in training alone
    network = MPlugForVisualQuestionAnswering(config)
    state = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    for part in ("model", "module"):
        state = state.get(part, state)
    state = {name.replace("model.", ""): tensor for name, tensor in state.items()}
    absent = set(network.load_state_dict(state, strict=False).missing_keys)
    # of what has two names one is enough
    lacking = [name for name, _ in network.named_parameters() if name in absent]
    refuse_unfit(source, {"lacks": [name for name in lacking if not re.fullmatch(_UNUSED, name)]})
    return network
