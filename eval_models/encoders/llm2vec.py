"""The text vectors of LLM2CLIP: a Llama whose every token sees all others, as the official LLM2Vec code uses it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from eval_models.encoders.device import free_memory
from eval_models.encoders.unfit import raise_unfit
from eval_models.encoders.weights import does_not_load
from eval_models.weights_source import WeightsSource
from imageevalkit.errors import CellFailure
from imageevalkit.load_errors import first_line

if TYPE_CHECKING:
    import torch

MAX_TOKENS = 512
_HEADER = "<|start_header_id|>user<|end_header_id|>\n\n"
_END = "<|eot_id|>"
# The official code puts this before the text and takes it out again; in a text it would be taken out as well.
_MARK = "!@#$%^&*()"
# of a causal language model; the encoder is without a head
_NOT_NEEDED = frozenset(("lm_head.weight", "rotary_emb.inv_freq"))


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
