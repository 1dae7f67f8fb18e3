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
from eval_models.encoders.weights import does_not_load, find, load_bfloat16, raise_unfit
from imageevalkit.benchmark.question import Question
from imageevalkit.errors import CellFailure
from imageevalkit.weights import WeightsSource, first_line

if TYPE_CHECKING:
    import numpy as np
    import torch
    from PIL import Image

    State = Mapping[str, torch.Tensor]

_ADAPTER = "text_adapter.adaptor."
# the temperature, and what older versions of transformers saved of a counter: no feature depends on them
_TRAINING_ONLY = {"logit_scale", "vision_model.embeddings.position_ids"}
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
_NOT_NEEDED = {"lm_head.weight", "rotary_emb.inv_freq"}


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
            "weights": {name: source.identity for name, source in self._sources.items()},
            "precision": {"weights": "bfloat16", "official": autocast, "exact": "float32"},
        }

    def load(self, questions: Sequence[Question], device: str) -> _Models:
        """All texts are encoded first, each once: the LLM's memory is free for the images."""
        vision, llm = self._sources.values()
        vectors = encode_texts([question.text for question in questions], llm, device)
        official = load_llm2clip(vision, device)
        models = _Models(official, official.in_float32(), {}, device)
        models.texts.update({text: models.text_features(found, llm) for text, found in vectors.items()})
        return models

    @functools.cached_property
    def _sources(self) -> dict[str, WeightsSource]:
        return {name: find(name, self.weights) for name in ("llm2clip_vision", "llm2clip_text")}


class Vectors(NamedTuple):
    """Of an image or a text, in both precisions, (1, width) each.

    Those of a text by the LLM are float32 on the CPU: ``official`` is the mean of its bfloat16 states rounded to
    bfloat16, ``exact`` their mean in float32. LLM2CLIP's are of length 1, on its device.
    """

    official: torch.Tensor
    exact: torch.Tensor


class _Models(NamedTuple):
    official: Llm2Clip
    exact: Llm2Clip
    texts: dict[str, Vectors]
    device: str

    def prepare(self, image: Image.Image) -> np.ndarray:
        """What transformers' CLIPImageProcessor makes of ``image`` (RGB)."""
        return clip_pixels(image, self.official.image_size, "transformers")

    def forward(self, batch: list[np.ndarray]) -> list[Vectors]:
        """Each image's."""
        import torch

        pixels = to_device(batch, self.device)
        with self.autocast():
            official = self.official.image_features(pixels)
        # cuDNN would round the patches to TF32 by default
        with torch.backends.cudnn.flags(allow_tf32=False):
            exact = self.exact.image_features(pixels)
        return [Vectors(*both) for both in zip(official.split(1), exact.split(1), strict=True)]

    def text_features(self, vectors: Vectors, source: WeightsSource) -> Vectors:
        """One text's; one at a time, as the official code does."""
        import torch

        official, exact = (found.to(self.device) for found in vectors)
        if official.shape[-1] != self.official.text_width:
            raise CellFailure(
                f"encoders: the text vectors of {source.model_path} have {official.shape[-1]} numbers, LLM2CLIP's "
                f"adapter takes {self.official.text_width}: the two do not belong together"
            )
        try:
            with torch.inference_mode():
                with self.autocast():
                    official = self.official.text_features(official)
                return Vectors(official, self.exact.text_features(exact))
        except RuntimeError as error:  # no memory left
            raise CellFailure(f"encoders: LLM2CLIP's text adapter failed: {first_line(error)}") from error

    def measure(self, question: Question, features: Vectors) -> dict[str, float]:
        """Both cosines of the picture and its reference answer."""
        text = self.texts[question.text]
        with self.autocast():
            official = features.official @ text.official.T
        return {"official": official.item(), "exact": (features.exact @ text.exact.T).item()}

    def autocast(self) -> torch.amp.autocast_mode.autocast:
        """The official code's, with the precision that torch chooses for the kind of device."""
        import torch

        return torch.amp.autocast(torch.device(self.device).type)


class Llm2Clip:
    """The ``model`` in one precision. ``image_size`` in pixels, ``text_width`` in numbers, are what it takes.

    Features are (images or texts, width), each of length 1.
    """

    def __init__(self, model: Any) -> None:
        self._model = model.eval()
        self._adapter = model.text_adapter.adaptor
        self.image_size: int = model.config.image_size
        self.text_width: int = self._adapter[-1].in_features

    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """Those of ``pixels`` (images, 3, size, size), float32."""
        return self._of_length_1(self._model(pixel_values=pixels).image_embeds)

    def text_features(self, vectors: torch.Tensor) -> torch.Tensor:
        """Those of float32 ``vectors`` (texts, text_width)."""
        import torch

        return self._of_length_1(self._adapter(torch.nn.functional.normalize(vectors, p=2, dim=-1)))

    def in_float32(self) -> Llm2Clip:
        """Another with the same weights that computes in float32."""
        return Llm2Clip(copy.deepcopy(self._model).float())

    @staticmethod
    def _of_length_1(features: torch.Tensor) -> torch.Tensor:
        # in place, as the official code: the quotient keeps the precision of the features
        features /= features.norm(dim=-1, keepdim=True)
        return features


