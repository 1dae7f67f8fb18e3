"""How like a style's reference images an image is, in the eyes of two style encoders, CSD and SE.

CSD is OpenAI's ViT-L/14, trained further, with a matrix to style vectors for a projection; SE is a CLIP of
transformers'.
"""

from __future__ import annotations

import argparse
import functools
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from eval_models.encoders.encoder import Encoder, NotMeasured, to_device
from eval_models.encoders.pixels import crop_centre, resize_shortest, to_floats
from eval_models.encoders.weights import does_not_load, find, load_bfloat16
from imageevalkit.benchmark.question import Question
from imageevalkit.errors import CellFailure
from imageevalkit.images import sha256_file
from imageevalkit.weights import WeightsSource

_BACKBONE, _STYLE_HEAD = "backbone.", "last_layer_style"
_CLIP_BACKBONE, _CLIP_PROJECTION = "visual.", "visual.proj"
_HEAD_WIDTH = 64  # of every CLIP vision transformer of OpenAI's; no tensor tells it
# names of transformers by those of OpenAI's checkpoints; those of modules lack "weight" and "bias"
_TENSORS = {
    "class_embedding": "embeddings.class_embedding",
    "positional_embedding": "embeddings.position_embedding.weight",
    "conv1.weight": "embeddings.patch_embedding.weight",
}
_MODULES = {"ln_pre.": "pre_layrnorm.", "ln_post.": "post_layernorm."}
_LAYER_MODULES = {
    "ln_1.": "layer_norm1.",
    "attn.out_proj.": "self_attn.out_proj.",
    "ln_2.": "layer_norm2.",
    "mlp.c_fc.": "mlp.fc1.",
    "mlp.c_proj.": "mlp.fc2.",
    "attn.in_proj_": "self_attn.{}_proj.",  # query, key and value are one tensor there
}
_LAYER = re.compile(r"transformer\.resblocks\.(\d+)\.")


class StyleEncoder(Encoder):
    """Asked by a message of a picture and the name of a style.

    ``references`` are the files of the styles' reference vectors: "csd" (CSD_embed.pt) and "se" (SE_embed.pt), each
    ``{style: (references, width)}``. An answer holds the dot products with those of its style: {"csd":
    […], "se": […], "se_exact": […]}. Those of CSD are float32's, "se" is bfloat16's throughout as the official code
    has it, and "se_exact" is float32's of the same bfloat16 vectors.
    """

    name = "csd+se"

    def __init__(self, references: Mapping[str, Path | str], **options: Any) -> None:
        super().__init__(**options)
        self._files = {name: Path(references[name]) for name in ("csd", "se")}

    @property
    def identity(self) -> dict[str, Any]:
        try:
            references = {name: sha256_file(path) for name, path in self._files.items()}
        except OSError as error:
            raise CellFailure(f"encoders: {error.filename} cannot be read ({error.strerror})") from error
        checkpoint, clip = self._csd
        return {
            "encoder": "style",
            "weights": {
                "csd": checkpoint.identity,
                "csd_clip": clip.identity if clip else "unused",
                "se": self._se.identity,
            },
            "precision": {"csd": "float32", "se": "bfloat16"},
            "references": references,
        }

    def load(self, questions: Sequence[Question], device: str) -> _Models:
        import torch

        csd_references = load_references(self._files["csd"], torch.float32, device)
        se_references = load_references(self._files["se"], torch.bfloat16, device)
        if csd_references.keys() != se_references.keys():
            raise CellFailure(
                f"encoders: {self._files['csd']} and {self._files['se']} do not have the same styles"
            )
        csd, se = load_csd(self._csd, device), load_se(self._se, device)
        pairs = (csd_references, csd), (se_references, se)
        for path, (references, model) in zip(self._files.values(), pairs, strict=True):
            widths = {vectors.shape[-1] for vectors in references.values()}
            if widths != {model.width}:
                raise CellFailure(
                    f"encoders: the vectors in {path} have {', '.join(map(str, sorted(widths)))} numbers, those "
                    f"of the encoder {model.width}: it is not the encoder that made them"
                )
        return _Models(csd, se, csd_references, se_references, device)

    @functools.cached_property
    def _csd(self) -> CsdWeights:
        return find_csd(self.weights)

    @functools.cached_property
    def _se(self) -> WeightsSource:
        return find("se", self.weights)


