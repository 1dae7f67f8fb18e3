"""CLIPScore, PickScore and LAION's aesthetic predictor, on CLIP in transformers.

Other packages do not fit. torchmetrics (1.9) computes CLIPScore with another scale and without the caption's
prefix, and does not run with transformers 5. pyiqa has both metrics, but needs torchvision's operators, and
its licence forbids commercial use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from PIL import Image

from eval_models.encoders.encoder import Encoder, clip_pixels, inference, to_device
from eval_models.encoders.weights import CLIP, load_pretrained, load_state, load_tokenizer, loading
from imageevalkit.assets.weights import WeightsSource
from imageevalkit.benchmark.question import PILLOW, Question
from imageevalkit.common.errors import say

if TYPE_CHECKING:
    import numpy as np
    import torch

_TEXTS_AT_ONCE = 64
_PREFIX = "A photo depicts "
_SCALE = 2.5
# weights of the other half of a checkpoint; older checkpoints contain position ids
_NOT_VISION = r"text_model\..*|text_projection\..*|logit_scale|.*position_ids"
_NOT_TEXT = r"vision_model\..*|visual_projection\..*|logit_scale|.*position_ids"
# output widths of the predictor's linear layers, and their indices in the checkpoint; it has no other layers
_WIDTHS = (1024, 128, 64, 16, 1)
_PLACES = (0, 2, 4, 6, 7)


class _ClipMetric(Encoder):
    """A metric on normalised CLIP features. Networks use half precision on a GPU, like OpenAI's program.

    The first of ``models`` is the image encoder.
    """

    is_official = True
    precision = "float16 on a GPU"

    def load_part(self, class_name: str, source: WeightsSource, unused: str) -> Any:
        """Loads the image or the text half of a CLIP. Raises CellFailure if it does not load."""
        halves = self.precision != "float32" and self.device.startswith("cuda")
        dtype = "float16" if halves else "float32"
        return load_pretrained(source, class_name, dtype, self.device, unused)

    def prepare(self, image: Image.Image) -> np.ndarray:
        return clip_pixels(image, self.models[0].config.image_size, "torchvision")[0]

    def forward(self, batch: list[np.ndarray]) -> list[torch.Tensor]:
        """Returns the features of each image, (width,)."""
        vision = self.models[0]
        pixels = to_device(batch, self.device).to(vision.dtype)
        return list(_normalised(vision(pixel_values=pixels).image_embeds))

    def captions(
        self,
        questions: Sequence[Question],
        tokenizer: Any,
        longest: int,
        encode: Callable[..., torch.Tensor],
        prefix: str = "",
    ) -> dict[str, torch.Tensor]:
        """Returns the features of each caption. Captions are truncated to ``longest`` tokens."""
        captions, found = sorted({question.text for question in questions}), dict[str, Any]()
        full = 0
        for start in range(0, len(captions), _TEXTS_AT_ONCE):
            some = captions[start : start + _TEXTS_AT_ONCE]
            words = [f"{prefix}{caption}" for caption in some]
            with inference("the captions"):
                tokens = tokenizer(
                    words, padding=True, truncation=True, max_length=longest, return_tensors="pt"
                )
                features = encode(**tokens.to(self.device))
                found |= zip(some, _normalised(features), strict=True)
                full += int((tokens.attention_mask.sum(1) == longest).sum())
        tell_full(self.name, full, len(captions), longest)
        return found


class ClipScore(_ClipMetric):
    """A question holds a picture and a caption. The answer is 2.5 · max(cosine, 0) of their features.

    Captions beyond CLIP's 77 tokens are truncated.
    """

    name = "clipscore"
    weight_names = ("clip_vit_b_32",)

    def load(self, questions: Sequence[Question]) -> tuple[Any, dict[str, torch.Tensor]]:
        """Returns the image encoder and the features of each caption."""
        (source,) = self.sources.values()
        vision = self.load_part(CLIP, source, _NOT_VISION)
        text = self.load_part("CLIPTextModelWithProjection", source, _NOT_TEXT)
        tokenizer = load_tokenizer(source)

        def encode(**tokens: torch.Tensor) -> torch.Tensor:
            return text(**tokens).text_embeds

        longest = text.config.max_position_embeddings
        return vision, self.captions(questions, tokenizer, longest, encode, _PREFIX)

    def measure(self, question: Question, features: torch.Tensor) -> float:
        cosine = float(features @ self.models[1][question.text])
        return _SCALE * max(cosine, 0.0)  # with this argument order NaN stays NaN


class ClipScoreL14(ClipScore):
    """CLIPScore as CVTG-2K computes it: with CLIP ViT-L/14 in place of ViT-B/32."""

    name = "clipscore-l14"
    weight_names = ("clip_vit_l_14",)


class PickScore(_ClipMetric):
    """A question holds a picture and a prompt. The answer is the logit of their features, about 17 to 24.

    Prompts beyond CLIP's 77 tokens are truncated. Other programs divide the logit by 26 or 100.
    """

    name = "pickscore"
    weight_names = ("pickscore", "clip_vit_h_14")
    precision = "float32"
    pixels = PILLOW

    def load(self, questions: Sequence[Question]) -> tuple[Any, dict[str, torch.Tensor], float]:
        """Returns the model, the features of each prompt, and the factor of the cosine."""
        source, words = self.sources.values()
        model = load_pretrained(source, "CLIPModel", "float32", self.device, r".*position_ids")

        def encode(**tokens: torch.Tensor) -> torch.Tensor:
            return model.get_text_features(**tokens).pooler_output

        longest = model.config.text_config.max_position_embeddings
        texts = self.captions(questions, load_tokenizer(words), longest, encode)
        return model, texts, float(model.logit_scale.detach().exp())

    def prepare(self, image: Image.Image) -> np.ndarray:
        return clip_pixels(image, self.models[0].config.vision_config.image_size, "transformers")[0]

    def forward(self, batch: list[np.ndarray]) -> list[torch.Tensor]:
        pixels = to_device(batch, self.device)
        return list(_normalised(self.models[0].get_image_features(pixels).pooler_output))

    def measure(self, question: Question, features: torch.Tensor) -> float:
        _, texts, factor = self.models
        return factor * float(features @ texts[question.text])


class AestheticPredictor(_ClipMetric):
    """A question holds a picture. The answer is an aesthetic score of about 1 to 10; higher is better."""

    name = "aesthetic_predictor"
    weight_names = ("aesthetic", "clip_vit_l_14")

    def load(self, questions: Sequence[Question]) -> tuple[Any, Any]:
        """Returns the image encoder and the predictor's layers."""
        head, clip = self.sources.values()
        vision = self.load_part(CLIP, clip, _NOT_VISION)
        with loading(head):
            import torch

            state = torch.load(head.model_path, map_location="cpu", weights_only=True)
            layers = self.layers(vision.config.projection_dim, state, head)
        return vision, layers.to(self.device).eval()

    def layers(self, width: int, state: Mapping[str, torch.Tensor], source: WeightsSource) -> torch.nn.Module:
        """Returns the predictor above features of ``width``. Raises CellFailure if tensors do not match."""
        return linear_layers(width, state, source)

    def measure(self, question: Question, features: torch.Tensor) -> float:
        with inference("one image"):
            return float(self.models[1](features))


