"""VQAScore: the probability that "Yes" answers a question about an image, by CLIP-FlanT5 or LLaVA-1.5.

CLIP-FlanT5 has no class in transformers. It combines transformers' CLIP, a projector of two linear layers,
and FLAN-T5, which gets the projected image features among its word embeddings. LLaVA-1.5 has the same
structure on LLaMA, and transformers has a class for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from PIL import Image

from eval_models.encoders.encoder import CLIP_MEAN, TORCH, Encoder, clip_pixels, inference, to_device
from eval_models.encoders.weights import (
    cached,
    first_cached,
    load_pretrained,
    load_state,
    load_tokenizer,
    loading,
)
from imageevalkit.assets.weights import WeightsSource
from imageevalkit.benchmark.question import PILLOW, Question

if TYPE_CHECKING:
    import numpy as np
    import torch

_ANSWER = "Yes"
_FILES = ("model.safetensors", "pytorch_model.bin")
_PROJECTOR = "mm_projector"
# the projector, a copy of the frozen image encoder, and a second name of the word embeddings
_NOT_T5 = r"mm_projector\..*|vision_tower\..*|embed_tokens\.weight"
# CLIP weights that the image encoder does not use
_NOT_VISION = r"text_model\..*|(text|visual)_projection\..*|logit_scale|.*position_ids"
_PAPER = tuple(int(255 * part) for part in CLIP_MEAN)


class ClipFlanT5(Encoder):
    """A question holds a picture and a text. The answer is a number, 0-1.

    The number is the geometric mean of the probabilities of "Yes" and of the end token after it. ``system``
    is the system message of questions without one. Source: ``forward`` in ``clip_t5_model.py`` of t2v_metrics
    3.0.
    """

    name = "clip-flant5-xxl"
    weight_names: ClassVar[Sequence[str]] = ("clip_flant5_xxl", "clip_vit_l_336")
    packages: ClassVar[Sequence[str]] = (*TORCH, "sentencepiece")
    official = True
    precision = "bfloat16"
    pixels = PILLOW
    # sets these scores apart from recorded ones of the word embeddings as output layer
    _own: ClassVar[Mapping[str, str]] = {"output layer": "lm_head"}

    def __init__(self, system: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.system = system

    @property
    def identity(self) -> dict[str, Any]:
        return {**super().identity, "system": self.system, **self._own}

    def load(self, questions: Sequence[Question]) -> _Models:
        source, tower = self.sources.values()
        encoder = load_pretrained(tower, "CLIPVisionModel", "bfloat16", self.device, unused=_NOT_VISION)
        with loading(source):
            from torch import nn
            from transformers import T5Config

            settings = json.loads(cached(source, "config.json").read_text(encoding="utf-8"))
            tokenizer = load_tokenizer(source)
            config = T5Config(**settings)
            width = config.d_model
            projector = nn.Sequential(
                nn.Linear(encoder.config.hidden_size, width), nn.GELU(), nn.Linear(width, width)
            )
            load_state(nn.ModuleDict({_PROJECTOR: projector}), _projector_state(source), source)
        network = load_pretrained(
            source, "T5ForConditionalGeneration", "bfloat16", "cpu", unused=_NOT_T5, config=config
        )
        with loading(source):
            return _Models(
                network.to(self.device, encoder.dtype).eval(),
                projector.to(self.device, encoder.dtype).eval(),
                encoder,
                tokenizer,
                settings.get("mm_vision_select_layer", -2),
            )

    def prepare(self, image: Image.Image) -> np.ndarray:
        """Returns the image centred on a square of CLIP's mean colour, then preprocessed by CLIP's own
        rules."""
        side = max(image.size)
        paper = Image.new("RGB", (side, side), _PAPER)
        paper.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
        return clip_pixels(paper, self.models.encoder.config.image_size, "transformers")[0]

    def forward(self, batch: list[np.ndarray]) -> list[torch.Tensor]:
        """Returns the features of each image, (patches, width), projected to the width of word embeddings."""
        import torch

        models = self.models
        with self.autocast(dtype=torch.bfloat16):
            pixels = to_device(batch, self.device)
            states = models.encoder(pixel_values=pixels, output_hidden_states=True).hidden_states
            # the first position is the class token
            return list(models.projector(states[models.layer][:, 1:]))

    def measure(self, question: Question, features: torch.Tensor) -> float:
        import torch

        words = self.models.network.get_input_embeddings()
        with inference("a question"), self.autocast(dtype=torch.bfloat16):
            # the tokenizer ends both parts with an end token
            system, text = self._messages_of(question)
            before, after = words(self._tokens(system)), words(self._tokens(f"{text} "))
            labels = self._tokens(_ANSWER)
            embeddings = torch.cat([before[0], features, after[0]])[None]
            output = self.models.network(inputs_embeds=embeddings, labels=labels)
            # as officially without the 28 logits that have no token. Officially the embeddings are resized:
            # transformers 5 then uses the word embeddings in place of FLAN-T5's own output layer
            logits = output.logits[0, :, : len(self.models.tokenizer)].float()
            return float((-torch.nn.functional.cross_entropy(logits, labels[0])).exp())

    def _messages_of(self, question: Question) -> tuple[str, str]:
        """Returns the text before the image and the text after it."""
        texts = {
            message.role: part
            for message in question.messages
            for part in message.parts
            if isinstance(part, str)
        }
        return f"{texts.get('system', self.system)} USER: ", f"\n{texts['user']} ASSISTANT:"

    def _tokens(self, text: str) -> torch.Tensor:
        return self.models.tokenizer(text, return_tensors="pt").input_ids.to(self.device)


class ClipFlanT5XL(ClipFlanT5):
    """The authors' smaller model."""

    name = "clip-flant5-xl"
    weight_names = ("clip_flant5_xl", "clip_vit_l_336")
    official = False


