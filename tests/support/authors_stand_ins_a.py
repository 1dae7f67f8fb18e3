"""Stand-ins for the authors' repositories: their modules' names and signatures, and next to nothing behind them.

Each stand-in tells ``stand_in_calls`` what reached it. Written to a ``code/`` folder, they take the place of what
prefetch puts there.
"""

from __future__ import annotations

from pathlib import Path

_RECORD = """
CALLS = []

def record(name, arguments):
    CALLS.append((name, {key: value for key, value in arguments.items() if key not in ("self", "__class__")}))
"""

_START = "from stand_in_calls import record\n"

# repository folder -> file -> source; signatures as at the commits in the registry, which a test checks
SOURCES: dict[str, dict[str, str]] = {
    "bagel": {
        "inferencer.py": """
from PIL import Image

class InterleaveInferencer:
    def __init__(self, model, vae_model, tokenizer, vae_transform, vit_transform, new_token_ids):
        record("InterleaveInferencer", locals())

    def interleave_inference(self, input_lists, think=False, understanding_output=False, max_think_token_n=1000,
            do_sample=False, text_temperature=0.3, cfg_text_scale=3.0, cfg_img_scale=1.5, cfg_interval=[0.4, 1.0],
            timestep_shift=3.0, num_timesteps=50, cfg_renorm_min=0.0, cfg_renorm_type="global",
            image_shapes=(1024, 1024), enable_taylorseer=False):
        import numpy, random, torch
        drawn = (random.random(), numpy.random.rand(), torch.rand(()).item())
        record("interleave_inference", locals())
        height, width = image_shapes
        return ["a plan"] * think + [Image.new("RGB", (width, height))]
""",
        "data/__init__.py": "",
        "data/data_utils.py": """
def add_special_tokens(tokenizer):
    return tokenizer, {"bos_token_id": 1}, 4
""",
        "data/transforms.py": """
class ImageTransform:
    def __init__(self, max_image_size, min_image_size, image_stride, max_pixels=14*14*9*1024,
            image_mean=[0.5, 0.5, 0.5], image_std=[0.5, 0.5, 0.5]):
        self.sides = (max_image_size, min_image_size, image_stride)
""",
        "modeling/__init__.py": "",
        "modeling/autoencoder.py": """
def load_ae(local_path):
    record("load_ae", locals())
    return "the autoencoder", "its configuration"
""",
        "modeling/qwen2/__init__.py": "from .tokenization_qwen2 import Qwen2Tokenizer\n",
        "modeling/qwen2/tokenization_qwen2.py": """
class Qwen2Tokenizer:
    @classmethod
    def from_pretrained(cls, folder):
        return cls()
""",
        "modeling/bagel/__init__.py": (
            "from .bagel import Bagel, BagelConfig\n"
            "from .qwen2_navit import Qwen2Config, Qwen2ForCausalLM\n"
            "from .siglip_navit import SiglipVisionConfig, SiglipVisionModel\n"
        ),
        "modeling/bagel/bagel.py": """
import torch

class BagelConfig:
    def __init__(self, visual_gen=True, visual_und=True, llm_config=None, vit_config=None, vae_config=None,
            latent_patch_size=2, max_latent_size=32, vit_max_num_patch_per_side=70,
            connector_act="gelu_pytorch_tanh", interpolate_pos=False, timestep_shift=1.0, **kwargs):
        if kwargs:
            raise TypeError(kwargs)
        record("BagelConfig", locals())

class Bagel(torch.nn.Module):
    def __init__(self, language_model, vit_model, config):
        super().__init__()
        self.language_model, self.vit_model = language_model, vit_model
        self.vae2llm = torch.nn.Linear(2, 2)
""",
        "modeling/bagel/qwen2_navit.py": """
import json
import torch
from flash_attn import flash_attn_varlen_func

class Qwen2Config:
    @classmethod
    def from_json_file(cls, path):
        config = cls()
        config.__dict__.update(json.load(open(path)))
        return config

class Qwen2ForCausalLM(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        record("Qwen2ForCausalLM", dict(config.__dict__))
""",
        "modeling/bagel/siglip_navit.py": """
import torch
from flash_attn import flash_attn_varlen_func
from .qwen2_navit import Qwen2Config

class SiglipVisionConfig(Qwen2Config):
    pass

class SiglipVisionEmbeddings(torch.nn.Module):
    def convert_conv2d_to_linear(self, config, meta=False):
        record("convert_conv2d_to_linear", {"meta": meta})

class SiglipVisionModel(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        record("SiglipVisionModel", dict(config.__dict__))
        self.vision_model = torch.nn.Module()
        self.vision_model.embeddings = SiglipVisionEmbeddings()
""",
    },
    "ovis-u1": {
        "test_txt_to_img.py": """
from PIL import Image

def pipe_t2i(model, prompt, height, width, steps, cfg, seed=42):
    record("pipe_t2i", locals())
    return [Image.new("RGB", (width, height))]
""",
        "test_img_edit.py": """
def pipe_img_edit(model, input_img, prompt, steps, txt_cfg, img_cfg, seed=42):
    record("pipe_img_edit", locals())
    return [input_img.resize((64, 32))]
""",
    },
    "lumina-dimoo": {
        "config.py": """
SPECIAL_TOKENS = {"mask_token": 900, "newline_token": 901, "answer_start": 902, "answer_end": 903, "boi": 904,
    "eoi": 905}
""",
        "model/__init__.py": """
class LLaDAForMultiModalGeneration:
    @classmethod
    def from_pretrained(cls, folder, *, torch_dtype, device_map):
        record("LLaDA", locals())
        return cls()
""",
        "utils/__init__.py": "",
        "utils/generation_utils.py": """
def setup_seed(seed):
    record("setup_seed", locals())
""",
        "utils/prompt_utils.py": """
def generate_text_to_image_prompt(prompt_text, templates=None):
    return "T" + prompt_text, "U"

def generate_image_to_image_prompt(prompt_text, edit_type, templates=None, **kwargs):
    record("generate_image_to_image_prompt", locals())
    return "E" + prompt_text, "NO", "E"
""",
        "utils/image_utils.py": """
from PIL import Image

def calculate_vq_params(image_height, image_width, vae_scale=16):
    rows, columns = image_height // vae_scale, image_width // vae_scale
    return rows * columns, columns, rows, columns

def add_break_line(sequence, H, W, new_number=0):
    return [number for row in range(H) for number in [*sequence[row * W:(row + 1) * W], new_number]]

def generate_crop_size_list(num_patches, patch_size, max_ratio=4.0):
    record("generate_crop_size_list", locals())
    return [(64, 32)]

def var_center_crop(pil_image, crop_size_list, random_top_k=1):
    record("var_center_crop", locals())
    return pil_image.crop((0, 0, *crop_size_list[0]))

def encode_img_with_breaks(img, vqvae, vae_scale_factor=16):
    record("encode_img_with_breaks", locals())
    return [904, 700, 905]

def decode_vq_to_image(vq_codes, save_path, vae_ckpt, image_height, image_width, vqvae=None):
    record("decode_vq_to_image", locals())
    return Image.new("RGB", (image_width, image_height))
""",
        "generators/__init__.py": "",
        "generators/image_generation_generator.py": """
from utils.generation_utils import setup_seed as cosine_schedule

def generate_image(model, prompt, *, seq_len=1024, newline_every=16, timesteps=18, mask_token_id=126336,
        newline_id=126084, temperature=1.0, cfg_scale=0.0, uncon_ids, code_start=None, codebook_size=8192,
        noise_schedule=cosine_schedule, text_vocab_size=None, generator=None, use_cache=False, cache_ratio=0.9,
        refresh_interval=5, warmup_ratio=0.3):
    record("generate_image", locals())
    return "tokens"
""",
        "generators/image_to_image_generator.py": """
from utils.generation_utils import setup_seed as cosine_schedule

def generate_i2i(model, prompt, *, seq_len=1024, newline_every=16, timesteps=18, mask_token_id=126336,
        newline_id=126084, temperature=1.0, cfg_scale=0.0, cfg_img=0.0, uncon_text, uncon_image, code_start=None,
        codebook_size=8192, noise_schedule=cosine_schedule, text_vocab_size=None, generator=None):
    record("generate_i2i", locals())
    return "tokens"
""",
    },
    "ominicontrol": {
        "omini/__init__.py": "",
        "omini/pipeline/flux_omini.py": """
from types import SimpleNamespace
from PIL import Image

def seed_everything(seed=42):
    record("seed_everything", locals())

class Condition(object):
    def __init__(self, condition, adapter_setting, position_delta=None, position_scale=1.0, latent_mask=None,
            is_complement=False):
        record("Condition", locals())

def generate(pipeline, prompt=None, prompt_2=None, height=512, width=512, num_inference_steps=28, timesteps=None,
        guidance_scale=3.5, num_images_per_prompt=1, generator=None, latents=None, prompt_embeds=None,
        pooled_prompt_embeds=None, output_type="pil", return_dict=True, joint_attention_kwargs=None,
        callback_on_step_end=None, callback_on_step_end_tensor_inputs=["latents"], max_sequence_length=512,
        main_adapter=None, conditions=[], image_guidance_scale=1.0, transformer_kwargs={}, kv_cache=False,
        latent_mask=None, **params):
    if params:
        raise TypeError(params)
    record("generate", locals())
    return SimpleNamespace(images=[Image.new("RGB", (width, height))])
""",
    },
    "ssr-encoder": {
        "ssr_encoder/__init__.py": "from .ssr_encoder import SSR_encoder\n",
        "ssr_encoder/ssr_encoder.py": """
import torch
from PIL import Image

class SSR_encoder(torch.nn.Module):
    def __init__(self, unet, image_encoder_path, device="cuda", dtype=torch.float32, is_animate=False,
            is_mask=False):
        super().__init__()
        record("SSR_encoder", locals())

    def get_pipe(self, pipe):
        self.pipe = pipe

    def load_SSR(self, aligner_path, layers_path):
        record("load_SSR", locals())

    def generate(self, pil_image, concept, uncond_concept=" ", prompt=" ", negative_prompt=" ", scale=1.0,
            num_samples=1, seed=None, guidance_scale=7.5, num_inference_steps=30, height=512, width=512):
        record("generate", {**locals(), "scheduler": type(self.pipe.scheduler).__name__})
        return [Image.new("RGB", (width, height))]
""",
        # without an __init__.py, beside our own utils/
        "utils/pipeline_t2i.py": """
class StableDiffusionPipeline:
    unet = "the unet"

    @classmethod
    def from_pretrained(cls, folder, *, revision, safety_checker, torch_dtype):
        from diffusers import DDIMScheduler
        record("from_pretrained", locals())
        made = cls()
        made.scheduler = DDIMScheduler()
        return made

    def to(self, device):
        return self

    def set_progress_bar_config(self, disable):
        pass
""",
    },
    "freediff": {
        "ptp/__init__.py": "",
        "ptp/invutils.py": """
import numpy as np
from PIL import Image

def load_512(image_path, left=0, right=0, top=0, bottom=0, return_type="np", NH=512, NW=512):
    record("load_512", locals())
    return np.array(Image.fromarray(image_path).resize((NH, NW)))

def img2latn(image, model, DEVICE):
    record("img2latn", locals())
    return "latent"

def encode_text(prompts, model):
    record("encode_text", locals())
    return "embedding"

def ddim_inversion_null_fixpt(x0, model, uncond_emb, save_all=False, INV_STEPS=50, FP_STEPS=3):
    record("ddim_inversion_null_fixpt", {**locals(), "steps": len(model.scheduler.timesteps)})
    return "noise", []
""",
        "ptp/frq_ptputils.py": """
import numpy as np

def frq_img_gen(model, prompt, num_infer_steps=50, guidance_scale=7.5, generator=None, latent=None,
        save_dir="./outputs/test/", g_seed=None, record_time=False, mod_guidance_frq=True, TS=None, FS=None,
        HS=None, clear_low=True, filter_shape="sq", remove=False, generate_mask=False, record_steps=0,
        gen_MSK_THRS=0.065, guide_mask=None, reverse_mask=False):
    record("frq_img_gen", locals())
    open(save_dir + "record.txt", "w").close()
    return ["original", "edited", "null"]

def latn2img(vae, latents):
    record("latn2img", {"latents": latents})
    return np.zeros((1, 512, 512, 3), np.uint8)
""",
    },
}


def write_stand_ins(code: Path, repository: str) -> None:
    """Put the stand-ins for ``repository`` below ``code``, and beside them what they tell their calls."""
    (code / repository).mkdir(parents=True)
    for path, source in SOURCES[repository].items():
        file = code / repository / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_START + source)
    (code / repository / "stand_in_calls.py").write_text(_RECORD)
