"""Which files of hub repositories the entries' patterns choose, by lists of names as such repositories have them.

The weights are those that diffusers reads; beside them lie half-precision copies, single-file checkpoints for other
programs, and exports.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from huggingface_hub.utils import filter_repo_objects

from custom_models.load_model import MODEL_SETTINGS

_TOKENIZER = ("merges.txt", "special_tokens_map.json", "tokenizer_config.json", "vocab.json")
_T5_TOKENIZER = ("special_tokens_map.json", "spiece.model", "tokenizer.json", "tokenizer_config.json")


def below(folder: str, *names: str) -> set[str]:
    return {f"{folder}/{name}" for name in names}


def sharded(folder: str, stem: str, shards: int) -> set[str]:
    """Weights in parts, with their index and configuration."""
    parts = [f"{stem}-{n:05}-of-{shards:05}.safetensors" for n in range(1, shards + 1)]
    return below(folder, "config.json", f"{stem}.safetensors.index.json", *parts)


def whole(folder: str, stem: str) -> set[str]:
    return below(folder, "config.json", f"{stem}.safetensors")


_UNET, _CLIP = "diffusion_pytorch_model", "model"
_COMMON = {"model_index.json", "scheduler/scheduler_config.json"}
_VAE = whole("vae", _UNET)
_ALWAYS_OTHER = {"README.md", ".gitattributes", "LICENSE.md"}

NEEDED_AND_OTHER: dict[str, tuple[set[str], set[str]]] = {
    "t2i/flux.1-dev": (
        _COMMON
        | _VAE
        | whole("text_encoder", _CLIP)
        | sharded("text_encoder_2", _CLIP, 2)
        | sharded("transformer", _UNET, 3)
        | below("tokenizer", *_TOKENIZER)
        | below("tokenizer_2", *_T5_TOKENIZER),
        {"flux1-dev.safetensors", "ae.safetensors", "dev_grid.jpg"},
    ),
    "t2i/playground-v2.5": (
        _COMMON
        | whole("vae", f"{_UNET}.fp16")
        | whole("unet", f"{_UNET}.fp16")
        | whole("text_encoder", "model.fp16")
        | whole("text_encoder_2", "model.fp16")
        | below("tokenizer", *_TOKENIZER)
        | below("tokenizer_2", *_TOKENIZER),
        {"playground-v2.5-1024px-aesthetic.safetensors", "playground-v2.5-1024px-aesthetic.fp16.safetensors"}
        | below("unet", f"{_UNET}.safetensors")
        | below("vae", f"{_UNET}.safetensors")
        | below("text_encoder", "model.safetensors"),
    ),
}


def chosen(key: str, files: Iterable[str]) -> set[str]:
    task, _, name = key.partition("/")
    return set(filter_repo_objects(files, allow_patterns=MODEL_SETTINGS[task][name]["patterns"]))


@pytest.mark.parametrize("key", NEEDED_AND_OTHER)
def test_patterns_choose_what_diffusers_reads_and_no_copy_of_it(key: str) -> None:
    needed, other = NEEDED_AND_OTHER[key]
    assert chosen(key, needed | other | _ALWAYS_OTHER) == needed


def test_whole_folders_leave_out_what_lies_beside_them() -> None:
    needed = _COMMON | _VAE | sharded("text_encoder", _CLIP, 2) | sharded("transformer", _UNET, 2)
    needed |= {"text_encoder/pytorch_model-00001-of-00002.bin", *below("tokenizer", *_T5_TOKENIZER)}
    assert chosen("t2i/sana", needed | _ALWAYS_OTHER | {"model.pth", "consolidated.safetensors"}) == needed
