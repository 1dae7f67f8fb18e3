"""How near an image is to a reference answer in the eyes of LLM2CLIP: OneIG's reasoning."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from eval_models.encoders.encoder import Encoder, choose_device, free_memory, inference, to_device
from eval_models.encoders.pixels import clip_pixels
from eval_models.encoders.weights import fill, find, load_bfloat16, loading
from imageevalkit.benchmark.question import Question
from imageevalkit.weights import WeightsSource

if TYPE_CHECKING:
    import numpy as np
    import torch
    from PIL import Image

    State = Mapping[str, torch.Tensor]

_ADAPTER = "text_adapter.adaptor."
# the temperature, and what older versions of transformers saved of a counter: no feature depends on them
_TRAINING_ONLY = r"logit_scale|vision_model\.embeddings\.position_ids"
MAX_TOKENS = 512
_HEADER = "<|start_header_id|>user<|end_header_id|>\n\n"
_END = "<|eot_id|>"
# The official code puts this before the text and takes it out again; in a text it would be taken out as well.
_MARK = "!@#$%^&*()"
# of a causal language model; the encoder is without a head
_NOT_NEEDED = r"lm_head\.weight|rotary_emb\.inv_freq"


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
        return {
            "encoder": "llm2clip",
            "weights": {name: source.identity for name, source in self._sources.items()},
            "precision": {"weights": "bfloat16", "official": self._autocast, "exact": "float32"},
        }

    @property
    def is_official(self) -> bool:
        """On CUDA, where the official code runs and torch's autocast takes float16; on the CPU it takes bfloat16."""
        return self._autocast == "float16"

    @property
    def _autocast(self) -> str:
        return "float16" if choose_device(self.device).startswith("cuda") else "bfloat16"

    def load(self, questions: Sequence[Question], device: str) -> _Models:
        """All texts are encoded first, each once: the LLM's memory is free for the images."""
        vision, llm = self._sources.values()
        vectors = encode_texts([question.text for question in questions], llm, device)
        official = load_llm2clip(vision, device)
        models = _Models(official, copy.deepcopy(official).float(), {}, device)
        models.texts.update({text: models.text_features(found) for text, found in vectors.items()})
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
    official: Any
    exact: Any
    texts: dict[str, Vectors]
    device: str

    def prepare(self, image: Image.Image) -> np.ndarray:
        """What transformers' CLIPImageProcessor makes of ``image`` (RGB)."""
        return clip_pixels(image, self.official.config.image_size, "transformers")

    def forward(self, batch: list[np.ndarray]) -> list[Vectors]:
        """Each image's."""
        import torch

        pixels = to_device(batch, self.device)
        with self.autocast():
            official = image_features(self.official, pixels)
        # cuDNN would round the patches to TF32 by default
        with torch.backends.cudnn.flags(allow_tf32=False):
            exact = image_features(self.exact, pixels)
        return [Vectors(*both) for both in zip(official.split(1), exact.split(1), strict=True)]

    def text_features(self, vectors: Vectors) -> Vectors:
        """One text's; one at a time, as the official code does."""
        official, exact = (found.to(self.device) for found in vectors)
        with inference("a reference answer"):
            with self.autocast():
                official = text_features(self.official, official)
            return Vectors(official, text_features(self.exact, exact))

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


def image_features(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Those of ``pixels`` (images, 3, size, size), float32: (images, width), each of length 1."""
    return _of_length_1(model(pixel_values=pixels).image_embeds)


def text_features(model: Any, vectors: torch.Tensor) -> torch.Tensor:
    """Those of the LLM's float32 ``vectors`` (texts, its width): (texts, width), each of length 1."""
    import torch

    return _of_length_1(model.text_adapter.adaptor(torch.nn.functional.normalize(vectors, p=2, dim=-1)))


def _of_length_1(features: torch.Tensor) -> torch.Tensor:
    # in place, as the official code: the quotient keeps the precision of the features
    features /= features.norm(dim=-1, keepdim=True)
    return features


def load_llm2clip(source: WeightsSource, device: str) -> Any:
    """The model in bfloat16: transformers' ``CLIPVisionModelWithProjection`` with a ``text_adapter``.

    Not by the hub's own code: transformers 5 lacks a module that it imports. What of the checkpoint is the vision
    tower is transformers' own CLIP, and the adapter is small.

    Raises:
        CellFailure: it does not load, or is another model: nothing of it stays random.
    """
    with loading(source):
        import torch
        from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

        state = _read_weights(source)
        projection = state.get("visual_projection.weight", "?")  # what is missing is told by name
        config = CLIPVisionConfig.from_pretrained(
            source.model_path, revision=source.commit, projection_dim=len(projection)
        )
        model = CLIPVisionModelWithProjection(config)
        # the names of the checkpoint
        model.text_adapter = torch.nn.Module()
        model.text_adapter.adaptor = _text_adapter(state)
        fill(model, state, source, _TRAINING_ONLY)
        return model.to(device, torch.bfloat16).eval()


def _read_weights(source: WeightsSource) -> State:
    from transformers.modeling_utils import load_state_dict
    from transformers.utils import cached_file

    try:
        path = cached_file(source.model_path, "model.safetensors", revision=source.commit)
    except OSError:  # transformers' word for what is not there
        path = cached_file(source.model_path, "pytorch_model.bin", revision=source.commit)
    return load_state_dict(str(path))


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
    tokenizer = load_tokenizer(source)
    model = load_llama(source, device)
    vectors: dict[str, Vectors] = {}
    try:
        with inference(f"{source.model_path} (about 17 GB)"):
            for text in dict.fromkeys(texts):
                ids, pooled = tokenize(tokenizer, text)
                states = last_states(model, ids)[-pooled:]
                means = states.mean(dim=0).float(), states.float().mean(dim=0)
                vectors[text] = Vectors(*(mean[None].cpu() for mean in means))
    finally:
        del model
        free_memory()
    return vectors


def load_tokenizer(source: WeightsSource) -> Any:
    """The checkpoint's own fast tokenizer, which puts the first token itself. Raises CellFailure: it does not load."""
    with loading(source):
        from transformers import PreTrainedTokenizerFast

        # by its class: AutoTokenizer would choose by the model's type, and that code is not what wrote the file
        return PreTrainedTokenizerFast.from_pretrained(source.model_path, revision=source.commit)


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
    # an implementation that takes a mask of our own, as the official runs use
    return load_bfloat16(source, "LlamaModel", device, _NOT_NEEDED, attn_implementation="sdpa")


def last_states(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """The last hidden states (tokens, width) of a text of token ``ids``, every token seeing all others."""
    import torch

    # (batch, heads, from, to): transformers uses a mask of four dimensions as it is, any other becomes causal
    mask = torch.zeros((1, 1, len(ids), len(ids)), dtype=model.dtype, device=model.device)
    tokens = torch.tensor([ids], device=model.device)
    states: torch.Tensor = model(input_ids=tokens, attention_mask=mask, use_cache=False).last_hidden_state[0]
    return states
