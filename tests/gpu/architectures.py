"""Models of true size with random weights, drawn on their device: no file and no download.

The sizes are those of the published configurations. ``tiny`` makes the same classes of few numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from custom_models.model_utils.diffusers_models import DiffusersT2I, LoadOptions
from tests.support.tiny_checkpoints.flux import flux_parts
from tests.support.tiny_checkpoints.parts import Sizes
from tests.support.tiny_checkpoints.qwen_image import qwen_image_parts
from tests.support.tiny_checkpoints.stable_diffusion import stable_diffusion_3_parts

_CLIP_L: dict[str, Any] = {
    "vocab_size": 49408,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "projection_dim": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
}
_CLIP_BIG_G: dict[str, Any] = {
    **_CLIP_L,
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "projection_dim": 1280,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "hidden_act": "gelu",
}
_T5_XXL: dict[str, Any] = {
    "vocab_size": 32128,
    "width": 4096,
    "d_kv": 64,
    "d_ff": 10240,
    "num_layers": 24,
    "num_heads": 64,
    "feed_forward_proj": "gated-gelu",
}
_VAE: dict[str, Any] = {
    "blocks": 4,
    "block_out_channels": (128, 256, 512, 512),
    "layers_per_block": 2,
    "norm_num_groups": 32,
    "latent_channels": 16,
    "sample_size": 1024,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}
_SD3: dict[str, Any] = {
    "sample_size": 128,
    "patch_size": 2,
    "in_channels": 16,
    "out_channels": 16,
    "attention_head_dim": 64,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 2048,
    "qk_norm": "rms_norm",
}
QWEN2_5_VL_7B: dict[str, dict[str, Any]] = {
    "text": {
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 128000,
        "initializer_range": 0.02,
        "rope_parameters": {"rope_theta": 1e6, "rope_type": "default", "mrope_section": [16, 24, 24]},
    },
    "vision": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "fullatt_block_indexes": [7, 15, 23, 31],
    },
}


class Architecture(NamedTuple):
    """``sizes`` are those of the ``parts`` of a pipeline. ``settings`` are arguments of its calls."""

    pipeline: str
    parts: Callable[..., dict[str, Any]]
    sizes: Sizes
    settings: Mapping[str, Any] = {}

    def build(self, device: str, dtype: Any, tiny: bool) -> Any:
        """Returns the pipeline with random weights on ``device``."""
        import diffusers
        import torch

        # small ones have the same weights in every precision; large ones would need twice the memory for that
        with drawn_on(device, torch.float32 if tiny else dtype):
            parts = self.parts(sizes={} if tiny else self.sizes)
        pipeline = getattr(diffusers, self.pipeline)(**parts).to(dtype)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline


def _sd3(layers: int, **transformer: Any) -> Architecture:
    sizes = {
        # one head for each layer
        "transformer": {
            **_SD3,
            "num_layers": layers,
            "num_attention_heads": layers,
            "caption_projection_dim": 64 * layers,
            **transformer,
        },
        "vae": {**_VAE, "scaling_factor": 1.5305, "shift_factor": 0.0609},
        "text_encoder": _CLIP_L,
        "text_encoder_2": _CLIP_BIG_G,
        "text_encoder_3": _T5_XXL,
    }
    return Architecture("StableDiffusion3Pipeline", stable_diffusion_3_parts, sizes)


ARCHITECTURES = {
    "flux.1-dev": Architecture(
        "FluxPipeline",
        flux_parts,
        {
            "transformer": {
                "in_channels": 64,
                "num_layers": 19,
                "num_single_layers": 38,
                "attention_head_dim": 128,
                "num_attention_heads": 24,
                "joint_attention_dim": 4096,
                "pooled_projection_dim": 768,
                "axes_dims_rope": (16, 56, 56),
            },
            "vae": {**_VAE, "scaling_factor": 0.3611, "shift_factor": 0.1159},
            "text_encoder": _CLIP_L,
            "text_encoder_2": _T5_XXL,
        },
    ),
    "sd3.5-medium": _sd3(24, pos_embed_max_size=384, dual_attention_layers=tuple(range(13))),
    "qwen-image": Architecture(
        "QwenImagePipeline",
        qwen_image_parts,
        {
            "transformer": {
                "in_channels": 64,
                "out_channels": 16,
                "num_layers": 60,
                "attention_head_dim": 128,
                "num_attention_heads": 24,
                "joint_attention_dim": 3584,
                "axes_dims_rope": (16, 56, 56),
            },
            "vae": {
                "base_dim": 96,
                "z_dim": 16,
                "dim_mult": [1, 2, 4, 4],
                "num_res_blocks": 2,
                "temperal_downsample": [False, True, True],
                "latents_mean": [0.0] * 16,
                "latents_std": [1.0] * 16,
            },
            "text_encoder": QWEN2_5_VL_7B,
        },
    ),
}


class RandomT2I(DiffusersT2I):
    """The toolkit's class for diffusers, whose pipeline is built where another is read from a folder.

    Args:
        architecture: a name of :data:`ARCHITECTURES`.
        tiny: True for small sizes.
        built: a pipeline of the architecture to use in place of a new one. The settings change it.
    """

    def __init__(
        self, model_path: str, *, architecture: str, tiny: bool = False, built: Any = None, **settings: Any
    ) -> None:
        self._architecture, self._tiny, self._built = ARCHITECTURES[architecture], tiny, built
        super().__init__(model_path, pipeline_class=self._architecture.pipeline, **settings)

    def _load(self, cls: Any, options: LoadOptions) -> Any:
        # in the place of the pipeline's class, of which only this method is called
        return super()._load(self, options)

    def from_pretrained(self, model_path: str, **arguments: Any) -> Any:
        """Returns the pipeline, as the class method of that name in diffusers."""
        if self._built is not None:
            return self._built
        dtype = arguments.get("dtype") or arguments["torch_dtype"]
        return self._architecture.build(self.device, dtype, self._tiny)


@contextmanager
def drawn_on(device: str, dtype: Any) -> Iterator[None]:
    """New modules have their weights on ``device``, in ``dtype``, from the first on."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)