def load_references(path: Path, dtype: Any, device: str) -> dict[str, Any]:
    """Tensors (references, width) by style. Raises CellFailure: the file does not load."""
    import torch

    try:
        # it was saved on a GPU
        loaded = torch.load(path, map_location="cpu", weights_only=True)
        return {style: vectors.to(device, dtype) for style, vectors in loaded.items()}
    except Exception as error:  # a missing or damaged file, or anything else in its place
        raise does_not_load(WeightsSource(str(path), None, {}), error) from error


class _Models(NamedTuple):
    csd: StyleModel
    se: StyleModel
    csd_references: Mapping[str, Any]
    se_references: Mapping[str, Any]
    device: str

    def prepare(self, image: Image.Image) -> tuple[Any, Any]:
        """What each encoder takes of ``image``, in the way of the library that its authors used."""
        resized = resize_shortest(image, self.csd.image_size)
        csd = to_floats(crop_centre(resized, self.csd.image_size, "torchvision"))
        if self.se.image_size != self.csd.image_size:
            resized = resize_shortest(image, self.se.image_size)
        return csd, to_floats(crop_centre(resized, self.se.image_size, "transformers"))

    def forward(self, batch: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Style vectors (1, width) of both encoders, for each image."""
        csd, se = (
            model.style_vectors(to_device(list(pixels), self.device)).split(1)
            for model, pixels in zip((self.csd, self.se), zip(*batch, strict=True), strict=True)
        )
        return list(zip(csd, se, strict=True))

    def measure(self, question: Question, features: tuple[Any, Any]) -> dict[str, list[float]]:
        """The dot products with the references of the question's style."""
        style = question.text
        if style not in self.csd_references:
            raise NotMeasured(f"there are no reference vectors of the style '{style}'")
        csd, se = features
        references = self.se_references[style]
        products = {
            "csd": csd @ self.csd_references[style].T,
            # both are bfloat16: so is each product, in steps of 0.002 to 0.004 where scores are
            "se": se @ references.T,
            "se_exact": se.float() @ references.float().T,
        }
        return {name: found[0].tolist() for name, found in products.items()}


class StyleModel:
    """A ``CLIPVisionModelWithProjection`` whose projection gives style vectors of ``width`` numbers.

    ``image_size`` in pixels is the side of what it takes.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.image_size: int = model.config.image_size
        self.width: int = model.config.projection_dim

    def style_vectors(self, pixels: Any) -> Any:
        """(batch, width), each of length 1 in the model's precision; ``pixels`` (batch, 3, size, size), float32."""
        import torch

        embeds = self._model(pixel_values=pixels.to(self._model.dtype)).image_embeds
        return torch.nn.functional.normalize(embeds, dim=-1, p=2)


def load_se(source: WeightsSource, device: str) -> StyleModel:
    """SE in bfloat16. Raises CellFailure: it does not load, or lacks weights."""
    model, loading = load_bfloat16(source, "CLIPVisionModelWithProjection", device)
    missing = sorted(loading["missing_keys"])
    if missing:
        # transformers only warns, and an encoder with random weights answers all the same
        raise CellFailure(
            f"encoders: {source.model_path} lacks {len(missing)} of its weights (first: {missing[0]}); "
            "download it anew"
        )
    return StyleModel(model)


class CsdWeights(NamedTuple):
    """``clip`` is OpenAI's archive, or None where ``checkpoint`` holds all that is needed."""

    checkpoint: WeightsSource
    clip: WeightsSource | None


def find_csd(places: Mapping[str, str]) -> CsdWeights:
    """The files that CSD is made of. Of the checkpoint only the names of its tensors are read.

    Raises:
        CellFailure: one is missing, or the checkpoint is none.
    """
    checkpoint = find("csd", places)
    state = _checkpoint_state(checkpoint)
    whole = not _missing(_below(_BACKBONE, state)) and _STYLE_HEAD in state
    return CsdWeights(checkpoint, None if whole else find("csd_clip", places))


def load_csd(weights: CsdWeights, device: str) -> StyleModel:
    """CSD in float32.

    The checkpoint's tensors take the place of the archive's, and the archive's projection that of a missing
    style head, as the official code lets ``load_state_dict(strict=False)`` do.

    Raises:
        CellFailure: a file does not load, or both together are no CSD encoder.
    """
    state = _checkpoint_state(weights.checkpoint)
    visual, head = _below(_BACKBONE, state), state.get(_STYLE_HEAD)
    if weights.clip is not None:
        archive = _archive_state(weights.clip)
        visual = {**_below(_CLIP_BACKBONE, archive), **visual}
        head = archive.get(_CLIP_PROJECTION) if head is None else head
    missing = _missing(visual) + ([] if head is not None else [_STYLE_HEAD])
    if missing:
        raise CellFailure(
            f"encoders: {weights.checkpoint.model_path} is no CSD checkpoint: {len(missing)} of its tensors are "
            f"missing (first: {missing[0]}); download it anew"
        )
    try:
        return StyleModel(_openai_model(visual, head).to(device))
    except Exception as error:  # shapes that do not fit together, or no memory left on the device
        raise does_not_load(weights.checkpoint, error) from error


def _below(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def _checkpoint_state(source: WeightsSource) -> dict[str, Any]:
    """The model's tensors, read only when they are used where the file's format allows that.

    The training script stored its options and optimizers beside them: an ``argparse.Namespace``, and learning rates
    that are numpy scalars. These classes are allowed; a file that needs others is refused, since it could run
    any code.
    """
    import numpy as np
    import torch

    # numpy 2 has moved what older files name so
    scalar = np.float64(0).__reduce__()[0]
    scalars = [(scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]
    path = source.model_path
    try:
        with torch.serialization.safe_globals(
            [argparse.Namespace, np.dtype, type(np.dtype("float64")), *scalars]
        ):
            saved = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        return {name.removeprefix("module."): tensor for name, tensor in saved["model_state_dict"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise CellFailure(
            f"encoders: {path} is no CSD checkpoint (it has no tensors by name under 'model_state_dict'); "
            "download it anew"
        ) from error
    except Exception as error:  # a damaged file, or one that weights_only refuses
        raise does_not_load(source, error) from error


def _archive_state(source: WeightsSource) -> dict[str, Any]:
    """All tensors of OpenAI's TorchScript archive, or of a plain state dict that was made of it."""
    import torch

    path = source.model_path
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if any(name.endswith("/constants.pkl") for name in archive.namelist()):
                    return dict(torch.jit.load(path, map_location="cpu").state_dict())
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # a damaged file, or anything else in its place
        raise does_not_load(source, error) from error


def _layers(visual: Mapping[str, Any]) -> int:
    return 1 + max((int(found[1]) for name in visual if (found := _LAYER.match(name))), default=0)


def _names(visual: Mapping[str, Any]) -> dict[str, str]:
    """transformers' names by OpenAI's, of an encoder with as many layers as ``visual``, one at least."""
    modules = dict(_MODULES)
    for n in range(_layers(visual)):
        for theirs, ours in _LAYER_MODULES.items():
            modules[f"transformer.resblocks.{n}.{theirs}"] = f"encoder.layers.{n}.{ours}"
    kinds = ("weight", "bias")
    return _TENSORS | {
        f"{theirs}{kind}": f"{ours}{kind}" for theirs, ours in modules.items() for kind in kinds
    }


def _missing(visual: Mapping[str, Any]) -> list[str]:
    return [name for name in _names(visual) if name not in visual]


def _openai_model(visual: Mapping[str, Any], projection: Any) -> Any:
    """A ``CLIPVisionModelWithProjection`` in float32 with OpenAI's weights ``visual``, its shape that of the tensors.

    ``projection``: (width, features). Raises RuntimeError: shapes do not fit together.
    """
    import torch
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    patches = visual["conv1.weight"]
    width, patch = patches.shape[0], patches.shape[-1]
    positions = visual["positional_embedding"].shape[0]
    config = CLIPVisionConfig(
        hidden_size=width,
        intermediate_size=visual["transformer.resblocks.0.mlp.c_fc.weight"].shape[0],
        num_hidden_layers=_layers(visual),
        num_attention_heads=width // _HEAD_WIDTH,
        # one position is the class token's
        image_size=round((positions - 1) ** 0.5) * patch,
        patch_size=patch,
        hidden_act="quick_gelu",
        projection_dim=projection.shape[1],
    )
    model = CLIPVisionModelWithProjection(config)
    state: dict[str, Any] = {}
    for theirs, ours in _names(visual).items():
        parts = visual[theirs].chunk(3) if "{}" in ours else [visual[theirs]]
        state |= {ours.format(part): tensor for part, tensor in zip("qkv", parts, strict=False)}
    model.vision_model.load_state_dict(state)
    # turned, not copied: the product with it has the bits of the official one
    model.visual_projection.weight = torch.nn.Parameter(projection.T, requires_grad=False)
    return model.float().eval()
