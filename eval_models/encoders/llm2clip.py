"""How near an image is to a reference answer in the eyes of LLM2CLIP: OneIG's reasoning."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from eval_models.encoders.encoder import Encoder, choose_device, free_memory, to_device
from eval_models.encoders.pixels import clip_pixels
from eval_models.encoders.weights import does_not_load, find, raise_unfit
from imageevalkit.benchmark.question import Question
from imageevalkit.errors import CellFailure
from imageevalkit.weights import WeightsSource, first_line

if TYPE_CHECKING:
    import numpy as np
    import torch
    from PIL import Image

    State = Mapping[str, torch.Tensor]

_ADAPTER = "text_adapter.adaptor."
_WEIGHTS_FILES = ("model.safetensors", "pytorch_model.bin")
# the temperature, and what older versions of transformers saved of a counter: no feature depends on them
_TRAINING_ONLY = frozenset(("logit_scale", "vision_model.embeddings.position_ids"))
# the part of the configuration that a vision tower is made of; its training and export do not concern us
_VISION_SETTINGS = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_channels"),
    *("image_size", "patch_size", "hidden_act", "layer_norm_eps"),
)
MAX_TOKENS = 512
_HEADER = "<|start_header_id|>user<|end_header_id|>\n\n"
_END = "<|eot_id|>"
# The official code puts this before the text and takes it out again; in a text it would be taken out as well.
_MARK = "!@#$%^&*()"
# of a causal language model; the encoder is without a head
_NOT_NEEDED = frozenset(("lm_head.weight", "rotary_emb.inv_freq"))


class Llm2ClipEncoder(Encoder):
    """Asked by a message of a picture and the reference answer.

    An answer holds two cosines: "official" in the precision of the official code (weights in bfloat16,
    computed under torch's autocast, so that a score has steps of 0.0002 around 0.3), and "exact" from the same
    bfloat16 weights and LLM states, everything after them in float32.
    """

    name = "llm2clip"
    packages = ("tokenizers", "safetensors")

    @property
    def identity(self) -> dict[str, Any]:
        """The precision of "official" differs between GPU and CPU."""
        autocast = "float16" if choose_device(self.device).startswith("cuda") else "bfloat16"
        return {
            "encoder": "llm2clip",
            "weights": {"llm2clip_vision": self._vision.identity, "llm2clip_text": self._llm.identity},
            "precision": {"weights": "bfloat16", "official": autocast, "exact": "float32"},
        }

    def load(self, questions: Sequence[Question], device: str) -> _Models:
        """All texts are encoded first, each once: the LLM's memory is free for the images."""
        vision = self._vision
        vectors = encode_texts([question.text for question in questions], self._llm, device)
        official = load_llm2clip(vision, device)
        models = _Models(official, official.in_float32(), {}, device)
        models.texts.update({text: models.text_features(found, self._llm) for text, found in vectors.items()})
        return models

    @functools.cached_property
    def _vision(self) -> WeightsSource:
        return find("llm2clip_vision", self.weights)

    @functools.cached_property
    def _llm(self) -> WeightsSource:
        return find("llm2clip_text", self.weights)


class _Features(NamedTuple):
    """(1, features) of one image or text, of length 1, on the device: under autocast, and in float32."""

    official: torch.Tensor
    exact: torch.Tensor


class _Models(NamedTuple):
    official: Llm2Clip
    exact: Llm2Clip
    texts: dict[str, _Features]
    device: str

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

    def measure(self, question: Question, features: _Features) -> dict[str, float]:
        """Both cosines of the picture and its reference answer."""
        text = self.texts[question.text]
        with self.autocast():
            official = features.official @ text.official.T
        return {"official": official.item(), "exact": (features.exact @ text.exact.T).item()}

    def autocast(self) -> torch.amp.autocast_mode.autocast:
        """The official code's, with the precision that torch chooses for the kind of device."""
        import torch

        return torch.amp.autocast(torch.device(self.device).type)


def _of_length_1(features: torch.Tensor) -> torch.Tensor:
    # in place, as the official code: the quotient keeps the precision of the features
    features /= features.norm(dim=-1, keepdim=True)
    return features


class Llm2Clip:
    """Both halves in one precision. ``image_size`` in pixels, ``text_width`` in numbers, are what they take."""

    def __init__(self, vision: Any, adapter: Any) -> None:
        self._vision = vision.eval()
        self._adapter = adapter
        self.image_size: int = vision.config.image_size
        self.text_width: int = adapter[-1].in_features

    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """(images, features) of ``pixels`` (images, 3, size, size), float32; not of length 1."""
        features: torch.Tensor = self._vision(pixel_values=pixels).image_embeds
        return features

    def text_features(self, vectors: torch.Tensor) -> torch.Tensor:
        """(texts, features) of float32 ``vectors`` (texts, text_width); not of length 1."""
        import torch

        features: torch.Tensor = self._adapter(torch.nn.functional.normalize(vectors, p=2, dim=-1))
        return features

    def in_float32(self) -> Llm2Clip:
        """Another with the same weights that computes in float32."""
        return Llm2Clip(copy.deepcopy(self._vision).float(), copy.deepcopy(self._adapter).float())


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
        vision, adapter = _vision_model(source, state), _text_adapter(state)
        of_adapter = {f"{_ADAPTER}{name}": tensor for name, tensor in adapter.state_dict().items()}
        _check(source, state, {**vision.state_dict(), **of_adapter})
        vision.load_state_dict({name: state[name] for name in vision.state_dict()})
        adapter.load_state_dict({name: state[f"{_ADAPTER}{name}"] for name in adapter.state_dict()})
        return Llm2Clip(*(half.to(device, torch.bfloat16) for half in (vision, adapter)))
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


def _text_adapter(state: State) -> Any:
    """``get_text_features`` of the hub's model after its input has length 1: residual blocks, a norm, a projection.

    Its weights are still to be loaded. Inner widths are those of ``state``, and its features are as many as an image's.
    """
    from torch import nn

    class Norm(nn.LayerNorm):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            # in float32, as autocast has it on a GPU; on the CPU it would refuse weights of another precision
            weight, bias = self.weight.float(), self.bias.float()
            normed = nn.functional.layer_norm(values.float(), self.normalized_shape, weight, bias, self.eps)
            return normed.to(values.dtype)

    class Block(nn.Module):
        def __init__(self, width: int, inner: int) -> None:
            super().__init__()
            self.ln = Norm(width)
            # the names of the checkpoint: between the two is the dropout of its training
            self.fn = nn.Sequential(
                nn.Linear(width, inner), nn.GELU(), nn.Identity(), nn.Linear(inner, width)
            )

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            blocked: torch.Tensor = values + self.fn(self.ln(values))
            return blocked

    def length(name: str) -> int:
        return len(state[name]) if name in state else 1  # what is missing is told by name

    depth = max(1, sum(f"{_ADAPTER}{i}.fn.0.weight" in state for i in range(len(state))))
    width = length(f"{_ADAPTER}{depth}.weight")
    blocks = [Block(width, length(f"{_ADAPTER}{i}.fn.0.weight")) for i in range(depth)]
    return nn.Sequential(*blocks, Norm(width), nn.Linear(width, length("visual_projection.weight")))


def _check(source: WeightsSource, state: State, expected: State) -> None:
    missing = sorted({*expected} - {*state})
    unexpected = sorted({*state} - {*expected} - _TRAINING_ONLY)
    raise_unfit(source, "an LLM2CLIP model", missing, unexpected)
    odd = sorted(name for name, tensor in expected.items() if state[name].shape != tensor.shape)
    raise_unfit(source, "an LLM2CLIP model", (), (), odd)


class Vectors(NamedTuple):
    """What the LLM says of a text, (width,) each, float32 on the CPU.

    ``official`` is the mean of its bfloat16 states rounded to bfloat16, ``exact`` their mean in float32.
    """

    official: torch.Tensor
    exact: torch.Tensor


class Tokens(NamedTuple):
    """The ids of a wrapped text, and how many of its last states are its vector's mean."""

    ids: Sequence[int]
    pooled: int


def encode_texts(texts: Sequence[str], source: WeightsSource, device: str) -> dict[str, Vectors]:
    """The vectors of each different one of ``texts``. The LLM is loaded for it and freed again.

    One text at a time, as the official code: a text's vector then has the same bits whatever else is asked, in a
    resumed run too. A batch would save seconds of a run, for these texts are long enough to keep a GPU busy.

    Raises:
        CellFailure: it does not load, is not all there, or does not fit into memory.
    """
    import torch

    tokenizer = load_tokenizer(source)
    model = load_llama(source, device)
    vectors: dict[str, Vectors] = {}
    try:
        with torch.inference_mode():
            for text in dict.fromkeys(texts):
                tokens = tokenize(tokenizer, text)
                vectors[text] = _pool(last_states(model, tokens.ids), tokens.pooled)
    except torch.OutOfMemoryError as error:
        raise CellFailure(
            f"encoders: too little GPU memory is free for {source.model_path} (about 17 GB); give the job a "
            "larger GPU (EVAL_GPU_MAP)"
        ) from error
    except RuntimeError as error:
        raise CellFailure(f"encoders: {source.model_path} failed: {first_line(error)}") from error
    finally:
        del model
        free_memory()
    return vectors


def load_tokenizer(source: WeightsSource) -> Any:
    """The checkpoint's own fast tokenizer, which puts the first token itself.

    Raises:
        CellFailure: there is none, or it does not load.
    """
    folder = Path(source.model_path)
    if folder.is_dir() and not (folder / "tokenizer.json").is_file():
        raise CellFailure(f"encoders: {folder} lacks tokenizer.json; download the checkpoint whole")
    try:
        from transformers import PreTrainedTokenizerFast

        # by its class: AutoTokenizer would choose by the model's type, and that code is not what wrote the file
        return PreTrainedTokenizerFast.from_pretrained(source.model_path, revision=source.commit)
    except Exception as error:  # of transformers, of the hub, of the disk
        raise does_not_load(source, error) from error


def tokenize(tokenizer: Any, text: str) -> Tokens:
    """``text`` as a user's turn of Llama 3, cut on the right to 512 tokens; its own tokens and the end are pooled.

    How many those are is counted by themselves, and then taken from the right, as the official code does: where
    the turn is cut, that reaches to tokens before the text. (Its loop that shortens texts word by word never runs:
    it counts after cutting.)
    """
    turn = text.rstrip() + _END
    limits = {"truncation": True, "max_length": MAX_TOKENS, "padding": False}
    ids = tokenizer(_HEADER + turn.replace(_MARK, ""), **limits)["input_ids"]
    own = tokenizer(turn.split(_MARK)[0], **limits, add_special_tokens=False)["input_ids"]
    return Tokens(ids, len(own))


def load_llama(source: WeightsSource, device: str) -> Any:
    """The LLM in bfloat16.

    transformers' own class on purpose, not the code of the hub's repository: that makes a Llama bidirectional by
    overriding ``_update_causal_mask``, which today's transformers does not call: it would be causal, and every score
    wrong without a word. Here :func:`last_states` passes the mask itself.

    Raises:
        CellFailure: it does not load, or lacks weights.
    """
    try:
        import torch
        import transformers

        # its bars and its advice to programmers would garble the log of the job
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        model, loaded = transformers.LlamaModel.from_pretrained(
            source.model_path,
            revision=source.commit,
            dtype=torch.bfloat16,
            # an implementation that takes a mask of our own, as the official runs use
            attn_implementation="sdpa",
            output_loading_info=True,
            # told by name below
            ignore_mismatched_sizes=True,
        )
        _check_loaded(source, loaded)
        return model.to(device).eval()
    except CellFailure:
        raise
    except Exception as error:  # of transformers, of the hub, of the disk, of the device
        raise does_not_load(source, error) from error


def last_states(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """The last hidden states (tokens, width) of a text of token ``ids``, every token seeing all others."""
    import torch

    # (batch, heads, from, to): transformers uses a mask of four dimensions as it is, any other becomes causal
    mask = torch.zeros((1, 1, len(ids), len(ids)), dtype=model.dtype, device=model.device)
    found = model(
        input_ids=torch.tensor([ids], device=model.device), attention_mask=mask, use_cache=False
    ).last_hidden_state
    states: torch.Tensor = found[0]
    return states


def _pool(states: torch.Tensor, tokens: int) -> Vectors:
    last = states[-tokens:]
    return Vectors(last.mean(dim=0).float().cpu(), last.float().mean(dim=0).cpu())


def _check_loaded(source: WeightsSource, loaded: dict[str, Any]) -> None:
    missing = sorted(loaded["missing_keys"])
    unexpected = sorted({*loaded["unexpected_keys"]} - _NOT_NEEDED)
    odd_shapes = sorted(str(found[0]) for found in loaded["mismatched_keys"])
    raise_unfit(source, "a Llama encoder", missing, unexpected, odd_shapes)
