"""Parts that the tiny pipelines share: tokenizers, text encoders, VAEs, with random weights and no download."""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TEXT_WIDTH = 16
"""Hidden size of every text encoder here."""
Sizes = Mapping[str, Mapping[str, Any]]
"""Settings of a pipeline's parts by their names."""


def small_config(hidden: int, inner: int, layers: int, heads: int = 2) -> dict[str, Any]:
    """Returns the settings that all configurations of transformers share."""
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }


def vocabulary(*special: str) -> dict[str, int]:
    """Byte-level symbols of printable ASCII; "Ġ" is the blank and "Ċ" the line break."""
    symbols = [*special, *string.ascii_letters, *string.digits, *string.punctuation, "Ġ", "Ċ"]
    return {symbol: number for number, symbol in enumerate(symbols)}


def byte_tokenizer(*special: str) -> Any:
    """One token for each byte; it pads with, and ends on, ``<|endoftext|>``."""
    from transformers import Qwen2TokenizerFast

    tokenizer = Qwen2TokenizerFast(
        vocab=vocabulary("<|endoftext|>"), merges=[], extra_special_tokens=list(special)
    )
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return tokenizer


def beginning_tokenizer(*special: str) -> Any:
    """One token for each byte, after a token that every text begins with, the empty one too."""
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    begin = "<|begin|>"
    tokenizer = byte_tokenizer(begin, *special)
    backend = tokenizer.backend_tokenizer
    backend.post_processor = TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, tokenizer.convert_tokens_to_ids(begin))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=begin,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=list(special),
    )


def clip_tokenizer() -> Any:
    """CLIP's, with its end-of-word symbols."""
    from transformers import CLIPTokenizer

    symbols = vocabulary("<|startoftext|>", "<|endoftext|>")
    for symbol in list(symbols)[2:]:
        symbols[f"{symbol}</w>"] = len(symbols)
    return CLIPTokenizer(vocab=symbols, merges=[], model_max_length=77)


def clip_text(tokenizer: Any, projected: bool = False, **config: Any) -> Any:
    """CLIP's text tower; ``projected`` into the space that it shares with images."""
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    settings = {
        "vocab_size": len(tokenizer),
        **small_config(TEXT_WIDTH, TEXT_WIDTH, 2),
        "projection_dim": TEXT_WIDTH,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
        **config,
    }
    model = CLIPTextModelWithProjection if projected else CLIPTextModel
    return model(CLIPTextConfig(**settings)).eval()


def t5(tokenizer: Any, width: int = TEXT_WIDTH, **config: Any) -> Any:
    """T5's encoder."""
    from transformers import T5Config, T5EncoderModel

    settings = {
        "vocab_size": len(tokenizer),
        "d_model": width,
        "d_kv": 8,
        "d_ff": TEXT_WIDTH,
        "num_layers": 1,
        "num_heads": 2,
        **config,
    }
    return T5EncoderModel(T5Config(**settings)).eval()


def decoder_config(tokenizer: Any, layers: int = 1) -> dict[str, Any]:
    """Returns the common settings of Llama's descendants."""
    return {
        "vocab_size": len(tokenizer),
        **small_config(TEXT_WIDTH, TEXT_WIDTH, layers),
        "num_key_value_heads": 2,
        "head_dim": 8,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def vae(blocks: int = 2, latent_channels: int = 4, **config: Any) -> Any:
    """An AutoencoderKL that scales down by 2 to the power of ``blocks - 1``."""
    from diffusers import AutoencoderKL

    settings = {
        "block_out_channels": (8,) * blocks,
        "norm_num_groups": 4,
        "latent_channels": latent_channels,
        "sample_size": 64,
        **config,
    }
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks,
        **settings,
    ).eval()


def flow_scheduler(**config: Any) -> Any:
    """The scheduler of flow-matching models."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler(**config)


def save(folder: Path, pipeline_class: str, **parts: Any) -> None:
    """Save the pipeline made of ``parts``."""
    import diffusers
    from transformers.utils import logging

    logging.disable_progress_bar()
    getattr(diffusers, pipeline_class)(**parts).save_pretrained(folder)
