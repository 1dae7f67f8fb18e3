"""LLM2CLIP's two checkpoints with random weights, saved as the hub's are: names, files and configurations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.tiny_checkpoints.parts import small_config

WIDTH = 64
FEATURES = 24
SIDE = 28
_INNER = 2 * WIDTH
_DEPTH = 3
_SPREAD = 0.3
_CORPUS = (
    "The image shows water that boils at one hundred degrees, and steam which rises above the pot. "
    "A right triangle with sides three, four and five; its angles sum to 180 degrees."
)
# how Llama 3 cuts text before it merges bytes
_CUT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def save_llm2clip(folder: Path) -> dict[str, str]:
    """Both checkpoints below ``folder``; their places, as EncoderOptions.weights."""
    places = {"llm2clip_vision": folder / "vision", "llm2clip_text": folder / "text"}
    save_clip(places["llm2clip_vision"])
    save_llama(places["llm2clip_text"])
    return {name: str(place) for name, place in places.items()}


def clip_state() -> dict[str, Any]:
    """All tensors of the image encoder and the text adapter by their names on the hub, float32."""
    import torch
    from transformers import CLIPVisionModelWithProjection

    torch.manual_seed(0)
    vision = CLIPVisionModelWithProjection(vision_config())
    state = {name: torch.randn(tensor.shape) * 0.2 for name, tensor in vision.state_dict().items()}
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(_DEPTH):
        shapes |= {f"{i}.fn.0.weight": (_INNER, WIDTH), f"{i}.fn.0.bias": (_INNER,)}
        shapes |= {f"{i}.fn.3.weight": (WIDTH, _INNER), f"{i}.fn.3.bias": (WIDTH,)}
        shapes |= {f"{i}.ln.weight": (WIDTH,), f"{i}.ln.bias": (WIDTH,)}
    shapes |= {f"{_DEPTH}.weight": (WIDTH,), f"{_DEPTH}.bias": (WIDTH,)}
    shapes |= {f"{_DEPTH + 1}.weight": (FEATURES, WIDTH), f"{_DEPTH + 1}.bias": (FEATURES,)}
    state |= {f"text_adapter.adaptor.{name}": torch.randn(shape) * 0.2 for name, shape in shapes.items()}
    return state | {"logit_scale": torch.tensor(4.6)}


def save_clip(folder: Path, change: Callable[[dict[str, Any]], None] = lambda state: None) -> None:
    """The checkpoint of images and adapter, after ``change`` of its tensors."""
    from safetensors.torch import save_file

    state = clip_state()
    change(state)
    folder.mkdir(parents=True)
    save_file(state, folder / "model.safetensors")
    vision = vision_config().to_dict()
    # a projection of another size than the weights' own, which the hub's code does not read either
    config = {
        "model_type": "clip",
        "architectures": ["CLIPModel"],
        "auto_map": {"AutoModel": "modeling_clip.CLIPModel", "AutoConfig": "configuration_clip.CLIPConfig"},
        "projection_dim": FEATURES,
        "text_config": {"model_type": "clip_text_model"},
        "vision_config": {**vision, "projection_dim": 768, "torchscript": False, "bad_words_ids": None},
    }
    (folder / "config.json").write_text(json.dumps(config))


def save_llama(folder: Path, change: Callable[[dict[str, Any]], None] = lambda state: None) -> None:
    """The LLM in bfloat16, after ``change`` of its tensors, with a configuration that names the hub's own code."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import LlamaConfig, LlamaModel

    tokenizer = save_tokenizer(folder)
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        **small_config(WIDTH, 2 * WIDTH, 2, 4),
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=_SPREAD,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaModel(config).to(torch.bfloat16).save_pretrained(folder)
    weights = folder / "model.safetensors"
    state = load_file(weights)
    change(state)
    save_file(state, weights, metadata={"format": "pt"})
    saved = json.loads((folder / "config.json").read_text())
    saved["architectures"] = ["LlamaEncoderModel"]
    saved["auto_map"] = {"AutoModel": "modeling_llama_encoder.LlamaEncoderModel"}
    (folder / "config.json").write_text(json.dumps(saved))


def save_tokenizer(folder: Path) -> Any:
    """Byte-level BPE with Llama 3's cuts, its special tokens, and the first token put by the tokenizer itself."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    begin, header, header_end, end = (
        "<|begin_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    )
    fast = Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_CUT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    fast.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    fast.train_from_iterator(
        [_CORPUS], trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    fast.add_special_tokens([begin, header, header_end, end])
    fast.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, fast.token_to_id(begin))]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=fast, bos_token=begin, eos_token=end, pad_token=end, padding_side="left"
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def vision_config() -> Any:
    from transformers import CLIPVisionConfig

    return CLIPVisionConfig(
        **small_config(32, 48, 2),
        image_size=SIDE,
        patch_size=14,
        projection_dim=FEATURES,
        hidden_act="quick_gelu",
    )
