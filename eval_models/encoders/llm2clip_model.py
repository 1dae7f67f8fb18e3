"""LLM2CLIP's image encoder, and the adapter that takes an LLM's text vector to where its images are."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from eval_models.encoders.unfit import raise_unfit
from eval_models.encoders.weights import does_not_load
from eval_models.weights_source import WeightsSource
from imageevalkit.errors import CellFailure

if TYPE_CHECKING:
    import torch

    State = Mapping[str, torch.Tensor]

_ADAPTER = "text_adapter.adaptor."
_WEIGHTS_FILES = ("model.safetensors", "pytorch_model.bin")
# Training's temperature, and what older versions of transformers saved of a counter: no feature depends on them.
_NOT_NEEDED = frozenset(("logit_scale", "vision_model.embeddings.position_ids"))
# the part of the configuration that a vision tower is made of; its training and export do not concern us
_VISION_SETTINGS = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_channels"),
    *("image_size", "patch_size", "hidden_act", "layer_norm_eps"),
)
_EPS = 1e-5


class _Linear(NamedTuple):
    weight: torch.Tensor
    bias: torch.Tensor

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.nn.functional.linear(values, self.weight, self.bias)


class _Norm(NamedTuple):
    weight: torch.Tensor
    bias: torch.Tensor

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """In float32, as autocast has it on a GPU; on the CPU it would refuse weights of another precision."""
        import torch

        normed = torch.nn.functional.layer_norm(
            values.float(), self.weight.shape, self.weight.float(), self.bias.float(), _EPS
        )
        return normed.to(values.dtype)


class _Block(NamedTuple):
    norm: _Norm
    widen: _Linear
    narrow: _Linear

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        import torch

        return values + self.narrow(torch.nn.functional.gelu(self.widen(self.norm(values))))


class TextAdapter(NamedTuple):
    """``get_text_features`` of the hub's model: length 1, residual blocks, a norm, a projection."""

    blocks: Sequence[_Block]
    norm: _Norm
    projection: _Linear

    def __call__(self, vectors: torch.Tensor) -> torch.Tensor:
        """(texts, LLM's width) to (texts, features)."""
        import torch

        values = torch.nn.functional.normalize(vectors, p=2, dim=-1)
        for block in self.blocks:
            values = block(values)
        return self.projection(self.norm(values))

    @classmethod
    def of(cls, state: State) -> TextAdapter:
        """From tensors of the names and shapes of :func:`_adapter_shapes`."""

        def pair(module: str) -> tuple[torch.Tensor, torch.Tensor]:
            return state[f"{_ADAPTER}{module}.weight"], state[f"{_ADAPTER}{module}.bias"]

        depth = _depth(state)
        blocks = [
            _Block(_Norm(*pair(f"{i}.ln")), _Linear(*pair(f"{i}.fn.0")), _Linear(*pair(f"{i}.fn.3")))
            for i in range(depth)
        ]
        return cls(blocks, _Norm(*pair(str(depth))), _Linear(*pair(str(depth + 1))))


class Llm2Clip:
    """Both halves in one precision. ``image_size`` in pixels, ``text_width`` in numbers, are what they take."""

    def __init__(self, vision: Any, adapter_state: State) -> None:
        self._vision = vision.eval()
        self._state = dict(adapter_state)
        self._adapter = TextAdapter.of(self._state)
        self.image_size: int = vision.config.image_size
        self.text_width = len(self._adapter.norm.weight)

    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """(images, features) of ``pixels`` (images, 3, size, size), float32; not of length 1."""
        features: torch.Tensor = self._vision(pixel_values=pixels).image_embeds
        return features

    def text_features(self, vectors: torch.Tensor) -> torch.Tensor:
        """(texts, features) of float32 ``vectors`` (texts, text_width); not of length 1."""
        return self._adapter(vectors)

    def to(self, device: str) -> Llm2Clip:
        """This one on ``device``."""
        return Llm2Clip(self._vision.to(device), {k: v.to(device) for k, v in self._state.items()})

    def in_float32(self) -> Llm2Clip:
        """Another with the same weights that computes in float32."""
        return Llm2Clip(
            copy.deepcopy(self._vision).float(),
            {name: tensor.float() for name, tensor in self._state.items()},
        )