class Llava(ClipFlanT5):
    """LLaVA-1.5 with the same questions and answers. Source: ``forward`` in ``llava_model.py`` of t2v_metrics
    3.0."""

    name = "llava-v1.5-13b"
    weight_names = ("llava_13b",)
    packages = TORCH
    official = False
    _own: ClassVar[Mapping[str, str]] = {}

    def load(self, questions: Sequence[Question]) -> _Models:
        (source,) = self.sources.values()
        network = load_pretrained(source, "LlavaForConditionalGeneration", "bfloat16", self.device)
        tokenizer = load_tokenizer(source)
        parts, layer = network.model, network.config.vision_feature_layer
        return _Models(network, parts.multi_modal_projector, parts.vision_tower, tokenizer, layer)

    def measure(self, question: Question, features: torch.Tensor) -> float:
        import torch

        network, tokenizer = self.models.network, self.models.tokenizer
        words = network.get_input_embeddings()
        system, asked = self._messages_of(question)
        answered = self._tokens(f"{asked} {_ANSWER}{tokenizer.eos_token}")
        count = answered.shape[1] - self._tokens(asked).shape[1]
        with torch.inference_mode(), self.autocast(dtype=torch.bfloat16):
            before = words(self._tokens(system))
            # each text begins with a begin token; the part before the image already has it
            after = words(answered[:, 1:])
            logits = network(inputs_embeds=torch.cat([before[0], features, after[0]])[None]).logits[0]
            losses = torch.nn.functional.cross_entropy(logits[-count - 1 : -1].float(), answered[0, -count:])
        return float((-losses).exp())


class _Models(NamedTuple):
    """``encoder`` is CLIP's image encoder; ``projector`` maps its hidden states of ``layer`` to the word
    width."""

    network: Any
    projector: Any
    encoder: Any
    tokenizer: Any
    layer: int


def _projector_state(source: WeightsSource) -> dict[str, torch.Tensor]:
    """Returns the projector's tensors by name, from a checkpoint of one or several files."""
    import torch
    from safetensors.torch import load_file

    try:
        index = first_cached(source, [f"{file}.index.json" for file in _FILES])
    except OSError:
        paths = [first_cached(source, _FILES)]
    else:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = {file for name, file in places.items() if name.startswith(_PROJECTOR)}
        paths = [cached(source, file) for file in sorted(files)]
    found: dict[str, torch.Tensor] = {}
    for path in paths:
        is_safe = path.suffix == ".safetensors"
        found |= load_file(path) if is_safe else torch.load(path, "cpu", weights_only=True, mmap=True)
    return {name: tensor for name, tensor in found.items() if name.startswith(_PROJECTOR)}
