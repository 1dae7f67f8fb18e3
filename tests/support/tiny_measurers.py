"""Networks that measure, with random weights and of few numbers, saved as the real ones are: no download.

``python -m tests.support.tiny_measurers FOLDER BENCHMARK...`` saves those of some benchmarks and prints their places by
benchmark, as JSON: a process of its own, because the torchvision that open_clip imports must not be seen by any test.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tests.support.tiny_encoders import save_csd, save_se

CLASSES = ("cat", "dog", "cup")


def save_mask2former(folder: Path, *, classes: int = len(CLASSES), seed: int = 0) -> None:
    """A detector of so many classes with 12 queries, as transformers saves it."""
    import torch
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation, SwinConfig

    torch.manual_seed(seed)
    backbone = SwinConfig(
        image_size=64,
        embed_dim=8,
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 2, 2],
        window_size=7,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = Mask2FormerConfig(
        backbone_config=backbone,
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=16,
        encoder_layers=1,
        decoder_layers=2,
        num_attention_heads=2,
        dim_feedforward=16,
        num_queries=12,
        num_labels=classes,
    )
    model = Mask2FormerForUniversalSegmentation(config)
    with torch.no_grad():
        # so that some of its guesses are confident
        model.class_predictor.weight.mul_(60)
    model.save_pretrained(folder)


def clip_config(width: int = 16) -> dict[str, Any]:
    """Of a CLIP of open_clip's for images of 32 pixels."""
    return {
        "embed_dim": width,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 8},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
    }


def save_open_clip(folder: Path, *, seed: int = 0, quick_gelu: bool = True) -> None:
    """As open_clip saves a model for the hub."""
    import open_clip
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    config = {**clip_config(), "quick_gelu": quick_gelu}
    folder.mkdir(parents=True, exist_ok=True)
    model = open_clip.CLIP(**config)
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    preprocess = {"mean": [0.5] * 3, "std": [0.5] * 3}
    (folder / "open_clip_config.json").write_text(
        json.dumps({"model_cfg": config, "preprocess_cfg": preprocess}), encoding="utf-8"
    )


def save_hpsv2(folder: Path, *, seed: int = 0) -> None:
    """Both versions' checkpoints, with the configuration of their small architecture beside them."""
    import open_clip
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    for n, name in enumerate(("HPS_v2_compressed.pt", "HPS_v2.1_compressed.pt")):
        torch.manual_seed(seed + n)
        torch.save({"state_dict": open_clip.CLIP(**clip_config()).state_dict()}, folder / name)
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": clip_config()}), encoding="utf-8")


def save_clip_flant5(folder: Path, tower: Path, *, seed: int = 0) -> None:
    """CLIP-FlanT5 in ``folder`` and its image encoder in ``tower``, as their authors save them."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import Unigram
    from tokenizers.pre_tokenizers import Metaspace
    from tokenizers.processors import TemplateProcessing
    from transformers import CLIPVisionConfig, CLIPVisionModel, PreTrainedTokenizerFast, T5Config
    from transformers import T5ForConditionalGeneration as Network

    torch.manual_seed(seed)
    letters = sorted({*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,?\"'\n\u2581"})
    vocabulary = [
        ("<pad>", 0.0),
        ("</s>", 0.0),
        ("<unk>", 0.0),
        ("\u2581Yes", -1.0),
        *((one, -4.0) for one in letters),
    ]
    tokenizer = Tokenizer(Unigram(vocabulary, unk_id=2))
    tokenizer.pre_tokenizer = Metaspace()
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    # as of the real one, more rows than there are tokens
    config = T5Config(
        vocab_size=len(vocabulary) + 28,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    vision = CLIPVisionConfig(
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=32,
        patch_size=8,
    )
    CLIPVisionModel(vision).save_pretrained(tower)
    network = Network(config)
    network.save_pretrained(folder)
    fast.save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    settings |= {
        "model_type": "clip_t5",
        "architectures": ["CLIPT5ForConditionalGeneration"],
        "mm_vision_select_layer": -2,
    }
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    # its state is one of torch's files, with the projector and a copy of the image encoder
    (folder / "model.safetensors").unlink()
    state = dict(network.state_dict())
    for n, shape in ((0, (16, 24)), (2, (16, 16))):
        state[f"mm_projector.{n}.weight"] = torch.randn(shape) / 4
        state[f"mm_projector.{n}.bias"] = torch.randn(16) / 4
    state["vision_tower.vision_tower.vision_model.post_layernorm.weight"] = torch.ones(24)
    torch.save(state, folder / "pytorch_model.bin")


def save_all(folder: Path, benchmarks: Collection[str]) -> dict[str, dict[str, str]]:
    """Those of GenEval, HPSv2 and the style of OneIG-Bench: the places of their weights by benchmark."""
    places = {}
    # of a benchmark's own classes and reference vectors there are so many, and so wide
    if "geneval" in benchmarks:
        save_mask2former(folder / "mask2former", classes=80)
        save_open_clip(folder / "geneval_clip")
        places["geneval"] = {name: str(folder / name) for name in ("mask2former", "geneval_clip")}
    if "hpsv2" in benchmarks:
        save_hpsv2(folder / "hpsv2")
        places["hpsv2"] = {"hpsv2": str(folder / "hpsv2")}
    if "oneig" in benchmarks:
        save_csd(folder / "csd", projection=768)
        save_se(folder / "se", projection=1280)
        places["oneig"] = {name: str(folder / name) for name in ("csd", "se")}
    return places


if __name__ == "__main__":
    print(json.dumps(save_all(Path(sys.argv[1]), sys.argv[2:])))
