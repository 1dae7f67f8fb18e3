"""The style encoder CSD: OpenAI's ViT-L/14, trained further, with a matrix to style vectors for a projection."""

from __future__ import annotations

import argparse
import re
import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple

from eval_models.encoders.weights import does_not_load, find
from imageevalkit.errors import CellFailure
from imageevalkit.weights import WeightsSource

_BACKBONE, _STYLE_HEAD = "backbone.", "last_layer_style"
_CLIP_BACKBONE, _CLIP_PROJECTION = "visual.", "visual.proj"
_HEAD_WIDTH = 64  # of every CLIP vision transformer of OpenAI's; no tensor tells it
# names of transformers by those of OpenAI's checkpoints
_TENSORS = {
    "class_embedding": "embeddings.class_embedding",
    "positional_embedding": "embeddings.position_embedding.weight",
    "conv1.weight": "embeddings.patch_embedding.weight",
}
_MODULES = {"ln_pre": "pre_layrnorm", "ln_post": "post_layernorm"}
_LAYER_MODULES = {
    "ln_1": "layer_norm1",
    "attn.out_proj": "self_attn.out_proj",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
# query, key and value are one tensor there, in this order
_PACKED = ("q_proj", "k_proj", "v_proj")
_LAYER = re.compile(r"transformer\.resblocks\.(\d+)\.")


class CsdWeights(NamedTuple):
    """``clip`` is OpenAI's archive, or None where ``checkpoint`` holds all that is needed."""

    checkpoint: WeightsSource
    clip: WeightsSource | None

    @property
    def identity(self) -> dict[str, Any]:
        """What they are, by name; "unused" for an archive that has no part."""
        clip = "unused" if self.clip is None else self.clip.identity
        return {"csd": self.checkpoint.identity, "csd_clip": clip}


class Csd:
    """``image_size`` in pixels is the side of what it takes; ``width`` is the length of its style vectors."""

    def __init__(self, model: Any, style_head: Any, device: str) -> None:
        self._model = model.to(device)
        self._style_head = style_head.float().to(device)
        self.image_size: int = model.config.image_size
        self.width: int = style_head.shape[1]

    def style_vectors(self, pixels: Any) -> Any:
        """(batch, width), float32, each of length 1; ``pixels`` (batch, 3, size, size), float32."""
        import torch

        vectors = self._model(pixel_values=pixels).pooler_output @ self._style_head
        return torch.nn.functional.normalize(vectors, dim=1, p=2)


def find_csd(places: Mapping[str, str]) -> CsdWeights:
    """The files that the encoder is made of. Of the checkpoint only the names of its tensors are read.

    Raises:
        CellFailure: one is missing, or the checkpoint is none.
    """
    checkpoint = find("csd", places)
    state = _checkpoint_state(checkpoint)
    whole = not missing_names(_below(_BACKBONE, state)) and _STYLE_HEAD in state
    return CsdWeights(checkpoint, None if whole else find("csd_clip", places))


def load_csd(weights: CsdWeights, device: str) -> Csd:
    """The encoder, in float32.

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
    missing = missing_names(visual) + ([] if head is not None else [_STYLE_HEAD])
    if missing:
        raise CellFailure(
            f"encoders: {weights.checkpoint.model_path} is no CSD checkpoint: {len(missing)} of its tensors are "
            f"missing (first: {missing[0]}); download it anew"
        )
    try:
        return Csd(vision_model(visual), head, device)
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
    import torch

    path = source.model_path
    try:
        with torch.serialization.safe_globals(_harmless()):
            saved = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        state = saved["model_state_dict"]
        return {name.removeprefix("module."): tensor for name, tensor in state.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise CellFailure(
            f"encoders: {path} is no CSD checkpoint (it has no tensors by name under 'model_state_dict'); "
            "download it anew"
        ) from error
    except Exception as error:  # a damaged file, or one that weights_only refuses
        raise does_not_load(source, error) from error


def _harmless() -> list[Any]:
    import numpy as np

    # numpy 2 has moved what older files name so
    scalar = np.float64(0).__reduce__()[0]
    return [
        argparse.Namespace,
        np.dtype,
        type(np.dtype("float64")),
        (scalar, "numpy.core.multiarray.scalar"),
        (scalar, "numpy._core.multiarray.scalar"),
    ]


def _archive_state(source: WeightsSource) -> dict[str, Any]:
    """All tensors of OpenAI's TorchScript archive, or of a plain state dict that was made of it."""
    import torch

    path = source.model_path
    try:
        if _is_torchscript(path):
            return dict(torch.jit.load(path, map_location="cpu").state_dict())
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # a damaged file, or anything else in its place
        raise does_not_load(source, error) from error


def _is_torchscript(path: str) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def layers_of(visual: Mapping[str, Any]) -> int:
    """How many transformer layers ``visual`` has: one more than the highest number in its names."""
    return max((int(found[1]) + 1 for name in visual if (found := _LAYER.match(name))), default=0)


def missing_names(visual: Mapping[str, Any]) -> list[str]:
    """What ``visual`` (tensors by the names below "visual.") lacks of an image encoder without its projection."""
    return [name for name in _names(max(1, layers_of(visual))) if name not in visual]


def _names(layers: int) -> dict[str, str]:
    """Our name of each tensor of an encoder with so many layers, by theirs; a packed one has {} for its parts."""
    modules, packed = dict(_MODULES), {}
    for n in range(layers):
        theirs, ours = f"transformer.resblocks.{n}", f"encoder.layers.{n}"
        modules |= {f"{theirs}.{name}": f"{ours}.{our_name}" for name, our_name in _LAYER_MODULES.items()}
        for kind in ("weight", "bias"):
            packed[f"{theirs}.attn.in_proj_{kind}"] = f"{ours}.self_attn.{{}}.{kind}"
    named = {
        f"{theirs}.{kind}": f"{ours}.{kind}"
        for theirs, ours in modules.items()
        for kind in ("weight", "bias")
    }
    return {**_TENSORS, **named, **packed}


def vision_model(visual: Mapping[str, Any]) -> Any:
    """A ``CLIPVisionModel`` in float32 and evaluation mode with the weights ``visual``.

    Its shape is that of the tensors. ``pooler_output`` is what OpenAI's encoder gives without its projection:
    (batch, width).

    Raises:
        KeyError: a tensor is missing.
        RuntimeError: shapes do not fit together.
    """
    from transformers import CLIPVisionConfig, CLIPVisionModel

    patches = visual["conv1.weight"]
    width, patch = patches.shape[0], patches.shape[-1]
    positions = visual["positional_embedding"].shape[0]
    config = CLIPVisionConfig(
        hidden_size=width,
        intermediate_size=visual["transformer.resblocks.0.mlp.c_fc.weight"].shape[0],
        num_hidden_layers=layers_of(visual),
        num_attention_heads=width // _HEAD_WIDTH,
        # one position is the class token's
        image_size=round((positions - 1) ** 0.5) * patch,
        patch_size=patch,
        hidden_act="quick_gelu",
    )
    model = CLIPVisionModel(config)
    model.load_state_dict(_renamed(visual))
    return model.float().eval()


def _renamed(visual: Mapping[str, Any]) -> dict[str, Any]:
    renamed = {}
    for theirs, ours in _names(layers_of(visual)).items():
        if "{}" in ours:
            for part, tensor in zip(_PACKED, visual[theirs].chunk(3), strict=True):
                renamed[ours.format(part)] = tensor
        else:
            renamed[ours] = visual[theirs]
    return renamed
