"""Similarity of an image to the reference images of a style, by two style encoders, CSD and SE.

CSD is a fine-tuned ViT-L/14 of OpenAI's whose projection yields style vectors. SE is a CLIP of transformers.
"""

from __future__ import annotations

import argparse
import functools
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from eval_models.encoders.encoder import Encoder, clip_pixels, to_device
from eval_models.encoders.weights import CLIP, load_pretrained, loading
from imageevalkit.assets.weights import WeightsSource
from imageevalkit.benchmark.question import Question
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.images import sha256_file

# replacements that turn CSD's tensor names (OpenAI's) into transformers' names
_NAMES = {
    "module.": "",
    "backbone.": "vision_model.",
    "class_embedding": "embeddings.class_embedding",
    "positional_embedding": "embeddings.position_embedding.weight",
    "conv1.": "embeddings.patch_embedding.",
    "ln_pre.": "pre_layrnorm.",
    "ln_post.": "post_layernorm.",
    "transformer.resblocks.": "encoder.layers.",
    ".ln_1.": ".layer_norm1.",
    ".ln_2.": ".layer_norm2.",
    ".attn.": ".self_attn.",
    ".c_fc.": ".fc1.",
    ".c_proj.": ".fc2.",
    "last_layer_style": "visual_projection.weight",
}


class StyleEncoder(Encoder):
    """A question holds a picture and the name of a style.

    ``references`` names the files of reference vectors: "csd" (CSD_embed.pt) and "se" (SE_embed.pt), each
    ``{style: (references, width)}``. The answer holds the dot products with the vectors of the style: {"csd":
    […], "se": […], "se_exact": […]}. "csd" is in float32; "se" is bfloat16 throughout, like the official
    code; "se_exact" is the float32 product of the same bfloat16 vectors.
    """

    name = "csd+se"
    weight_names = ("csd", "se")
    is_official = True

    def __init__(self, references: Mapping[str, Path | str], **options: Any) -> None:
        super().__init__(**options)
        self._files = {name: Path(references[name]) for name in self.weight_names}

    @property
    def identity(self) -> dict[str, Any]:
        try:
            references = {name: sha256_file(path) for name, path in self._files.items()}
        except OSError as error:
            raise CellFailure(f"encoders: {error.filename} cannot be read ({error.strerror})") from error
        return {
            "encoder": "style",
            "weights": {
                "csd": self.sources["csd"].identity,
                # once OpenAI's archive, for weights missing in a CSD checkpoint; recorded names contain this
                # key
                "csd_clip": "unused",
                "se": self.sources["se"].identity,
            },
            "precision": {"csd": "float32", "se": "bfloat16"},
            "references": references,
        }

    def load(self, questions: Sequence[Question]) -> tuple[Any, Any, Mapping[str, Mapping[str, Any]]]:
        """Returns CSD, SE and their references by style. Raises CellFailure also if a style has no
        references."""
        models = {
            "csd": load_csd(self.sources["csd"], self.device),
            "se": load_pretrained(self.sources["se"], CLIP, "bfloat16", self.device),
        }
        references = {}
        for name, path in self._files.items():
            width = models[name].config.projection_dim
            vectors = references[name] = load_references(path, models[name].dtype, self.device)
            for style in {question.text for question in questions}:
                if style not in vectors or vectors[style].shape[-1] != width:
                    raise CellFailure(
                        f"encoders: {path} has no reference vectors of {width} numbers, as its encoder gives, of the "
                        f"style '{style}'"
                    )
        return models["csd"], models["se"], references

    def prepare(self, image: Image.Image) -> list[Any]:
        """Returns the pixels for CSD (torchvision's rounding) and SE (transformers'), as their authors
        did."""
        return clip_pixels(image, self.models[0].config.image_size, "torchvision", "transformers")

    def forward(self, batch: list[Any]) -> list[tuple[Any, Any]]:
        """Returns, for each image, the style vectors (1, width) of both encoders."""
        inputs = (to_device(pixels, self.device) for pixels in zip(*batch, strict=True))
        vectors = map(style_vectors, self.models[:2], inputs)
        return list(zip(*(found.split(1) for found in vectors), strict=True))

    def measure(self, question: Question, features: tuple[Any, Any]) -> dict[str, list[float]]:
        csd, se = features
        csd_references, se_references = (vectors[question.text] for vectors in self.models[2].values())
        products = {
            "csd": csd @ csd_references.T,
            # a product of bfloat16 vectors is bfloat16: steps of 0.002 to 0.004 in the range of scores
            "se": se @ se_references.T,
            "se_exact": se.float() @ se_references.float().T,
        }
        return {name: found[0].tolist() for name, found in products.items()}


