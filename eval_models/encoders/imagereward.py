"""ImageReward: BLIP's text encoder looks at the image, and linear layers turn its first token into a reward.

The network is transformers' BLIP with the tensors of the authors' checkpoint. The package image-reward needs
a transformers of 2023.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from eval_models.encoders.clip_metrics import linear_layers, tell_full
from eval_models.encoders.encoder import Encoder, clip_pixels, inference, to_device
from eval_models.encoders.weights import below, cached, load_state, load_tokenizer, loading
from imageevalkit.assets.weights import WeightsSource
from imageevalkit.benchmark.question import PILLOW, Question

if TYPE_CHECKING:
    import numpy as np
    import torch

FILE, CONFIG = "ImageReward.pt", "med_config.json"
TOKENS = 35
"""Longer prompts are truncated. [CLS] and [SEP] count."""
_MEAN, _STD = 0.16717362830052426, 1.0333394966054072
_HEAD_WIDTH = 64
# the names of BLIP's image encoder in transformers
_RENAMED = (
    (r"cls_token", "embeddings.class_embedding"),
    (r"pos_embed", "embeddings.position_embedding"),
    (r"patch_embed\.proj", "embeddings.patch_embedding"),
    (r"blocks\.", "encoder.layers."),
    (r"\.norm(\d)", r".layer_norm\1"),
    (r"\.attn\.qkv", ".self_attn.qkv"),
    (r"\.attn\.proj", ".self_attn.projection"),
    (r"^norm\.", "post_layernorm."),
)


class _Models(NamedTuple):
    """``tokens`` are the tokens of each prompt."""

    vision: Any
    text: Any
    head: Any
    tokens: Mapping[str, Any]


class ImageReward(Encoder):
    """A question holds a picture and its prompt. The answer is the reward, about -2.3 to 2."""

    name = "imagereward"
    weight_names = ("imagereward", "bert")
    official = True
    precision = "float32"
    pixels = PILLOW

    def load(self, questions: Sequence[Question]) -> _Models:
        source, words = self.sources.values()
        with loading(source):
            import torch

            path = cached(source, FILE)
            state = torch.load(path, map_location="cpu", weights_only=True)
            settings = json.loads(cached(source, CONFIG).read_text(encoding="utf-8"))
            file = WeightsSource(str(path), None, {})
            vision, text = blip(state, settings, file)
            head = linear_layers(text.config.hidden_size, below("mlp.", state), file)
        vision, text, head = (network.to(self.device).eval() for network in (vision, text, head))
        tokenizer, prompts = load_tokenizer(words), sorted({question.text for question in questions})
        tokens = {
            prompt: tokenizer(
                prompt, padding="max_length", truncation=True, max_length=TOKENS, return_tensors="pt"
            )
            for prompt in prompts
        }
        full = sum(bool(one.attention_mask.all()) for one in tokens.values())
        tell_full(self.name, full, len(prompts), TOKENS)
        return _Models(vision, text, head, tokens)

    def prepare(self, image: Image.Image) -> np.ndarray:
        return clip_pixels(image, self.models.vision.config.image_size, "torchvision")[0]

    def forward(self, batch: list[np.ndarray]) -> list[torch.Tensor]:
        """Returns BLIP's features of the patches of each image."""
        return list(self.models.vision(pixel_values=to_device(batch, self.device)).last_hidden_state)

    def measure(self, question: Question, features: torch.Tensor) -> float:
        models = self.models
        with inference("one image"):
            tokens = models.tokens[question.text].to(self.device)
            states = models.text(
                tokens.input_ids, tokens.attention_mask, encoder_hidden_states=features[None]
            ).last_hidden_state
            return (float(models.head(states[:, 0])) - _MEAN) / _STD


def blip(
    state: Mapping[str, torch.Tensor], settings: Mapping[str, Any], file: WeightsSource
) -> tuple[Any, Any]:
    """Returns BLIP's image encoder and text encoder with the tensors ``state`` of the checkpoint ``file``.

    The tensors determine the shape of the image encoder, ``settings`` (the authors' med_config.json) that of
    the text encoder. Raises CellFailure if tensors do not match.
    """
    from transformers import BlipTextConfig, BlipTextModel, BlipVisionConfig, BlipVisionModel

    of_image = {_renamed(name): tensor for name, tensor in below("blip.visual_encoder.", state).items()}
    patches, places = (
        of_image[f"embeddings.{name}"] for name in ("patch_embedding.weight", "position_embedding")
    )
    width, _, patch, _ = patches.shape
    vision = BlipVisionModel(
        BlipVisionConfig(
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=sum(name.endswith(".self_attn.qkv.weight") for name in of_image),
            num_attention_heads=width // _HEAD_WIDTH,
            image_size=patch * math.isqrt(places.shape[1] - 1),
            patch_size=patch,
            layer_norm_eps=1e-6,
        )
    )
    load_state(vision, of_image, file)
    known = BlipTextConfig().to_dict()
    own = {name: value for name, value in settings.items() if name in known and name != "model_type"}
    text = BlipTextModel(BlipTextConfig(**own, encoder_hidden_size=width), add_pooling_layer=False)
    of_text = below("blip.text_encoder.", state)
    of_text.pop("embeddings.position_ids", None)
    load_state(text, of_text, file)
    return vision, text


def _renamed(name: str) -> str:
    for old, new in _RENAMED:
        name = re.sub(old, new, name)
    return name
