"""Tiny Janus and Emu3 checkpoints in the layout of transformers."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

from tests.support.tiny_checkpoints.parts import decoder_config

_SPREAD = 0.3
"""Of the weights: with the usual 0.02 all tokens are nearly as probable, whatever the prompt."""


def save_janus(folder: Path) -> None:
    """Janus: an image is 4 × 4 tokens and 8 × 8 pixels."""
    import torch
    from transformers import (
        GenerationConfig,
        JanusConfig,
        JanusForConditionalGeneration,
        JanusImageProcessor,
        JanusProcessor,
    )

    tokenizer = _tokenizer(
        "<|begin|>", image_token="<image>", boi_token="<begin_of_image>", eoi_token="<end_of_image>"
    )
    torch.manual_seed(0)
    config = JanusConfig(
        text_config={"model_type": "llama", **_decoder(tokenizer)},
        vision_config={
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 8,
            "patch_size": 2,
            "mlp_ratio": 1.0,
            "projection_dim": 16,
            "num_image_tokens": 16,
        },
        vq_config={
            "embed_dim": 4,
            "num_embeddings": 16,
            "latent_channels": 32,
            "base_channels": 32,
            "channel_multiplier": [1, 1],
            "num_res_blocks": 1,
            "num_patches": 4,
            "projection_dim": 16,
            "image_token_embed_dim": 16,
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
    )
    model = JanusForConditionalGeneration(config).eval()
    _spread(model.model.language_model, model.model.generation_head, model.model.generation_embeddings)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        generation_kwargs={"boi_token_id": tokenizer.convert_tokens_to_ids("<begin_of_image>")},
    )
    model.save_pretrained(folder)
    image_processor = JanusImageProcessor(size={"height": 8, "width": 8})
    JanusProcessor(
        image_processor, tokenizer, chat_template=tokenizer.chat_template, num_image_tokens=16
    ).save_pretrained(folder)


def save_emu3(folder: Path) -> None:
    """Emu3 with 16 image tokens, each of which is 8 × 8 pixels; needs torchvision."""
    import torch
    from transformers import Emu3Config, Emu3ForConditionalGeneration, Emu3ImageProcessor, Emu3Processor

    tokenizer = _tokenizer(
        "<|extra_203|>",
        "<|extra_200|>",
        *(f"<|visual token {n:06d}|>" for n in range(16)),
        eos_token="<|extra_204|>",
        image_token="<image>",
        boi_token="<|image start|>",
        eoi_token="<|image end|>",
        image_wrapper_token="<|image token|>",
        eof_token="<|extra_201|>",
    )
    torch.manual_seed(0)
    config = Emu3Config(
        text_config=_decoder(tokenizer),
        vq_config={
            "codebook_size": 16,
            "base_channels": 32,
            "channel_multiplier": [1, 1, 1, 1],
            "num_res_blocks": 1,
            "attn_resolutions": [],
            "hidden_size": 32,
        },
        vocabulary_map=tokenizer.get_vocab(),
    )
    model = Emu3ForConditionalGeneration(config).eval()
    _spread(model.model.text_model, model.lm_head)
    model.save_pretrained(folder)
    Emu3Processor(Emu3ImageProcessor(), tokenizer, chat_template=tokenizer.chat_template).save_pretrained(
        folder
    )


def _tokenizer(bos_token: str, *tokens: str, eos_token: str = "<|end|>", **named: str) -> Any:
    """One token for each character; ``named`` are those that the model's processor asks for by name."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "<pad>", bos_token, eos_token, *tokens, *named.values(), *string.printable]
    backend = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<unk>",
        pad_token="<pad>",
        bos_token=bos_token,
        eos_token=eos_token,
        extra_special_tokens=named,
    )
    tokenizer.add_tokens(list(tokens), special_tokens=True)
    tokenizer.chat_template = (
        "{% for message in messages %}{% for part in message['content'] %}"
        "{{ message['role'] }}: {{ part['text'] }}\n{% endfor %}{% endfor %}"
    )
    return tokenizer


def _decoder(tokenizer: Any) -> dict[str, Any]:
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    return decoder_config(tokenizer) | ends


def _spread(*modules: Any) -> None:
    import torch

    with torch.no_grad():
        for module in modules:
            for parameter in module.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=_SPREAD)
