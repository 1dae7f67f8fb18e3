"""LLM2CLIP's similarity of an image and a reference answer: OneIG's reasoning."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from eval_models.encoders.encoder import TORCH, Encoder, clip_pixels, free_memory, inference, to_device
from eval_models.encoders.weights import CLIP, first_cached, load_pretrained, load_state, loading
from imageevalkit.assets.weights import WeightsSource
from imageevalkit.benchmark.question import Question
from imageevalkit.common.errors import CellFailure

if TYPE_CHECKING:
    import numpy as np
    import torch
    from PIL import Image
    from torch import nn

_ADAPTER = "text_adapter.adaptor."
# the adapter, the temperature, and position ids that older transformers saved: no image feature depends on
# them
_NOT_VISION = r"text_adapter\.adaptor\..*|logit_scale|vision_model\.embeddings\.position_ids"
_HEADER = "<|start_header_id|>user<|end_header_id|>\n\n"
_END = "<|eot_id|>"
# The official code inserts this mark before the text and removes it again, also if the text itself contains
# it.
_MARK = "!@#$%^&*()"
# weights of a causal language model; the encoder has no head
_NOT_NEEDED = r"lm_head\.weight|rotary_emb\.inv_freq"


class Llm2ClipEncoder(Encoder):
    """A question holds a picture and the reference answer.

    The answer holds two cosines. "official" has the precision of the official code: bfloat16 weights under
    torch's autocast, so a score has steps of 0.0002 around 0.3. "exact" uses the same bfloat16 weights and
    LLM states, but computes everything else in float32.
    """

    name = "llm2clip"
    weight_names = ("llm2clip_vision", "llm2clip_text")
    packages = (*TORCH, "tokenizers", "safetensors")

    @property
    def identity(self) -> dict[str, Any]:
        autocast = "float16" if self.is_official else "bfloat16"
        precision = {"weights": "bfloat16", "official": autocast, "exact": "float32"}
        return {**super().identity, "precision": precision}

    @property
    def is_official(self) -> bool:
        """True on CUDA: there, as in the official code, autocast uses float16. On the CPU it uses
        bfloat16."""
        return self.device.startswith("cuda")

    def load(self, questions: Sequence[Question]) -> tuple[Any, Any, Mapping[str, Vectors]]:
        """Returns the vision tower in both precisions and the features of each text.

        The LLM encodes all texts first, each once; then its memory is free for the images.
        """
        images, llm = self.sources.values()
        vectors = encode_texts([question.text for question in questions], llm, self.device)
        vision, adapter = load_llm2clip(images, self.device)
        exact_adapter = copy.deepcopy(adapter).float()
        texts = {}
        takes = adapter[-1].in_features
        # one text at a time, as in the official code
        for text, found in vectors.items():
            if (gives := found.exact.shape[-1]) != takes:
                raise CellFailure(
                    f"encoders: the text vectors of {llm.model_path} have {gives} numbers, LLM2CLIP's adapter takes "
                    f"{takes}: the two do not match"
                )
            of_official, of_exact = (one.to(self.device) for one in found)
            with inference("a reference answer"):
                with self.autocast():
                    of_official = text_features(adapter, of_official)
                texts[text] = Vectors(of_official, text_features(exact_adapter, of_exact))
        return vision, copy.deepcopy(vision).float(), texts

    def prepare(self, image: Image.Image) -> np.ndarray:
        return clip_pixels(image, self.models[0].config.image_size, "transformers")[0]

    def forward(self, batch: list[np.ndarray]) -> list[Vectors]:
        import torch

        official, exact, _ = self.models
        pixels = to_device(batch, self.device)
        with self.autocast():
            of_official = image_features(official, pixels)
        # by default cuDNN would round the patches to TF32
        with torch.backends.cudnn.flags(allow_tf32=False):
            of_exact = image_features(exact, pixels)
        return [Vectors(*both) for both in zip(of_official.split(1), of_exact.split(1), strict=True)]

    def measure(self, question: Question, features: Vectors) -> dict[str, float]:
        text = self.models[2][question.text]
        with self.autocast():
            official = features.official @ text.official.T
        return {"official": official.item(), "exact": (features.exact @ text.exact.T).item()}


class Vectors(NamedTuple):
    """The features of an image or a text in both precisions, (1, width) each.

    The LLM's features of a text are float32 on the CPU. ``official`` is the mean of its bfloat16 states,
    rounded to bfloat16; ``exact`` is their mean in float32. LLM2CLIP's features have length 1 and are on its
    device.
    """

    official: torch.Tensor
    exact: torch.Tensor


def image_features(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Returns the features (images, width), each of length 1, of float32 ``pixels`` (images, 3, size,
    size)."""
    return _of_length_1(model(pixel_values=pixels).image_embeds)


def text_features(adapter: nn.Sequential, vectors: torch.Tensor) -> torch.Tensor:
    """Returns the features (texts, width), each of length 1, of the LLM's float32 ``vectors`` (texts, LLM
    width).

    This is ``get_text_features`` of the hub's model: residual blocks, a norm, a projection.
    """
    from torch.nn import functional

    def normed(layer: Any) -> torch.Tensor:
        # in float32, like autocast on a GPU; on the CPU layer_norm refuses weights of another precision
        weight, bias = layer.weight.float(), layer.bias.float()
        return functional.layer_norm(values.float(), weight.shape, weight, bias).to(values.dtype)

    *blocks, norm, projection = adapter
    values = functional.normalize(vectors, p=2, dim=-1)
    for block in blocks:
        values = values + block["fn"](normed(block["ln"]))
    return _of_length_1(projection(normed(norm)))


