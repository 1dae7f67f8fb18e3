"""Networks that measure, with random weights and of few numbers, saved as the real ones are: no download.

``python -m tests.support.tiny_measurers FOLDER BENCHMARK...`` saves those of some benchmarks and prints their places by
benchmark, as JSON: a process of its own, because the torchvision that open_clip imports must not be seen by any test.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Collection, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.support import mmdet_checkpoint
from tests.support.tiny_checkpoints.parts import small_config
from tests.support.tiny_encoders import save_csd, save_se
from tests.support.tiny_vlm import save_hpsv3

CLASSES = ("cat", "dog", "cup")


def save_mask2former(
    folder: Path,
    *,
    classes: int = len(CLASSES),
    confidence: float = 60,
    backbone: Mapping[str, Any] | None = None,
    **config: Any,
) -> None:
    """A detector of so many classes with 12 queries, as its authors have published one.

    ``confidence`` is a factor of the weights that tell classes: some guesses shall be confident. ``backbone`` and
    ``config`` change its shape.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation, SwinConfig

    torch.manual_seed(0)
    swin: dict[str, Any] = {
        "image_size": 64,
        "embed_dim": 8,
        "depths": [1, 1, 1, 1],
        "num_heads": [1, 1, 2, 2],
        "window_size": 7,
        "out_features": ["stage1", "stage2", "stage3", "stage4"],
        **(backbone or {}),
    }
    shape: dict[str, Any] = {
        "feature_size": 32,
        "mask_feature_size": 32,
        "hidden_dim": 32,
        "encoder_feedforward_dim": 16,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "num_attention_heads": 2,
        "dim_feedforward": 16,
        "num_queries": 12,
        **config,
    }
    model = Mask2FormerForUniversalSegmentation(
        Mask2FormerConfig(backbone_config=SwinConfig(**swin), num_labels=classes, **shape)
    )
    with torch.no_grad():
        model.class_predictor.weight.mul_(confidence)
    model.save_pretrained(folder)
    state = _saved(folder)
    # tensors that the hub's has, of an older version
    state["criterion.empty_weight"] = torch.ones(classes + 1)
    for name in [name for name in state if name.endswith("relative_position_bias_table")]:
        table = name.removesuffix("bias_table")
        state[f"{table}index"] = torch.zeros(49, 49, dtype=torch.int64)
    save_file(state, folder / "model.safetensors", {"format": "pt"})


_CLIP: dict[str, Any] = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 8},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}


def save_open_clip(folder: Path, *, config: Mapping[str, Any] | None = None) -> None:
    """As open_clip saves a model for the hub."""
    import open_clip
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    shape = {**(config or _CLIP), "quick_gelu": True}
    folder.mkdir(parents=True, exist_ok=True)
    model = open_clip.CLIP(**shape)
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    preprocess = {"mean": [0.5] * 3, "std": [0.5] * 3}
    (folder / "open_clip_config.json").write_text(
        json.dumps({"model_cfg": shape, "preprocess_cfg": preprocess}), encoding="utf-8"
    )


def save_hpsv2(folder: Path, *, config: Mapping[str, Any] | None = None) -> None:
    """Both versions' checkpoints; their architecture's name stands for ``config`` in this process from now on."""
    import open_clip
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    shape = config or _CLIP
    for n, name in enumerate(("HPS_v2_compressed.pt", "HPS_v2.1_compressed.pt")):
        torch.manual_seed(n)
        # in half precision, which is what "compressed" means
        state = open_clip.CLIP(**shape).half().state_dict()
        torch.save({"state_dict": state}, folder / name)
    (folder / "ViT-H-14.json").write_text(json.dumps(shape), encoding="utf-8")
    open_clip.add_model_config(folder / "ViT-H-14.json")


