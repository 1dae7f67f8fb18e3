"""HPSv3: Qwen2-VL reads an image and an instruction; layers above a special token give the score.

``quirk`` comments mark odd behaviour of the official program. A fix would change published numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from eval_models.encoders.encoder import Encoder, inference
from eval_models.encoders.weights import (
    below,
    cached,
    load_pretrained,
    load_state,
    load_tokenizer,
    loading,
)
from imageevalkit.assets.weights import WeightsSource
from imageevalkit.benchmark.question import PILLOW, Question
from imageevalkit.judges.api import fitted_size

if TYPE_CHECKING:
    import numpy as np
    import torch

FILE, TOKEN = "HPSv3.safetensors", "<|Reward|>"
_IMAGE = "<|image_pad|>"
# quirk: each image has about this area, so that small objects and texts disappear
_AREA, _MULTIPLE = 256 * 28 * 28, 28
_WIDTHS = (1024, 16, 2)


class _Models(NamedTuple):
    network: Any
    head: Any
    tokenizer: Any
    processor: Any


class _Pixels(NamedTuple):
    """The ``patches`` (patches, values) of an image, and their ``grid``: 1, rows, columns."""

    patches: np.ndarray
    grid: np.ndarray


class HPSv3(Encoder):
    """A question holds a picture and the whole instruction, with ``<|Reward|>``. The answer is the score, about
    0 to 11.

    The head gives a mean and a deviation; the score is the mean.
    """

    name = "hpsv3"
    weight_names = ("hpsv3", "qwen2_vl")
    official = True
    precision = "bfloat16 on a GPU, head in float32"
    pixels = PILLOW

    def load(self, questions: Sequence[Question]) -> _Models:
        source, base = self.sources.values()
        tokenizer = load_tokenizer(base)
        with loading(source):
            from safetensors.torch import load_file
            from torch import nn
            from transformers import AutoConfig, Qwen2VLImageProcessorPil

            path = cached(source, FILE)
            state, file = load_file(path), WeightsSource(str(path), None, {})
            tokenizer.add_tokens([TOKEN], special_tokens=True)
            config = AutoConfig.from_pretrained(base.model_path, revision=base.commit)
            config.text_config.vocab_size = len(tokenizer)
            first, second, last = _WIDTHS
            width = config.text_config.hidden_size
            head = nn.Sequential(
                *(nn.Linear(width, first), nn.ReLU(), nn.Dropout()),
                *(nn.Linear(first, second), nn.ReLU(), nn.Linear(second, last)),
            )
            load_state(
                head, {name: tensor.float() for name, tensor in below("rm_head.", state).items()}, file
            )
        body = {
            _renamed(name): tensor
            for name, tensor in state.items()
            if not name.startswith(("rm_head.", "lm_head."))
        }
        dtype = "bfloat16" if self.device.startswith("cuda") else "float32"
        network = load_pretrained(
            file, "Qwen2VLModel", dtype, self.device, "", config=config, state_dict=body
        )
        return _Models(network, head.to(self.device).eval(), tokenizer, Qwen2VLImageProcessorPil())

    def prepare(self, image: Image.Image) -> _Pixels:
        size = fitted_size(image.size, _MULTIPLE, (_AREA, _AREA))
        resized = image.resize(size, Image.Resampling.BICUBIC)
        found = self.models.processor(images=[resized], do_resize=False, return_tensors="np")
        return _Pixels(found["pixel_values"], found["image_grid_thw"])

    def forward(self, batch: list[_Pixels]) -> Sequence[torch.Tensor]:
        """Returns the embeddings of each image, (tokens, width)."""
        import torch

        patches, grids = (
            torch.cat([torch.from_numpy(one[n]) for one in batch]).to(self.device) for n in (0, 1)
        )
        features: Sequence[torch.Tensor] = self.models.network.get_image_features(
            patches, grids
        ).pooler_output
        return features

    def measure(self, question: Question, features: torch.Tensor) -> float:
        import torch

        network, head, tokenizer, _ = self.models
        message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question.text}]}
        text = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
        with inference("an image with its prompt"):
            before, after = (
                tokenizer(part, return_tensors="pt").input_ids[0].to(self.device)
                for part in text.split(_IMAGE, 1)
            )
            words = network.get_input_embeddings()
            rows = torch.cat([words(before), features, words(after)])
            # quirk: the tokens of the image have consecutive positions, not Qwen2-VL's positions in a grid
            places = torch.arange(len(rows), device=self.device).expand(3, 1, -1)
            states = network.language_model(inputs_embeds=rows[None], position_ids=places).last_hidden_state[
                0
            ]
            [*_, place] = (after == tokenizer.convert_tokens_to_ids(TOKEN)).nonzero()
            return float(head(states[len(before) + len(features) + place].float())[0, 0])


def _renamed(name: str) -> str:
    """Returns the name in transformers 5 of a tensor of Qwen2-VL in transformers 4.45 or 4.52."""
    name = re.sub(r"^(model\.)?visual\.", "visual.", name)
    return re.sub(r"^model\.(language_model\.)?", "language_model.", name)
