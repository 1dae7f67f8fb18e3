"""How near an image is to a reference answer in the eyes of LLM2CLIP: OneIG's reasoning."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from eval_models.encoders.batches import Encoded, run_batches
from eval_models.encoders.device import choose_device, free_memory, to_device
from eval_models.encoders.interface import EncoderOptions
from eval_models.encoders.llm2clip_model import Llm2Clip, load_llm2clip
from eval_models.encoders.llm2vec import Vectors, encode_texts
from eval_models.encoders.pixels import clip_pixels
from eval_models.encoders.replies import error_answer, number_answer
from eval_models.encoders.weights import find, package_versions
from eval_models.weights_source import WeightsSource
from imageevalkit.errors import CellFailure
from imageevalkit.evaluation.question import Answer, Question
from imageevalkit.load_errors import first_line

if TYPE_CHECKING:
    import numpy as np
    import torch
    from PIL import Image


class Llm2ClipEncoder:
    """An :class:`eval_models.encoders.interface.Encoder` for questions of one message: (picture, reference answer).

    The text of a reply holds two cosines: "official" in the precision of the official code (weights in bfloat16,
    computed under torch's autocast, so that a score has steps of 0.0002 around 0.3), and "exact" from the same
    bfloat16 weights and LLM states, everything after them in float32.
    """

    def __init__(self, options: EncoderOptions) -> None:
        self._options = options

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """See the interface. The precision of "official" differs between GPU and CPU."""
        packages = package_versions("tokenizers", "safetensors")
        autocast = "float16" if choose_device(self._options).startswith("cuda") else "bfloat16"
        return {
            "encoder": "llm2clip",
            "weights": {"llm2clip_vision": self._vision.identity, "llm2clip_text": self._text.identity},
            "precision": {"weights": "bfloat16", "official": autocast, "exact": "float32"},
            "packages": packages,
        }

    def ask(self, questions: Sequence[Question]) -> Iterator[Answer]:
        """See the interface. All texts are encoded first, each once: the LLM's memory is free for the images."""
        if not questions:
            return
        package_versions("tokenizers", "safetensors")
        device = choose_device(self._options)
        vision = self._vision
        vectors = encode_texts([_reference(question) for question in questions], self._text, device)
        models = _Models.load(vision, device)
        try:
            texts = {text: models.text_features(found, self._text) for text, found in vectors.items()}
            for encoded in run_batches(questions, models.prepare, models.forward, self._options):
                yield _answer(encoded, texts, models)
        finally:
            del models
            free_memory()

    @functools.cached_property
    def _vision(self) -> WeightsSource:
        return find("llm2clip_vision", self._options)

    @functools.cached_property
    def _text(self) -> WeightsSource:
        return find("llm2clip_text", self._options)


class _Features(NamedTuple):
    """(1, features) of one image or text, of length 1, on the device: under autocast, and in float32."""

    official: torch.Tensor
    exact: torch.Tensor


class _Models(NamedTuple):
    official: Llm2Clip
    exact: Llm2Clip
    device: str

    @classmethod
    def load(cls, source: WeightsSource, device: str) -> _Models:
        """Raises CellFailure where it does not load."""
        official = load_llm2clip(source, device)
        return cls(official, official.in_float32(), device)

    def prepare(self, image: Image.Image) -> np.ndarray:
        """What transformers' CLIPImageProcessor makes of ``image`` (RGB)."""
        return clip_pixels(image, self.official.image_size, "transformers")

    def forward(self, batch: list[np.ndarray]) -> list[_Features]:
        """Each image's."""
        import torch

        pixels = to_device(batch, self.device)
        with self.autocast():
            official = _of_length_1(self.official.image_features(pixels))
        # cuDNN would round the patches to TF32 by default
        with torch.backends.cudnn.flags(allow_tf32=False):
            exact = _of_length_1(self.exact.image_features(pixels))
        return [_Features(*both) for both in zip(official.split(1), exact.split(1), strict=True)]

    def text_features(self, vectors: Vectors, source: WeightsSource) -> _Features:
        """One text's; one at a time, as the official code does."""
        import torch

        official, exact = (found[None].to(self.device) for found in vectors)
        if official.shape[-1] != self.official.text_width:
            raise CellFailure(
                f"encoders: the text vectors of {source.model_path} have {official.shape[-1]} numbers, LLM2CLIP's "
                f"adapter takes {self.official.text_width}: the two do not belong together"
            )
        try:
            with torch.inference_mode():
                with self.autocast():
                    official = _of_length_1(self.official.text_features(official))
                return _Features(official, _of_length_1(self.exact.text_features(exact)))
        except RuntimeError as error:  # no memory left
            raise CellFailure(f"encoders: LLM2CLIP's text adapter failed: {first_line(error)}") from error

    def autocast(self) -> torch.amp.autocast_mode.autocast:
        """The official code's, with the precision that torch chooses for the kind of device."""
        import torch

        return torch.amp.autocast(torch.device(self.device).type)


def _reference(question: Question) -> str:
    (text,) = (part for message in question.messages for part in message.parts if isinstance(part, str))
    return text


def _of_length_1(features: torch.Tensor) -> torch.Tensor:
    # in place, as the official code: the quotient keeps the precision of the features
    features /= features.norm(dim=-1, keepdim=True)
    return features


def _answer(encoded: Encoded, texts: dict[str, _Features], models: _Models) -> Answer:
    if encoded.features is None:
        return error_answer(encoded)
    image, text = encoded.features, texts[_reference(encoded.question)]
    with models.autocast():
        official = image.official @ text.official.T
    exact = image.exact @ text.exact.T
    return number_answer(encoded, {"official": official.item(), "exact": exact.item()})