def load_references(path: Path, dtype: Any, device: str) -> dict[str, Any]:
    """Returns tensors (references, width) by style. Raises CellFailure if the file does not load."""
    import torch

    with loading(WeightsSource(str(path), None, {})):
        # map_location: the tensors were saved on a GPU
        loaded = torch.load(path, map_location="cpu", weights_only=True)
        return {style: vectors.to(device, dtype) for style, vectors in loaded.items()}


def style_vectors(model: Any, pixels: Any) -> Any:
    """Returns vectors (batch, width) of length 1, in the model's precision, of float32 ``pixels`` (batch, 3,
    size, size)."""
    import torch

    embeds = model(pixel_values=pixels.to(model.dtype)).image_embeds
    return torch.nn.functional.normalize(embeds, dim=-1, p=2)


def load_csd(source: WeightsSource, device: str) -> Any:
    """Returns CSD as a float32 ``CLIPVisionModelWithProjection``. The shapes of its tensors decide the
    configuration.

    Raises CellFailure if the file does not load or is no CSD encoder.
    """
    with loading(source):
        import torch
        from transformers import CLIPVisionConfig

        state = _csd_state(source)
        embeddings, fc1 = "vision_model.embeddings", "vision_model.encoder.layers.{}.mlp.fc1.weight"
        width, _, patch, _ = state[f"{embeddings}.patch_embedding.weight"].shape
        projection = state["visual_projection.weight"]
        config = CLIPVisionConfig(
            hidden_size=width,
            intermediate_size=len(state[fc1.format(0)]),
            num_hidden_layers=sum(fc1.format(n) in state for n in range(len(state))),
            num_attention_heads=width // 64,  # as in every CLIP of OpenAI's; no tensor shows it
            # one position belongs to the class token
            image_size=round((len(state[f"{embeddings}.position_embedding.weight"]) - 1) ** 0.5) * patch,
            patch_size=patch,
            hidden_act="quick_gelu",
            projection_dim=len(projection),
        )
        model = load_pretrained(source, CLIP, "float32", device, config=config, state_dict=state)
        # a transposed view, not a copy: only then does the product equal the official one bit for bit
        turned = projection.float().to(device)
        model.visual_projection.weight = torch.nn.Parameter(turned, requires_grad=False)
        return model


def _csd_state(source: WeightsSource) -> dict[str, Any]:
    """Returns the tensors of the checkpoint by transformers' names.

    The checkpoint also contains the training options (an ``argparse.Namespace``) and numpy scalars of the
    optimizers. These classes are allowed. A file with other classes is refused, because it could run any
    code.
    """
    import numpy as np
    import torch

    # numpy 2 moved this function; older files use the old path
    scalar = np.float64(0).__reduce__()[0]
    scalars = [(scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]
    allowed = [argparse.Namespace, np.dtype, type(np.dtype("float64")), *scalars]
    path = source.model_path
    with torch.serialization.safe_globals(allowed):
        saved = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    state: dict[str, Any] = {}
    for name, tensor in saved["model_state_dict"].items():
        ours = functools.reduce(lambda word, pair: word.replace(*pair), _NAMES.items(), name)
        if ".in_proj_" in ours:  # OpenAI's query, key and value are one tensor
            parts = zip("qkv", tensor.chunk(3), strict=True)
            state |= {ours.replace(".in_proj_", f".{part}_proj."): third for part, third in parts}
        else:
            state[ours] = tensor.T if ours == "visual_projection.weight" else tensor
    return state
