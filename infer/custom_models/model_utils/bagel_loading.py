"""The authors' BAGEL model with its weights, put together as their app.py does, ready to make images."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from imageevalkit.generation.model import ModelUnusable

# what reads or writes tokens is on one GPU
_WITH_TOKENS = {
    "language_model.model.embed_tokens",
    "time_embedder",
    "latent_pos_embed",
    "vae2llm",
    "llm2vae",
    "connector",
    "vit_pos_embed",
}


def load_inferencer(folder: Path, device: str) -> Any:
    """The authors' ``InterleaveInferencer`` with the weights in ``folder``.

    Source: ByteDance-Seed/Bagel@056b5fd5, app.py.

    Args:
        device: ``cuda`` spreads the layers over all GPUs that the process sees.

    Raises:
        ModelUnusable: they have too little memory.
    """
    import torch
    from accelerate import init_empty_weights, load_checkpoint_and_dispatch

    inferencer = import_module("inferencer")
    add_special_tokens = import_module("data.data_utils").add_special_tokens
    transform = import_module("data.transforms").ImageTransform
    bagel = import_module("modeling.bagel")

    llm_config = bagel.Qwen2Config.from_json_file(str(folder / "llm_config.json"))
    llm_config.qk_norm, llm_config.tie_word_embeddings = True, False
    llm_config.layer_module = "Qwen2MoTDecoderLayer"
    vit_config = bagel.SiglipVisionConfig.from_json_file(str(folder / "vit_config.json"))
    vit_config.rope = False
    vit_config.num_hidden_layers -= 1
    vae, vae_config = import_module("modeling.autoencoder").load_ae(local_path=str(folder / "ae.safetensors"))
    config = bagel.BagelConfig(
        visual_gen=True,
        visual_und=True,
        llm_config=llm_config,
        vit_config=vit_config,
        vae_config=vae_config,
        vit_max_num_patch_per_side=70,
        connector_act="gelu_pytorch_tanh",
        latent_patch_size=2,
        max_latent_size=64,
    )
    with init_empty_weights():
        language_model = bagel.Qwen2ForCausalLM(llm_config)
        model = bagel.Bagel(language_model, bagel.SiglipVisionModel(vit_config), config)
        model.vit_model.vision_model.embeddings.convert_conv2d_to_linear(vit_config, meta=True)
    tokenizer = import_module("modeling.qwen2").Qwen2Tokenizer.from_pretrained(str(folder))
    tokenizer, new_token_ids, _ = add_special_tokens(tokenizer)
    model = load_checkpoint_and_dispatch(
        model,
        checkpoint=str(folder / "ema.safetensors"),
        device_map=_placement(model, device),
        dtype=torch.bfloat16,
        # their inferencer makes tensors on the CPU; the hooks move them
        force_hooks=True,
    )
    _decode_on(vae, device)
    return inferencer.InterleaveInferencer(
        model=model.eval(),
        vae_model=vae,
        tokenizer=tokenizer,
        vae_transform=transform(1024, 512, 16),
        vit_transform=transform(980, 224, 14),
        new_token_ids=new_token_ids,
    )


def _placement(model: Any, device: str) -> dict[str, Any]:
    """accelerate's device map: layers over all GPUs. Raises ModelUnusable."""
    import torch

    gpus = torch.cuda.device_count()
    if device != "cuda" or gpus < 2:
        return {"": 0 if device == "cuda" else device}
    from accelerate import infer_auto_device_map

    # the rest is for the keys, values and activations of an image
    free = {gpu: int(torch.cuda.mem_get_info(gpu)[0] * 0.85) for gpu in range(gpus)}
    layer = ["Bagel", "Qwen2MoTDecoderLayer"]
    places: dict[str, Any] = infer_auto_device_map(
        model, max_memory=free, no_split_module_classes=layer, dtype=torch.bfloat16
    )
    if "disk" in places.values():
        raise ModelUnusable(f"the weights (30 GB) do not fit in {gpus} GPUs of this size")
    return places | dict.fromkeys(_WITH_TOKENS & places.keys(), 0)


def _decode_on(vae: Any, device: str) -> None:
    """Decode there, in float32. The authors' app does on the CPU, which takes seconds; its noise stays a CPU's."""
    import torch

    if device == "cpu":
        return
    decode = vae.decode
    vae.decoder.to(device)

    def decoded(latent: Any) -> Any:
        with torch.autocast(device_type="cuda", enabled=False):
            return decode(latent.to(device=device, dtype=torch.float32))

    vae.decode = decoded
