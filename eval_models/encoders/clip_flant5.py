"""VQAScore by CLIP-FlanT5: how probable "Yes" is as the answer to a question about an image.

The network is transformers' FLAN-T5, before whose words stand an image's features of transformers' CLIP, made as wide
by two linear layers; transformers has no class for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from PIL import Image

from eval_models.encoders.encoder import Encoder, to_device
from eval_models.encoders.pixels import CLIP_MEAN, clip_pixels
from eval_models.encoders.weights import cached, does_not_load, find, raise_unfit
from imageevalkit.benchmark.question import Question
from imageevalkit.weights import WeightsSource

if TYPE_CHECKING:
    import numpy as np
    import torch

_ANSWER = "Yes"
_PROJECTOR = "mm_projector."
_TOWER = "vision_tower."
# counts in no loss
_IGNORED = -100
_PAPER = tuple(int(255 * part) for part in CLIP_MEAN)


class ClipFlanT5(Encoder):
    """Asked by a message of a picture and a question; an answer is a number of 0-1.

    ``system`` is the sentence before the question. The number is the geometric mean of the probabilities of "Yes" and
    of the end after it. Source: ``forward`` in ``clip_t5_model.py`` of t2v_metrics 3.0.
    """

    name = "clip-flant5-xxl"
    packages = ("sentencepiece",)
    model: ClassVar[str] = "clip_flant5_xxl"

    def __init__(self, system: str, **options: Any) -> None:
        super().__init__(**options)
        self.system = system

    @property
    def identity(self) -> dict[str, Any]:
        weights = {name: find(name, self.weights).identity for name in (self.model, "clip_vit_l_336")}
        return {"encoder": self.name, "weights": weights, "precision": "bfloat16", "system": self.system}

    def text(self, numbers: Mapping[str, Any]) -> str:
        return json.dumps(numbers["vqascore"])

    def load(self, questions: Sequence[Question], device: str) -> VqaScoreModel:
        source, tower = find(self.model, self.weights), find("clip_vit_l_336", self.weights)
        try:
            return VqaScoreModel(source, tower, self.system, device)
        except Exception as error:  # of transformers, of the hub, of the disk, of the device
            raise does_not_load(source, error) from error


class ClipFlanT5XL(ClipFlanT5):
    """The smaller one of its authors'."""

    name = "clip-flant5-xl"
    model = "clip_flant5_xl"


class VqaScoreModel:
    """The network of ``source`` and the image encoder ``tower``, in bfloat16 on ``device``."""

    def __init__(self, source: WeightsSource, tower: WeightsSource, system: str, device: str) -> None:
        import torch
        from transformers import AutoTokenizer, CLIPVisionModel, T5Config, T5ForConditionalGeneration

        settings = json.loads(cached(source, "config.json").read_text(encoding="utf-8"))
        self._device, self._system = device, system
        self._layer = settings.get("mm_vision_select_layer", -2)
        self._tokenizer = AutoTokenizer.from_pretrained(source.model_path, revision=source.commit)
        network, loading = T5ForConditionalGeneration.from_pretrained(
            source.model_path,
            config=T5Config(**settings),
            revision=source.commit,
            dtype=torch.float32,
            output_loading_info=True,
        )
        others = [name for name in loading["unexpected_keys"] if not name.startswith((_PROJECTOR, _TOWER))]
        raise_unfit(source, "CLIP-FlanT5", loading["missing_keys"], others)
        # officially so: the logits of 28 places without a token are in no sum of probabilities then
        network.resize_token_embeddings(len(self._tokenizer))
        self._network = network.to(device, torch.bfloat16).eval()
        encoder = CLIPVisionModel.from_pretrained(tower.model_path, revision=tower.commit)
        self._encoder = encoder.to(device, torch.bfloat16).eval()
        self._size = encoder.config.image_size
        self._projector = _projector(source).to(device, torch.bfloat16)
        self._labels = self._tokens(_ANSWER)

    def prepare(self, image: Image.Image) -> np.ndarray:
        """On a square of CLIP's mean colour, then as CLIP's own processor does it."""
        side = max(image.size)
        paper = Image.new("RGB", (side, side), _PAPER)
        paper.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
        return clip_pixels(paper, self._size, "transformers")

    def forward(self, batch: list[np.ndarray]) -> list[torch.Tensor]:
        """(patches, width) of each image, as words to the network."""
        with self._autocast():
            pixels = to_device(batch, self._device)
            hidden = self._encoder(pixel_values=pixels, output_hidden_states=True).hidden_states[self._layer]
            return list(self._projector(hidden[:, 1:]))  # the first is that of the whole image

    def measure(self, question: Question, features: torch.Tensor) -> dict[str, float]:
        import torch

        words = self._network.get_input_embeddings()
        # each of both parts ends as a text does
        before = words(self._tokens(f"{self._system} USER: "))
        after = words(self._tokens(f"\n{question.text} ASSISTANT: "))
        with torch.inference_mode(), self._autocast():
            embeddings = torch.cat([before[0], features, after[0]])[None]
            output = self._network(inputs_embeds=embeddings, labels=self._labels)
        losses = torch.nn.functional.cross_entropy(output.logits[0].float(), self._labels[0])
        return {"vqascore": (-losses).exp().item()}

    def _tokens(self, text: str) -> torch.Tensor:
        return self._tokenizer(text, return_tensors="pt").input_ids.to(self._device)

    def _autocast(self) -> torch.amp.autocast_mode.autocast:
        import torch

        return torch.amp.autocast(torch.device(self._device).type, dtype=torch.bfloat16)


def _projector(source: WeightsSource) -> Any:
    """Two linear layers with a GELU between them. Raises CellFailure: the checkpoint has none."""
    from torch import nn

    state = _tensors(source, _PROJECTOR)
    raise_unfit(source, "CLIP-FlanT5", {f"{_PROJECTOR}0.weight", f"{_PROJECTOR}2.weight"} - state.keys(), ())
    first, second = (state[f"{_PROJECTOR}{n}.weight"] for n in (0, 2))
    projector = nn.Sequential(nn.Linear(*first.shape[::-1]), nn.GELU(), nn.Linear(*second.shape[::-1]))
    projector.load_state_dict({name.removeprefix(_PROJECTOR): tensor for name, tensor in state.items()})
    return projector


def _tensors(source: WeightsSource, prefix: str) -> dict[str, torch.Tensor]:
    """Those of the checkpoint whose names begin with ``prefix``, whether it is one file or several."""
    import torch
    from safetensors.torch import load_file

    for whole in ("model.safetensors", "pytorch_model.bin"):
        files = {whole}
        try:
            index = json.loads(cached(source, f"{whole}.index.json").read_text(encoding="utf-8"))["weight_map"]
            files = {file for name, file in index.items() if name.startswith(prefix)}
        except OSError:
            pass
        try:
            paths = [cached(source, file) for file in sorted(files)]
        except OSError:
            continue
        load = load_file if whole.endswith("safetensors") else lambda path: torch.load(path, "cpu", weights_only=True)
        state = {name: tensor for path in paths for name, tensor in load(path).items()}
        return {name: tensor for name, tensor in state.items() if name.startswith(prefix)}
    return {}