def load_llm2clip(source: WeightsSource, device: str) -> Llm2Clip:
    """The model in bfloat16.

    Not by the hub's own code: transformers 5 lacks a module that it imports. What of the checkpoint is the vision
    tower is transformers' own CLIP, and the adapter is small.

    Raises:
        CellFailure: it does not load, or is another model: nothing of it stays random.
    """
    try:
        import torch

        state = _read_weights(source)
        vision = _vision_model(source, state)
        vision_state = {name: tensor for name, tensor in state.items() if name in vision.state_dict()}
        _check(source, state, vision.state_dict())
        vision.load_state_dict(vision_state)
        adapter = {name: tensor for name, tensor in state.items() if name.startswith(_ADAPTER)}
        return Llm2Clip(
            vision.to(torch.bfloat16), {name: tensor.to(torch.bfloat16) for name, tensor in adapter.items()}
        ).to(device)
    except CellFailure:
        raise
    except Exception as error:  # of transformers, of the hub, of the disk, of the device
        raise does_not_load(source, error) from error


def _read_weights(source: WeightsSource) -> dict[str, torch.Tensor]:
    import torch
    from safetensors.torch import load_file
    from transformers.utils import cached_file

    failure: OSError | None = None
    for name in _WEIGHTS_FILES:
        try:
            path = str(cached_file(source.model_path, name, revision=source.commit))
        except OSError as error:  # transformers' word for what is not there
            failure = failure or error
            continue
        if name.endswith(".safetensors"):
            return load_file(path)
        state: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        return state
    assert failure is not None
    raise failure


def _vision_model(source: WeightsSource, state: State) -> Any:
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection
    from transformers.utils import cached_file

    config = Path(str(cached_file(source.model_path, "config.json", revision=source.commit)))
    given = json.loads(config.read_text(encoding="utf-8"))["vision_config"]
    settings = {name: given[name] for name in _VISION_SETTINGS if name in given}
    projection = state.get("visual_projection.weight")
    if projection is not None:
        settings["projection_dim"] = projection.shape[0]
    return CLIPVisionModelWithProjection(CLIPVisionConfig(**settings))


def _check(source: WeightsSource, state: State, vision: State) -> None:
    names = {*vision, *_adapter_names(_depth(state))}
    missing = sorted(names - {*state})
    raise_unfit(source, "an LLM2CLIP model", missing, sorted({*state} - names - _NOT_NEEDED), ())
    shapes = {name: tensor.shape for name, tensor in vision.items()} | _adapter_shapes(state)
    odd = sorted(name for name, shape in shapes.items() if tuple(state[name].shape) != tuple(shape))
    raise_unfit(source, "an LLM2CLIP model", (), (), odd)


def _depth(state: State) -> int:
    """The number of residual blocks; after them come a norm and the projection."""
    return max(1, sum(f"{_ADAPTER}{i}.fn.0.weight" in state for i in range(len(state))))


def _adapter_names(depth: int) -> list[str]:
    modules = [f"{i}.{part}" for i in range(depth) for part in ("ln", "fn.0", "fn.3")]
    modules += [str(depth), str(depth + 1)]
    return [f"{_ADAPTER}{module}.{kind}" for module in modules for kind in ("weight", "bias")]


def _adapter_shapes(state: State) -> dict[str, Sequence[int]]:
    """Of an adapter whose inner widths are those of ``state``, and whose features are as many as an image's."""
    depth = _depth(state)
    width, features = len(state[f"{_ADAPTER}{depth}.weight"]), len(state["visual_projection.weight"])
    shapes: dict[str, Sequence[int]] = {}
    for i in range(depth):
        inner = len(state[f"{_ADAPTER}{i}.fn.0.weight"])
        shapes |= {f"{i}.fn.0.weight": (inner, width), f"{i}.fn.0.bias": (inner,)}
        shapes |= {f"{i}.fn.3.weight": (width, inner), f"{i}.fn.3.bias": (width,)}
        shapes |= {f"{i}.ln.weight": (width,), f"{i}.ln.bias": (width,)}
    shapes |= {f"{depth}.weight": (width,), f"{depth}.bias": (width,)}
    shapes |= {f"{depth + 1}.weight": (features, width), f"{depth + 1}.bias": (features,)}
    return {f"{_ADAPTER}{name}": shape for name, shape in shapes.items()}
