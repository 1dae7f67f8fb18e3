"""BAGEL-7B-MoT with the authors' code. It takes texts and images in any order and generates one image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from PIL import Image

from custom_models.authors import AuthorsModel
from custom_models.model_settings import BAGEL
from custom_models.model_utils.flash_attention import flash_attention
from imageevalkit.generate.model import Generated, ItemFailed, ModelUnusable

_STRIDE, _LARGEST = 16, 1024  # pixels
# modules that read or write tokens; they must share one GPU
_WITH_TOKENS = {
    "language_model.model.embed_tokens",
    "time_embedder",
    "latent_pos_embed",
    "vae2llm",
    "llm2vae",
    "connector",
    "vit_pos_embed",
}


@dataclass(kw_only=True, eq=False)
class Bagel(AuthorsModel):
    """The base of both tasks: loading and settings.

    Args:
        think: the model first writes a plan in words, as the authors' system prompt requests.
        max_think_tokens: maximum length of the plan, which is decoded greedily.
        cfg_text_scale, cfg_img_scale: guidance towards the text and the input images; 1 means none.
        cfg_interval_start, cfg_interval_end: guidance is on between these times (1 is noise, 0 the image).
        cfg_renorm_type: ``global``, ``channel`` or ``text_channel``.
        cfg_renorm_min: minimum renormalisation factor, 0 to 1; 1 turns renormalisation off.
        num_timesteps, timestep_shift: number of steps, and their density near the noise.
        device: a torch device; ``cuda`` spreads the layers over all GPUs that the process sees.


    Source: ByteDance-Seed/Bagel@056b5fd5, app.py and README.md ("About Inference Hyperparameters").
    """

    code = "bagel"
    files = BAGEL.patterns

    think: bool
    max_think_tokens: int
    cfg_text_scale: float
    cfg_img_scale: float
    cfg_interval_start: float
    cfg_interval_end: float
    cfg_renorm_type: str
    cfg_renorm_min: float
    num_timesteps: int
    timestep_shift: float

    def load(self) -> None:
        with flash_attention():
            self._put_together(Path(self.weights()))

    def _put_together(self, folder: Path) -> None:
        """Builds the authors' ``InterleaveInferencer``, like app.py. Raises ModelUnusable if the GPUs have
        too little memory."""
        import torch
        from accelerate import init_empty_weights, load_checkpoint_and_dispatch

        add_special_tokens = import_module("data.data_utils").add_special_tokens
        transform = import_module("data.transforms").ImageTransform
        bagel = import_module("modeling.bagel")

        llm_config = bagel.Qwen2Config.from_json_file(str(folder / "llm_config.json"))
        llm_config.qk_norm, llm_config.tie_word_embeddings = True, False
        llm_config.layer_module = "Qwen2MoTDecoderLayer"
        vit_config = bagel.SiglipVisionConfig.from_json_file(str(folder / "vit_config.json"))
        vit_config.rope = False
        vit_config.num_hidden_layers -= 1
        vae, vae_config = import_module("modeling.autoencoder").load_ae(
            local_path=str(folder / "ae.safetensors")
        )
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
            device_map=_placement(model, self.device),
            dtype=torch.bfloat16,
            # the authors' inferencer creates tensors on the CPU; the hooks move them to the GPU
            force_hooks=True,
        )
        _decode_on(vae, self.device)
        self._inferencer: Any = import_module("inferencer").InterleaveInferencer(
            model=model.eval(),
            vae_model=vae,
            tokenizer=tokenizer,
            vae_transform=transform(1024, 512, 16),
            vit_transform=transform(980, 224, 14),
            new_token_ids=new_token_ids,
        )

    def make(self, given: Any, seed: int, **size: Any) -> Generated:
        """Returns one image. A plan of the model becomes ``extra["thought"]``."""
        import torch

        torch.backends.cudnn.deterministic = True
        answers = self._inferencer.interleave_inference(
            input_lists=list(given),
            max_think_token_n=self.max_think_tokens,
            do_sample=False,
            cfg_interval=[self.cfg_interval_start, self.cfg_interval_end],
            **self.chosen("think", "cfg_text_scale", "cfg_img_scale", "cfg_renorm_min", "cfg_renorm_type"),
            **self.chosen("num_timesteps", "timestep_shift"),
            **size,
        )
        thoughts = [answer for answer in answers if isinstance(answer, str)]
        return Generated(
            answers[-1],
            requested_size=answers[-1].size,
            extra={"thought": thoughts[0]} if thoughts else {},
        )


@dataclass(kw_only=True, eq=False)
class BagelT2I(Bagel):
    """Text to image. ``width`` and ``height`` are multiples of 16, at most 1024."""

    width: int
    height: int

    def check(self) -> None:
        for side in (self.width, self.height):
            if side % _STRIDE or not 0 < side <= _LARGEST:
                raise ModelUnusable(
                    f"BAGEL makes sides of 16, 32, … or 1024 pixels, not {self.width} x {self.height}"
                )
        super().check()

    def make(self, given: str, seed: int, **size: Any) -> Generated:
        """Returns the image for a prompt."""
        return super().make([given], seed, image_shapes=(self.height, self.width))


class BagelEdit(Bagel):
    """Edit. The last input image, scaled to sides of 512 to 1024 pixels, decides the size of the output."""

    def make(self, given: Sequence[str | Image.Image], seed: int, **size: Any) -> Generated:
        """Returns one image. The model reads texts and images in order; alpha is composited on white.

        Raises ItemFailed without an input image.
        """
        if not any(isinstance(part, Image.Image) for part in given):
            raise ItemFailed("the item has no input image to edit", attempts=0)
        return super().make(given, seed)


def _placement(model: Any, device: str) -> dict[str, Any]:
    """Returns accelerate's device map with layers on all GPUs. Raises ModelUnusable if the GPUs are too
    small."""
    import torch

    gpus = torch.cuda.device_count()
    if device != "cuda" or gpus < 2:
        return {"": 0 if device == "cuda" else device}
    from accelerate import infer_auto_device_map

    # the remaining 15 % are for the keys, values and activations of an image
    free = {gpu: int(torch.cuda.mem_get_info(gpu)[0] * 0.85) for gpu in range(gpus)}
    layer = ["Bagel", "Qwen2MoTDecoderLayer"]
    places: dict[str, Any] = infer_auto_device_map(
        model, max_memory=free, no_split_module_classes=layer, dtype=torch.bfloat16
    )
    if "disk" in places.values():
        raise ModelUnusable(f"the weights (30 GB) do not fit in {gpus} GPUs of this size")
    return places | dict.fromkeys(_WITH_TOKENS & places.keys(), 0)


def _decode_on(vae: Any, device: str) -> None:
    """Moves the decoder to ``device``, in float32. On the CPU, as in the authors' app, decoding takes
    seconds. The noise is still drawn on the CPU."""
    import torch

    if device == "cpu":
        return
    decode = vae.decode
    vae.decoder.to(device)

    def decoded(latent: Any) -> Any:
        with torch.autocast(device_type="cuda", enabled=False):
            return decode(latent.to(device=device, dtype=torch.float32))

    vae.decode = decoded