def tell_full(name: str, full: int, prompts: int, longest: int) -> None:
    """Prints how many prompts the evaluator ``name`` may not read to their ends."""
    if full:
        say(f"{name}: {full} of {prompts} prompts fill all {longest} tokens; text beyond them is cut off")


class LinearPredictor(AestheticPredictor):
    """LAION's first aesthetic predictor: one linear layer. Its scale is not that of the later predictor."""

    name = "aesthetic_predictor-v1"
    weight_names = ("aesthetic_v1", "clip_vit_l_14")
    precision = "float32"

    def layers(self, width: int, state: Mapping[str, torch.Tensor], source: WeightsSource) -> torch.nn.Module:
        import torch

        layer = torch.nn.Linear(width, 1)
        load_state(layer, state, source)
        return layer


def linear_layers(
    width: int, state: Mapping[str, torch.Tensor], source: WeightsSource
) -> torch.nn.Sequential:
    """Returns the predictor above features of ``width`` with the tensors ``state`` of ``source``.

    ImageReward has a predictor of the same form. Raises CellFailure if tensors do not match.
    """
    import torch

    linear = [torch.nn.Linear(*pair) for pair in pairwise((width, *_WIDTHS))]
    named = {str(place): layer for place, layer in zip(_PLACES, linear, strict=True)}
    load_state(torch.nn.ModuleDict({"layers": torch.nn.ModuleDict(named)}), state, source)
    return torch.nn.Sequential(*linear)


def _normalised(features: torch.Tensor) -> torch.Tensor:
    """Returns the features in float32, (n, width), with rows of length 1."""
    import torch

    return torch.nn.functional.normalize(features.float(), dim=-1)
