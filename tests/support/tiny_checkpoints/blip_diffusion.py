"""A tiny BLIP-Diffusion pipeline; runs in its environment only (requirements/model/blip-diffusion.txt).

``python -m tests.support.tiny_checkpoints.blip_diffusion FOLDER`` builds it, makes images with the registered model,
and prints what it found as JSON.
"""

from __future__ import annotations

import json
import string
import sys
from pathlib import Path
from typing import Any

WIDTH = 16
QUERIES = 4


def save_bert_tokenizer(folder: Path) -> None:
    """One token for each letter."""
    folder.mkdir(parents=True)
    letters = [*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase)]
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]))
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))


def save_blip_diffusion(folder: Path, bert: Path) -> None:
    """The pipeline with random weights, as the hub has it: its Q-Former names no tokenizer."""
    import torch
    from diffusers import AutoencoderKL, BlipDiffusionPipeline, PNDMScheduler, UNet2DConditionModel
    from diffusers.pipelines.blip_diffusion.blip_image_processing import BlipImageProcessor
    from diffusers.pipelines.blip_diffusion.modeling_blip2 import Blip2QFormerModel
    from diffusers.pipelines.blip_diffusion.modeling_ctx_clip import ContextCLIPTextModel
    from transformers import Blip2Config, CLIPTextConfig

    torch.manual_seed(0)
    tokenizer = _clip_tokenizer(folder.parent / "clip")
    sizes = {
        "hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    qformer = Blip2QFormerModel(
        Blip2Config(
            vision_config={**sizes, "image_size": 32, "patch_size": 16},
            qformer_config={
                **sizes,
                "vocab_size": 80,
                "encoder_hidden_size": WIDTH,
                "cross_attention_frequency": 1,
            },
            num_query_tokens=QUERIES,
            tokenizer=str(bert),
        )
    )
    qformer.config.tokenizer = None
    # as they begin, weights are too small for the subject to tell in the picture
    with torch.no_grad():
        for weights in qformer.parameters():
            if weights.ndim > 1:
                weights.normal_()
    text_encoder = ContextCLIPTextModel(
        CLIPTextConfig(
            **sizes, vocab_size=len(tokenizer), projection_dim=WIDTH, bos_token_id=0, eos_token_id=1
        )
    )
    unet = UNet2DConditionModel(
        sample_size=32,
        block_out_channels=(8, 8, 8, 16),
        norm_num_groups=4,
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D", "DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D", "UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=WIDTH,
        attention_head_dim=4,
    )
    vae = AutoencoderKL(
        block_out_channels=(8,) * 4,
        norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
    )
    BlipDiffusionPipeline(
        tokenizer=tokenizer,
        text_encoder=text_encoder.eval(),
        vae=vae.eval(),
        unet=unet.eval(),
        scheduler=PNDMScheduler(skip_prk_steps=True, set_alpha_to_one=False),
        qformer=qformer.eval(),
        image_processor=BlipImageProcessor(size={"height": 32, "width": 32}),
    ).save_pretrained(folder)


def _clip_tokenizer(folder: Path) -> Any:
    from transformers import CLIPTokenizer

    symbols = ["<|startoftext|>", "<|endoftext|>", *string.ascii_letters, *string.punctuation]
    symbols += [f"{symbol}</w>" for symbol in symbols[2:]]
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps({symbol: n for n, symbol in enumerate(symbols)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return CLIPTokenizer.from_pretrained(folder, model_max_length=77)


def main(folder: Path) -> None:
    """Print what the registered model does with the checkpoint that is built in ``folder``."""
    import torch
    from PIL import Image

    from custom_models.load_model import MODEL_SETTINGS, load_model
    from tests.support.native_contract import OTHER_PHOTO, PHOTO, apart

    torch.set_num_threads(1)
    save_bert_tokenizer(folder / "bert")
    save_blip_diffusion(folder / "pipeline", folder / "bert")
    entry = MODEL_SETTINGS["subject"]["blip-diffusion"]
    small = {
        **entry["model_kwargs"],
        "device": "cpu",
        "dtype": "float32",
        "width": 64,
        "height": 64,
        "num_inference_steps": 2,
        "bert": str(folder / "bert"),
        "bert_revision": None,
        # of one token for each letter the example's would be too long
        "neg_prompt": "lowres",
    }
    model = load_model({**entry, "model_path": str(folder / "pipeline"), "model_kwargs": small})

    def image(name: str = "dog", photo: Image.Image = PHOTO, prompt: str = "asleep", seed: int = 7) -> Any:
        return model.generate([name, photo, prompt], seed).image

    first = image()
    tokenizer = model._pipeline.qformer.tokenizer
    found = {
        "size": first.size,
        "again": apart(first, image()),
        "other name": apart(first, image(name="cat")),
        "other photo": apart(first, image(photo=OTHER_PHOTO)),
        "other prompt": apart(first, image(prompt="on a sofa")),
        "other seed": apart(first, image(seed=8)),
        "tokenizer": [tokenizer.name_or_path, tokenizer.bos_token, tokenizer.truncation_side],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
