"""Tiny vision-language checkpoints with random weights, built from configs and saved to disk: no download."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.tiny_checkpoints.parts import small_config

IMAGE_TOKEN = "<|image_pad|>"
_VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", IMAGE_TOKEN, "<|video_pad|>")
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *_VISION_TOKENS)
_NUMBERS = "one two three four five six seven eight nine ten"
_CORPUS = (
    f"Yes yes No no {_NUMBERS} {_NUMBERS.title()} 0 1 2 3 4 5 6 7 8 9\n"
    "How many croissants are in the image? One word, please.\n"
    'Is this "seven green croissants"? Say Yes or No.\n'
    "Are there any chairs to the left of the wooden table? Is the dog chasing the cat?\n"
)
# Spread logits: with the usual 0.02 all probabilities are alike, and a wrong position would go unseen.
_SPREAD = 0.3

_CHAT = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['content'] is string -%}
{{- message['content'] -}}
{%- else -%}
{%- for part in message['content'] -%}
{{- '<|vision_start|><|image_pad|><|vision_end|>' if part['type'] == 'image' else part['text'] -}}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and not enable_thinking -%}
{{- '<think>\\n\\n</think>\\n\\n' -}}
{%- endif -%}
{%- endif -%}
"""
_DEFAULT_SYSTEM = (
    "{%- if messages[0]['role'] != 'system' -%}"
    "{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}"
    "{%- endif -%}"
)


def save_qwen3_vl(
    folder: Path,
    *,
    text: Mapping[str, Any] | None = None,
    vision: Mapping[str, Any] | None = None,
    dtype: str = "float32",
    device: str = "cpu",
) -> None:
    """Qwen3-VL: patches of 16 pixels merged 2 × 2, interleaved 3-D positions, DeepStack from two vision layers.

    ``text`` and ``vision`` change its shape; weights are drawn on ``device``, which matters for large ones.
    """
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    tokenizer = _tokenizer(_CHAT)
    decoder = {
        **_text(tokenizer, 64),
        "head_dim": 16,
        "rope_parameters": {"rope_theta": 5e6, "mrope_section": [4, 2, 2], "mrope_interleaved": True},
        **(text or {}),
    }
    tower = {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
        **(vision or {}),
        "out_hidden_size": decoder["hidden_size"],
    }
    config = Qwen3VLConfig(text_config=decoder, vision_config=tower, **_token_ids(tokenizer))
    _save_model(folder, Qwen3VLForConditionalGeneration, config, dtype, device)
    _save_processor(folder, tokenizer, "Qwen3VL", patch=16)


def save_qwen2_5_vl(
    folder: Path,
    *,
    text: Mapping[str, Any] | None = None,
    vision: Mapping[str, Any] | None = None,
    dtype: str = "float32",
    device: str = "cpu",
) -> None:
    """Qwen2.5-VL: windowed vision attention, a default system message, a checkpoint-wide repetition penalty.

    The options are those of :func:`save_qwen3_vl`.
    """
    from transformers import Qwen2_5_VLForConditionalGeneration

    tokenizer, config = qwen2_5_vl(text, vision)
    _save_model(folder, Qwen2_5_VLForConditionalGeneration, config, dtype, device)
    _save_processor(folder, tokenizer, "Qwen2_5_VL", patch=14)
    _write(
        folder / "generation_config.json",
        {
            "do_sample": True,
            "temperature": 1e-6,
            "repetition_penalty": 1.3,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
    )


def qwen2_5_vl(
    text: Mapping[str, Any] | None = None, vision: Mapping[str, Any] | None = None
) -> tuple[Any, Any]:
    """The tokenizer and the configuration of a Qwen2.5-VL; ``text`` and ``vision`` change its shape."""
    from transformers import Qwen2_5_VLConfig

    tokenizer = _tokenizer(_DEFAULT_SYSTEM + _CHAT)
    decoder = {
        **_text(tokenizer, 64),
        "rope_parameters": {"rope_theta": 1e6, "rope_type": "default", "mrope_section": [4, 2, 2]},
        **(text or {}),
    }
    tower = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "fullatt_block_indexes": [1],
        **(vision or {}),
        "out_hidden_size": decoder["hidden_size"],
    }
    return tokenizer, Qwen2_5_VLConfig(text_config=decoder, vision_config=tower, **_token_ids(tokenizer))