def save_clip_flant5(
    folder: Path,
    tower: Path,
    *,
    network: Mapping[str, Any] | None = None,
    vision: Mapping[str, Any] | None = None,
) -> None:
    """CLIP-FlanT5 in ``folder`` and its image encoder in ``tower``, as their authors have published them.

    ``network`` and ``vision`` change their shapes.
    """
    import torch
    from transformers import CLIPConfig, CLIPModel, T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    tokens = _save_t5_tokenizer(folder)
    # as of the real one, more rows than there are tokens
    small = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    config = T5Config(
        vocab_size=tokens + 28,
        **{**small, **(network or {})},
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    eye: dict[str, Any] = {
        **small_config(24, 32, 3),
        "image_size": 32,
        "patch_size": 8,
        **(vision or {}),
    }
    text = {
        **small_config(16, 16, 1),
        "vocab_size": 20,
        "max_position_embeddings": 8,
    }
    # the whole CLIP in one of torch's files, with numbers of places that it had as tensors then
    clip = CLIPModel(CLIPConfig(text_config=text, vision_config=eye, projection_dim=8))
    clip.save_pretrained(tower)
    state = _saved(tower)
    patches = (eye["image_size"] // eye["patch_size"]) ** 2
    for part, count in (("text", 8), ("vision", patches + 1)):
        state[f"{part}_model.embeddings.position_ids"] = torch.arange(count)[None]
    torch.save(state, tower / "pytorch_model.bin")
    settings = {
        **config.to_dict(),
        # the configuration of transformers 5 forgets it
        "tie_word_embeddings": False,
        "model_type": "clip_t5",
        "architectures": ["CLIPT5ForConditionalGeneration"],
        "mm_vision_select_layer": -2,
    }
    settings.pop("scale_decoder_outputs", None)
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    t5 = T5ForConditionalGeneration(config)
    # its class has the words by a fourth name, the image encoder and the projector
    state = {
        f"vision_tower.vision_tower.{name}": tensor for name, tensor in clip.vision_model.named_parameters()
    }
    state |= {**t5.state_dict(), "embed_tokens.weight": t5.shared.weight}
    width = config.d_model
    # FLAN-T5's output layer is not its word embeddings. With larger weights the probability of "Yes" is 0
    state["lm_head.weight"] = torch.randn(config.vocab_size, width) * 4 / width**0.5
    for n, taken in ((0, eye["hidden_size"]), (2, width)):
        state[f"mm_projector.{n}.weight"] = torch.randn(width, taken) / taken**0.5
        state[f"mm_projector.{n}.bias"] = torch.randn(width) / 4
    names, places = list(state), dict[str, str]()
    for n, names_here in enumerate((names[::2], names[1::2]), 1):
        file = f"pytorch_model-{n:05d}-of-00002.bin"
        torch.save({name: state[name].data for name in names_here}, folder / file)
        places |= dict.fromkeys(names_here, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index), encoding="utf-8")


def _save_t5_tokenizer(folder: Path) -> int:
    """SentencePiece's file alone, as before transformers had others; the number of tokens."""
    import sentencepiece

    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,:?\"'"
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["Yes no is it a red cup", *letters] * 9 + ["Yes"] * 99),
        model_writer=model,
        vocab_size=80,
        hard_vocab_limit=False,
        character_coverage=1.0,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    (folder / "spiece.model").write_bytes(model.getvalue())
    marks: dict[str, Any] = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    marks["additional_special_tokens"] = [f"<extra_id_{n}>" for n in range(100)]
    (folder / "special_tokens_map.json").write_text(json.dumps(marks), encoding="utf-8")
    settings = {**marks, "extra_ids": 100, "legacy": True, "tokenizer_class": "T5Tokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()).get_piece_size() + 100


def _saved(folder: Path) -> dict[str, Any]:
    """The tensors that transformers has saved in ``folder``, whose file is removed."""
    from safetensors.torch import load_file

    path = folder / "model.safetensors"
    state: dict[str, Any] = load_file(path)
    path.unlink()
    return state


def save_mplug(folder: Path) -> None:
    """In ModelScope's layout, for images of 64 pixels. ModelScope knows no image encoder narrower than 768."""
    import torch
    from modelscope.models.multi_modal.mplug import MPlug

    folder.mkdir(parents=True, exist_ok=True)
    text = "yes no is there a the red blue dog cat cup on in of two what color left right ? ."
    words = text.split()
    # its beam search begins and ends with the numbers of BERT's marks
    marks = ["[PAD]", *(f"[unused{n}]" for n in range(99)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*marks, *words, ""]), encoding="utf-8")
    task = "visual-question-answering"
    kinds = {"framework": "pytorch", "task": task, "model": {"type": "mplug"}, "pipeline": {"type": task}}
    (folder / "configuration.json").write_text(json.dumps(kinds), encoding="utf-8")
    bert = {
        "hidden_act": "gelu",
        "hidden_size": 24,
        "encoder_width": 24,
        "intermediate_size": 32,
        "initializer_range": 0.3,
        "max_position_embeddings": 64,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "pad_token_id": 0,
        "vocab_size": len(marks) + len(words),
        "text_encoder_layers": 1,
        "fusion_layers": 2,
        "stride_layer": 1,
        "text_decode_layers": 1,
    }
    (folder / "config_bert.json").write_text(json.dumps(bert), encoding="utf-8")
    settings = {
        "task": task,
        "image_res": 64,
        "vision_width": 768,
        "clip_name": "ViT-B-16",
        "clip_embed_dim": 8,
        "clip_image_resolution": 32,
        "clip_vision_layers": 1,
        "clip_vision_width": 768,
        "clip_vision_patch_size": 16,
        "clip_context_length": 8,
        "clip_vocab_size": 16,
        "clip_transformer_width": 64,
        "clip_transformer_heads": 1,
        "clip_transformer_layers": 1,
    }
    text = "".join(f"{name}: {value}\n" for name, value in settings.items())
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    torch.manual_seed(0)
    network = MPlug.from_pretrained(str(folder), load_checkpoint=False)
    with torch.no_grad():
        # else it sees no places, which it makes of zeros
        network.visual_encoder.visual.positional_embedding.normal_()
    torch.save({"model": network.state_dict()}, folder / "pytorch_model.bin")