def load_llm2clip(source: WeightsSource, device: str) -> Llm2Clip:
    """The model in bfloat16.

    Not by the hub's own code: transformers 5 lacks a module that it imports. What of the checkpoint is the vision
    tower is transformers' own CLIP, and the adapter is small.

    Raises:
        CellFailure: it does not load, or is another model: nothing of it stays random.
    """
    what = "an LLM2CLIP model"
    try:
        import torch

        state = _read_weights(source)
        model = _vision_model(source, state)
        # the names of the checkpoint
        model.text_adapter = torch.nn.Module()
        model.text_adapter.adaptor = _text_adapter(state)
        expected = model.state_dict()
        raise_unfit(source, what, expected.keys() - state, state.keys() - expected - _TRAINING_ONLY)
        odd = [name for name, tensor in expected.items() if state[name].shape != tensor.shape]
        raise_unfit(source, what, (), (), odd)
        model.load_state_dict({name: state[name] for name in expected})
        return Llm2Clip(model.to(device, torch.bfloat16))
    except CellFailure:
        raise
    except Exception as error:  # of transformers, of the hub, of the disk, of the device
        raise does_not_load(source, error) from error


def _cached(source: WeightsSource, name: str) -> Path:
    from transformers.utils import cached_file

    return Path(str(cached_file(source.model_path, name, revision=source.commit)))


def _read_weights(source: WeightsSource) -> State:
    import torch
    from safetensors.torch import load_file

    try:
        path = _cached(source, "model.safetensors")
    except OSError as error:  # transformers' word for what is not there
        try:
            path = _cached(source, "pytorch_model.bin")
        except OSError:
            raise error from None
        state: State = torch.load(path, map_location="cpu", weights_only=True)
        return state
    return load_file(path)


def _vision_model(source: WeightsSource, state: State) -> Any:
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    given = json.loads(_cached(source, "config.json").read_text(encoding="utf-8"))["vision_config"]
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
                ids, pooled = tokenize(tokenizer, text)
                states = last_states(model, ids)[-pooled:]
                means = states.mean(dim=0).float(), states.float().mean(dim=0)
                vectors[text] = Vectors(*(mean[None].cpu() for mean in means))
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
    """The checkpoint's own fast tokenizer, which puts the first token itself. Raises CellFailure: it does not load."""
    folder = Path(source.model_path)
    if folder.is_dir() and not (folder / "tokenizer.json").is_file():
        raise CellFailure(f"encoders: {folder} lacks tokenizer.json; download the checkpoint whole")
    try:
        from transformers import PreTrainedTokenizerFast

        # by its class: AutoTokenizer would choose by the model's type, and that code is not what wrote the file
        return PreTrainedTokenizerFast.from_pretrained(source.model_path, revision=source.commit)
    except Exception as error:  # of transformers, of the hub, of the disk
        raise does_not_load(source, error) from error


def tokenize(tokenizer: Any, text: str) -> tuple[list[int], int]:
    """The ids of ``text`` as a user's turn of Llama 3, cut on the right to 512, and how many of the last are pooled.

    Those are as many as the text's own and the end by themselves, as the official code counts: where the turn is cut,
    they reach to tokens before the text. (Its loop that shortens texts never runs: it counts after cutting.)
    """
    turn = text.rstrip() + _END
    limits = {"truncation": True, "max_length": MAX_TOKENS, "padding": False}
    ids = tokenizer(_HEADER + turn.replace(_MARK, ""), **limits)["input_ids"]
    own = tokenizer(turn.split(_MARK)[0], **limits, add_special_tokens=False)["input_ids"]
    return ids, len(own)


def load_llama(source: WeightsSource, device: str) -> Any:
    """The LLM in bfloat16.

    transformers' own class on purpose, not the code of the hub's repository: that makes a Llama bidirectional by
    overriding ``_update_causal_mask``, which today's transformers does not call: it would be causal, and every score
    wrong without a word. Here :func:`last_states` passes the mask itself.

    Raises:
        CellFailure: it does not load, or lacks weights.
    """
    model, loaded = load_bfloat16(
        source,
        "LlamaModel",
        device,
        # an implementation that takes a mask of our own, as the official runs use
        attn_implementation="sdpa",
        # told by name below
        ignore_mismatched_sizes=True,
    )
    odd_shapes = [str(name) for name, *_ in loaded["mismatched_keys"]]
    unexpected = {*loaded["unexpected_keys"]} - _NOT_NEEDED
    raise_unfit(source, "a Llama encoder", loaded["missing_keys"], unexpected, odd_shapes)
    return model


def last_states(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """The last hidden states (tokens, width) of a text of token ``ids``, every token seeing all others."""
    import torch

    # (batch, heads, from, to): transformers uses a mask of four dimensions as it is, any other becomes causal
    mask = torch.zeros((1, 1, len(ids), len(ids)), dtype=model.dtype, device=model.device)
    tokens = torch.tensor([ids], device=model.device)
    states: torch.Tensor = model(input_ids=tokens, attention_mask=mask, use_cache=False).last_hidden_state[0]
    return states
