"""How near an image is to a reference answer in the eyes of LLM2CLIP: OneIG's reasoning."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from eval_models.encoders.encoder import TORCH, Encoder, clip_pixels, free_memory, inference, to_device
from eval_models.encoders.weights import CLIP, first_cached, load_pretrained, load_state, loading
from imageevalkit.assets.weights import WeightsSource
from imageevalkit.benchmark.question import Question
from imageevalkit.errors import CellFailure

if TYPE_CHECKING:
    import numpy as np
    import torch
    from PIL import Image
    from torch import nn

_ADAPTER = "text_adapter.adaptor."
# the adapter; the temperature, and what older versions of transformers saved of a counter: no feature depends on these
_NOT_VISION = r"text_adapter\.adaptor\..*|logit_scale|vision_model\.embeddings\.position_ids"
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
    weight_names = ("llm2clip_vision", "llm2clip_text")
    packages = (*TORCH, "tokenizers", "safetensors")

    @property
    def identity(self) -> dict[str, Any]:
        autocast = "float16" if self.is_official else "bfloat16"
        precision = {"weights": "bfloat16", "official": autocast, "exact": "float32"}
        return {**super().identity, "precision": precision}

    @property
    def is_official(self) -> bool:
        """On CUDA, where the official code runs and torch's autocast takes float16; on the CPU it takes bfloat16."""
        return self.device.startswith("cuda")

    def load(self, questions: Sequence[Question]) -> tuple[Any, Any, Mapping[str, Vectors]]:
        """The vision tower in both precisions, and the features of each text.

        All texts are encoded first, each once: the LLM's memory is free for the images.
        """
        images, llm = self.sources.values()
        vectors = encode_texts([question.text for question in questions], llm, self.device)
        vision, adapter = load_llm2clip(images, self.device)
        exact_adapter = copy.deepcopy(adapter).float()
        texts = {}
        takes = adapter[-1].in_features
        # one at a time, as the official code does
        for text, found in vectors.items():
            if (gives := found.exact.shape[-1]) != takes:
                raise CellFailure(
                    f"encoders: the text vectors of {llm.model_path} have {gives} numbers, LLM2CLIP's adapter takes "
                    f"{takes}: the two do not belong together"
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
        # cuDNN would round the patches to TF32 by default
        with torch.backends.cudnn.flags(allow_tf32=False):
            of_exact = image_features(exact, pixels)
        return [Vectors(*both) for both in zip(of_official.split(1), of_exact.split(1), strict=True)]

    def measure(self, question: Question, features: Vectors) -> dict[str, float]:
        text = self.models[2][question.text]
        with self.autocast():
            official = features.official @ text.official.T
        return {"official": official.item(), "exact": (features.exact @ text.exact.T).item()}


class Vectors(NamedTuple):
    """Of an image or a text, in both precisions, (1, width) each.

    Those of a text by the LLM are float32 on the CPU: ``official`` is the mean of its bfloat16 states rounded to
    bfloat16, ``exact`` their mean in float32. LLM2CLIP's are of length 1, on its device.
    """

    official: torch.Tensor
    exact: torch.Tensor


def image_features(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Those of ``pixels`` (images, 3, size, size), float32: (images, width), each of length 1."""
    return _of_length_1(model(pixel_values=pixels).image_embeds)


def text_features(adapter: nn.Sequential, vectors: torch.Tensor) -> torch.Tensor:
    """Those of the LLM's float32 ``vectors`` (texts, its width): (texts, width), each of length 1.

    ``get_text_features`` of the hub's model: residual blocks, a norm, a projection.
    """
    from torch.nn import functional

    def normed(layer: Any) -> torch.Tensor:
        # in float32, as autocast has it on a GPU; on the CPU it would refuse weights of another precision
        weight, bias = layer.weight.float(), layer.bias.float()
        return functional.layer_norm(values.float(), weight.shape, weight, bias).to(values.dtype)

    *blocks, norm, projection = adapter
    values = functional.normalize(vectors, p=2, dim=-1)
    for block in blocks:
        values = values + block["fn"](normed(block["ln"]))
    return _of_length_1(projection(normed(norm)))


def _of_length_1(features: torch.Tensor) -> torch.Tensor:
    # in place, as the official code: the quotient keeps the precision of the features
    features /= features.norm(dim=-1, keepdim=True)
    return features


def load_llm2clip(source: WeightsSource, device: str) -> tuple[Any, nn.Sequential]:
    """In bfloat16 a ``CLIPVisionModelWithProjection`` and the text adapter.

    Not by the hub's own code: transformers 5 lacks a module that it imports.

    Raises CellFailure: it does not load, or is another model: nothing of it stays random.
    """
    with loading(source):
        import torch
        from transformers import CLIPVisionConfig
        from transformers.modeling_utils import load_state_dict

        path = first_cached(source, ("model.safetensors", "pytorch_model.bin"))
        state = load_state_dict(str(path))
        # the hub's code does not read the size of the projection in the vision tower's own configuration
        features = len(state.get("visual_projection.weight", "?"))  # told by name below
        config = CLIPVisionConfig.from_pretrained(
            source.model_path, revision=source.commit, projection_dim=features
        )
        vision = load_pretrained(source, CLIP, "bfloat16", device, _NOT_VISION, config=config)
        adapter = _adapter(source, state, features).to(device, torch.bfloat16).eval()
        return vision, adapter


def _adapter(source: WeightsSource, state: Mapping[str, torch.Tensor], features: int) -> nn.Sequential:
    """That of ``source``'s tensors, to ``features`` numbers, as deep and wide as they are."""
    from torch import nn

    own = {name: tensor for name, tensor in state.items() if name.startswith(_ADAPTER)}

    def length(name: str) -> int:
        return len(own.get(f"{_ADAPTER}{name}.weight", "?"))  # what is missing is told by name

    depth = max(1, sum(name.endswith(".fn.0.weight") for name in own))  # of another model there are none
    width = length(f"{depth}")
    blocks = []
    for n in range(depth):
        inner = length(f"{n}.fn.0")
        # its training had a dropout
        layers = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Identity(), nn.Linear(inner, width))
        blocks.append(nn.ModuleDict({"ln": nn.LayerNorm(width), "fn": layers}))
    adapter = nn.Sequential(*blocks, nn.LayerNorm(width), nn.Linear(width, features))
    load_state(nn.ModuleDict({"text_adapter": nn.ModuleDict({"adaptor": adapter})}), own, source)
    return adapter


def encode_texts(texts: Sequence[str], source: WeightsSource, device: str) -> dict[str, Vectors]:
    """The vectors of each different one of ``texts``. The LLM is loaded for it and freed again.

    One text at a time, as the official code: a text's vector then has the same bits whatever else is asked, in a
    resumed run too. A batch would save seconds of a run, for these texts are long enough to keep a GPU busy.
    Raises CellFailure: it does not load, is not all there, or does not fit into memory.
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
    limits = {"truncation": True, "max_length": 512, "padding": False}
    ids = tokenizer(_HEADER + turn.replace(_MARK, ""), **limits)["input_ids"]
    own = tokenizer(turn.split(_MARK)[0], **limits, add_special_tokens=False)["input_ids"]
    return ids, len(own)


def load_llama(source: WeightsSource, device: str) -> Any:
    """The LLM in bfloat16.

    transformers' own class on purpose, not the code of the hub's repository: that makes a Llama bidirectional by
    overriding ``_update_causal_mask``, which today's transformers does not call: it would be causal, and every score
    wrong without a word. Here :func:`last_states` passes the mask itself.
    Raises CellFailure: it does not load, or lacks weights.
    """
    # an implementation that takes a mask of our own, as the official runs use
    return load_pretrained(source, "LlamaModel", "bfloat16", device, _NOT_NEEDED, attn_implementation="sdpa")


def last_states(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """The last hidden states (tokens, width) of a text of token ``ids``, every token seeing all others."""
    import torch

    # (batch, heads, from, to): transformers uses a mask of four dimensions as it is, any other becomes causal
    mask = torch.zeros((1, 1, len(ids), len(ids)), dtype=model.dtype, device=model.device)
    tokens = torch.tensor([ids], device=model.device)
    states: torch.Tensor = model(input_ids=tokens, attention_mask=mask, use_cache=False).last_hidden_state[0]
    return states