def save_clip(
    folder: Path,
    *,
    width: int = 12,
    vision: Mapping[str, Any] | None = None,
    text: Mapping[str, Any] | None = None,
) -> Any:
    """A whole CLIP with its tokenizer, as OpenAI's are on the hub: the model.

    ``vision`` and ``text`` change its shape.
    """
    import torch
    from transformers import CLIPConfig, CLIPModel

    from tests.support.tiny_checkpoints.parts import clip_tokenizer

    torch.manual_seed(0)
    tokenizer = clip_tokenizer()
    shape = {
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "projection_dim": width,
    }
    eye = {**shape, "hidden_size": 24, "image_size": 32, "patch_size": 8, "initializer_factor": 5.0}
    words = {**shape, "hidden_size": 16, "vocab_size": len(tokenizer), "initializer_factor": 5.0}
    words |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, **(text or {})}
    eye |= vision or {}
    model = CLIPModel(CLIPConfig(text_config=words, vision_config=eye, projection_dim=width)).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def save_aesthetic(path: Path, *, width: int = 12) -> dict[str, Any]:
    """LAION's layers above a CLIP of that width: the tensors."""
    import torch

    torch.manual_seed(0)
    widths, state = (width, 1024, 128, 64, 16, 1), dict[str, Any]()
    for place, (before, after) in zip((0, 2, 4, 6, 7), pairwise(widths), strict=True):
        state[f"layers.{place}.weight"] = torch.randn(after, before) / before**0.5
        state[f"layers.{place}.bias"] = torch.randn(after)
    torch.save(state, path)
    return state


def save_linear_predictor(path: Path, *, width: int = 12) -> dict[str, Any]:
    """LAION's first predictor above a CLIP of that width: the tensors."""
    import torch

    torch.manual_seed(0)
    state = {"weight": torch.randn(1, width), "bias": torch.randn(1)}
    torch.save(state, path)
    return state