def _of_length_1(features: torch.Tensor) -> torch.Tensor:
    # in place, as in the official code: the quotient keeps the precision of the features
    features /= features.norm(dim=-1, keepdim=True)
    return features


def load_llm2clip(source: WeightsSource, device: str) -> tuple[Any, nn.Sequential]:
    """Returns a ``CLIPVisionModelWithProjection`` and the text adapter, both in bfloat16.

    The hub's own code does not run: it imports a module that transformers 5 lacks.

    Raises CellFailure if the model does not load or weights do not match, so no weight stays random.
    """
    with loading(source):
        import torch
        from transformers import CLIPVisionConfig
        from transformers.modeling_utils import load_state_dict

        path = first_cached(source, ("model.safetensors", "pytorch_model.bin"))
        state = load_state_dict(str(path))
        # the tensor decides the projection size, because the hub's code ignores the vision tower's
        # configuration
        features = len(state.get("visual_projection.weight", "?"))  # load_pretrained() names a missing tensor
        config = CLIPVisionConfig.from_pretrained(
            source.model_path, revision=source.commit, projection_dim=features
        )
        vision = load_pretrained(source, CLIP, "bfloat16", device, _NOT_VISION, config=config)
        adapter = _adapter(source, state, features).to(device, torch.bfloat16).eval()
        return vision, adapter


def _adapter(source: WeightsSource, state: Mapping[str, torch.Tensor], features: int) -> nn.Sequential:
    """Returns the adapter of ``source`` with ``features`` outputs. The tensors decide its depth and width."""
    from torch import nn

    own = {name: tensor for name, tensor in state.items() if name.startswith(_ADAPTER)}

    def length(name: str) -> int:
        return len(own.get(f"{_ADAPTER}{name}.weight", "?"))  # load_state() names missing tensors

    depth = max(1, sum(name.endswith(".fn.0.weight") for name in own))  # another model has none
    width = length(f"{depth}")
    blocks = []
    for n in range(depth):
        inner = length(f"{n}.fn.0")
        # Identity takes the place of the dropout in training
        layers = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Identity(), nn.Linear(inner, width))
        blocks.append(nn.ModuleDict({"ln": nn.LayerNorm(width), "fn": layers}))
    adapter = nn.Sequential(*blocks, nn.LayerNorm(width), nn.Linear(width, features))
    load_state(nn.ModuleDict({"text_adapter": nn.ModuleDict({"adaptor": adapter})}), own, source)
    return adapter


def encode_texts(texts: Sequence[str], source: WeightsSource, device: str) -> dict[str, Vectors]:
    """Returns the vectors of each distinct text. Loads the LLM and frees it again.

    Texts go through the LLM one at a time, as in the official code. A vector then has the same bits in every
    run, resumed runs included. A batch would save only seconds, because a single text keeps a GPU busy.
    Raises CellFailure if the LLM does not load, lacks weights, or does not fit into memory.
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
    """Returns the checkpoint's fast tokenizer, which adds the first token. Raises CellFailure if it does not
    load."""
    with loading(source):
        from transformers import PreTrainedTokenizerFast

        # not AutoTokenizer: it would choose a class by the model's type, and another class wrote the file
        return PreTrainedTokenizerFast.from_pretrained(source.model_path, revision=source.commit)


def tokenize(tokenizer: Any, text: str) -> tuple[list[int], int]:
    """Returns the ids of ``text`` as a user turn of Llama 3, at most 512, and the number of last ids to pool.

    That number is the count of the text and end tokens alone, as in the official code. If the turn is
    truncated, the pooled ids include tokens before the text. (The official loop that shortens texts never
    runs: it counts after truncation.)
    """
    turn = text.rstrip() + _END
    limits = {"truncation": True, "max_length": 512, "padding": False}
    ids = tokenizer(_HEADER + turn.replace(_MARK, ""), **limits)["input_ids"]
    own = tokenizer(turn.split(_MARK)[0], **limits, add_special_tokens=False)["input_ids"]
    return ids, len(own)


def load_llama(source: WeightsSource, device: str) -> Any:
    """Returns the LLM in bfloat16.

    This uses transformers' own class. The hub repository's code makes a Llama bidirectional by overriding
    ``_update_causal_mask``, which current transformers never calls. The model would be causal, and every
    score silently wrong. Here :func:`last_states` passes the mask itself. Raises CellFailure if the LLM does
    not load or lacks weights.
    """
    # sdpa accepts a custom mask; the official runs use it too
    return load_pretrained(source, "LlamaModel", "bfloat16", device, _NOT_NEEDED, attn_implementation="sdpa")


def last_states(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """Returns the last hidden states (tokens, width) of token ``ids`` with full, non-causal attention."""
    import torch

    # (batch, heads, from, to): transformers uses a 4-dimensional mask unchanged and makes any other mask
    # causal
    mask = torch.zeros((1, 1, len(ids), len(ids)), dtype=model.dtype, device=model.device)
    tokens = torch.tensor([ids], device=model.device)
    states: torch.Tensor = model(input_ids=tokens, attention_mask=mask, use_cache=False).last_hidden_state[0]
    return states