def save_hpsv3(folder: Path) -> None:
    """HPSv3 in its authors' format, and the configuration and tokenizer of Qwen2-VL in ``qwen2_vl``."""
    import numpy as np
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, Qwen2VLModel

    base = folder / "qwen2_vl"
    tokenizer = _tokenizer(_DEFAULT_SYSTEM + _CHAT)
    tokenizer.save_pretrained(base)
    tower = {"depth": 2, "embed_dim": 32, "mlp_ratio": 4, "num_heads": 2, "in_chans": 3, "hidden_size": 64}
    tower |= {"patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14, "temporal_patch_size": 2}
    # as Qwen's own file has it
    settings = {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        **_text(tokenizer, 64),
        **_token_ids(tokenizer),
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [4, 2, 2]},
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vision_config": tower,
        # Qwen's embeddings have unused rows, HPSv3's have a row for its own token instead
        "vocab_size": len(tokenizer) + 300,
    }
    _write(base / "config.json", settings)
    config = AutoConfig.from_pretrained(base)
    config.text_config.vocab_size = len(tokenizer) + 1
    with torch.device("meta"):
        network = Qwen2VLModel(config)
    shapes = {name: tensor.shape for name, tensor in network.state_dict().items()}
    shapes = {name.replace("language_model.", "model."): shape for name, shape in shapes.items()}
    shapes["lm_head.weight"] = torch.Size((len(tokenizer) + 1, 64))
    for place, pair in ((0, (1024, 64)), (3, (16, 1024)), (5, (2, 16))):
        shapes |= {f"rm_head.{place}.weight": torch.Size(pair), f"rm_head.{place}.bias": torch.Size(pair[:1])}
    # numpy's old generator draws the same numbers on every machine
    draw, state = np.random.RandomState(0), dict[str, Any]()
    for name in sorted(shapes):
        shape = shapes[name]
        values = torch.from_numpy(draw.standard_normal(tuple(shape))).float()
        is_norm = len(shape) == 1 and name.endswith("weight")
        state[name] = (
            1 + values / 4 if is_norm else values / (shape[1:].numel() ** 0.5 if len(shape) > 1 else 4)
        )
    save_file(state, folder / "HPSv3.safetensors")


def save_llava(folder: Path) -> None:
    """LLaVA: another family, whose plain 1-D positions allow a shared prefix too."""
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    tokenizer = _tokenizer(_CHAT.replace("<|vision_start|><|image_pad|><|vision_end|>", IMAGE_TOKEN))
    text = {**_text(tokenizer, 32), "model_type": "llama"}
    config = LlavaConfig(
        text_config=text,
        vision_config={
            "model_type": "clip_vision_model",
            **small_config(32, 64, 2),
            "image_size": 32,
            "patch_size": 8,
            "initializer_range": _SPREAD,
        },
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE_TOKEN),
        image_seq_length=16,
    )
    _save_model(folder, LlavaForConditionalGeneration, config)
    tokenizer.save_pretrained(folder)
    _write(
        folder / "preprocessor_config.json",
        {
            "image_processor_type": "CLIPImageProcessor",
            "size": {"shortest_edge": 32},
            "crop_size": {"height": 32, "width": 32},
        },
    )
    _write(
        folder / "processor_config.json",
        {
            "processor_class": "LlavaProcessor",
            "image_token": IMAGE_TOKEN,
            "patch_size": 8,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
    )


def _text(tokenizer: Any, hidden: int) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        **small_config(hidden, 2 * hidden, 2, 4),
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "initializer_range": _SPREAD,
        "bos_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _token_ids(tokenizer: Any) -> dict[str, int]:
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    return dict(zip(names, tokenizer.convert_tokens_to_ids(list(_VISION_TOKENS)), strict=True))


def _tokenizer(chat_template: str) -> Any:
    """Byte-level BPE that knows the words of the corpus, with Qwen's way of cutting text (each digit by itself)."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learner.train_from_iterator(
        [_CORPUS], trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    learned = json.loads(learner.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=learned["vocab"],
        merges=[tuple(merge) for merge in learned["merges"]],
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
        extra_special_tokens=list(_SPECIAL),
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def _save_model(
    folder: Path, model_class: Any, config: Any, dtype: str = "float32", device: str = "cpu"
) -> None:
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    with torch.device(device):
        model = model_class._from_config(config, dtype=getattr(torch, dtype))
    model.generation_config.eos_token_id = config.get_text_config().eos_token_id
    model.generation_config.pad_token_id = config.get_text_config().pad_token_id
    model.save_pretrained(folder)


def _save_processor(folder: Path, tokenizer: Any, family: str, patch: int) -> None:
    tokenizer.save_pretrained(folder)
    common = {
        "processor_class": f"{family}Processor",
        "patch_size": patch,
        "temporal_patch_size": 2,
        "merge_size": 2,
        # small images stay small, to be quick
        "size": {"shortest_edge": (4 * patch) ** 2, "longest_edge": 4096 * 4096},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    video = "Qwen3VL" if family == "Qwen3VL" else "Qwen2VL"
    _write(
        folder / "preprocessor_config.json", {**common, "image_processor_type": "Qwen2VLImageProcessorFast"}
    )
    _write(
        folder / "video_preprocessor_config.json",
        {**common, "video_processor_type": f"{video}VideoProcessor"},
    )


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1))