def save_imagereward(folder: Path) -> dict[str, Any]:
    """ImageReward in its authors' format, and the tokenizer of BERT: the tensors.

    The widths of a head (64) and of the text encoder (768) are fixed by the authors' program.
    """
    import numpy as np
    import torch

    wide, hidden, inner, layers, patch, side = 128, 768, 32, 2, 8, 32
    text = "a red blue cup two dogs one of them is on the table very long prompt , ."
    words = text.split()
    marks = ["[PAD]", *(f"[unused{n}]" for n in range(99)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    # numpy's old generator draws the same numbers on every machine
    draw, state = np.random.RandomState(0), dict[str, Any]()

    def drawn(*shape: int) -> Any:
        return torch.from_numpy(draw.standard_normal(shape)).float()

    def add(name: str, rows: int, columns: int = 0, *more: int) -> None:
        """Adds a layer of ``columns`` to ``rows``; without ``columns`` a norm."""
        shape = (rows, columns, *more) if columns else (rows,)
        weight = drawn(*shape)
        state[f"{name}.weight"] = weight / weight[0].numel() ** 0.5 if columns else 1 + weight / 4
        state[f"{name}.bias"] = drawn(rows) / 4

    eye = "blip.visual_encoder"
    state[f"{eye}.cls_token"] = drawn(1, 1, wide)
    state[f"{eye}.pos_embed"] = drawn(1, (side // patch) ** 2 + 1, wide)
    add(f"{eye}.patch_embed.proj", wide, 3, patch, patch)
    for n in range(layers):
        block = f"{eye}.blocks.{n}"
        add(f"{block}.norm1", wide)
        add(f"{block}.attn.qkv", 3 * wide, wide)
        add(f"{block}.attn.proj", wide, wide)
        add(f"{block}.norm2", wide)
        add(f"{block}.mlp.fc1", 4 * wide, wide)
        add(f"{block}.mlp.fc2", wide, 4 * wide)
    add(f"{eye}.norm", wide)
    reader = "blip.text_encoder"
    for name, rows in (("word", len(marks) + len(words)), ("position", 64)):
        state[f"{reader}.embeddings.{name}_embeddings.weight"] = drawn(rows, hidden)
    state[f"{reader}.embeddings.position_ids"] = torch.arange(64)[None]
    add(f"{reader}.embeddings.LayerNorm", hidden)
    for n in range(layers):
        layer = f"{reader}.encoder.layer.{n}"
        for kind, taken in (("attention", hidden), ("crossattention", wide)):
            for name, columns in (("query", hidden), ("key", taken), ("value", taken)):
                add(f"{layer}.{kind}.self.{name}", hidden, columns)
            add(f"{layer}.{kind}.output.dense", hidden, hidden)
            add(f"{layer}.{kind}.output.LayerNorm", hidden)
        add(f"{layer}.intermediate.dense", inner, hidden)
        add(f"{layer}.output.dense", hidden, inner)
        add(f"{layer}.output.LayerNorm", hidden)
    add("blip.vision_proj", 256, wide)
    add("blip.text_proj", 256, hidden)
    for place, pair in zip((0, 2, 4, 6, 7), pairwise((hidden, 1024, 128, 64, 16, 1)), strict=True):
        add(f"mlp.layers.{place}", pair[1], pair[0])
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(state, folder / "ImageReward.pt")
    settings = {
        "hidden_act": "gelu",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 64,
        "model_type": "bert",
        "num_attention_heads": 12,
        "num_hidden_layers": layers,
        "pad_token_id": 0,
        "type_vocab_size": 2,
        "vocab_size": len(marks) + len(words),
        "encoder_width": hidden,
        "add_cross_attention": True,
    }
    (folder / "med_config.json").write_text(json.dumps(settings), encoding="utf-8")
    bert = folder / "bert"
    bert.mkdir(exist_ok=True)
    (bert / "vocab.txt").write_text("\n".join([*marks, *words, ""]), encoding="utf-8")
    (bert / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    (bert / "tokenizer_config.json").write_text('{"do_lower_case": true}', encoding="utf-8")
    return state


def save_llava(folder: Path) -> Any:
    """LLaVA-1.5 in transformers' format: the model."""
    import torch
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    from tests.support.tiny_checkpoints.parts import beginning_tokenizer

    torch.manual_seed(0)
    tokenizer = beginning_tokenizer("<image>")
    shape = {"intermediate_size": 32, "num_attention_heads": 2, "hidden_size": 24}
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(
            **shape, num_hidden_layers=3, image_size=32, patch_size=8, initializer_factor=5.0
        ),
        text_config=LlamaConfig(
            **shape, num_hidden_layers=2, vocab_size=len(tokenizer), initializer_range=0.3
        ),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )
    model = LlavaForConditionalGeneration(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def save_niqe(path: Path) -> dict[str, Any]:
    """Statistics of photographs that there are not, by their published names."""
    import numpy as np

    draw = np.random.default_rng(4)
    factor = draw.normal(size=(36, 36)) / 6
    line = np.exp(-np.square(np.arange(-3, 4) / (7 / 6)) / 2)
    window = np.outer(line, line)
    arrays = {
        "mu_pris_param": draw.uniform(0.2, 2.0, size=(1, 36)),
        "cov_pris_param": factor @ factor.T + np.eye(36) / 10,
        "gaussian_window": window / window.sum(),
    }
    np.savez(path, **arrays)
    return arrays


def save_all(folder: Path, benchmarks: Collection[str]) -> dict[str, dict[str, str]]:
    """Saves the weights of GenEval, HPSv2, prefer, CVTG-2K and OneIG-Bench; returns their places by benchmark."""
    places = {}
    # of a benchmark's own classes and reference vectors there are so many, and so wide
    if "geneval" in benchmarks:
        save_open_clip(folder / "geneval_clip")
        mmdet_checkpoint.save(folder / "mask2former_mmdet", mmdet_checkpoint.small())
        places["geneval"] = {name: str(folder / name) for name in ("mask2former_mmdet", "geneval_clip")}
    if "hpsv2" in benchmarks:
        save_hpsv2(folder / "hpsv2")
        places["hpsv2"] = {"hpsv2": str(folder / "hpsv2")}
    if "prefer" in benchmarks:
        save_hpsv2(folder / "hpsv2")
        save_clip(folder / "clip")
        save_aesthetic(folder / "aesthetic.pth")
        save_imagereward(folder / "imagereward")
        own = {"imagereward": str(folder / "imagereward"), "bert": str(folder / "imagereward/bert")}
        save_hpsv3(folder / "hpsv3")
        own |= {"hpsv3": str(folder / "hpsv3"), "qwen2_vl": str(folder / "hpsv3/qwen2_vl")}
        own |= {"hpsv2": str(folder / "hpsv2"), "aesthetic": str(folder / "aesthetic.pth")}
        clips = ("pickscore", "clip_vit_h_14", "clip_vit_b_32", "clip_vit_l_14")
        places["prefer"] = own | dict.fromkeys(clips, str(folder / "clip"))
    if "cvtg2k" in benchmarks:
        save_clip(folder / "clip")
        save_linear_predictor(folder / "linear.pth")
        places["cvtg2k"] = {
            "clip_vit_l_14": str(folder / "clip"),
            "aesthetic_v1": str(folder / "linear.pth"),
        }
    if "oneig" in benchmarks:
        save_csd(folder / "csd", projection=768)
        save_se(folder / "se", projection=1280)
        places["oneig"] = {name: str(folder / name) for name in ("csd", "se")}
    return places


if __name__ == "__main__":
    print(json.dumps(save_all(Path(sys.argv[1]), sys.argv[2:])))
