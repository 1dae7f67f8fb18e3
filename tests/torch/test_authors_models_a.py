"""Adapters for authors' code, with stand-ins of the same signatures in the place of that code."""

from __future__ import annotations

import importlib
import inspect
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from custom_models import authors
from custom_models.load_model import MODEL_SETTINGS
from custom_models.model_settings import authors as authors_entries
from custom_models.model_utils import flash_attention as flash
from imageevalkit.assets import parse_entries
from imageevalkit.generate.model import Generated, ItemFailed, ModelUnusable
from imageevalkit.store.cell import REPO
from tests.support.authors_calls import calls
from tests.support.authors_code import SUPPORT, signatures, stand_in
from tests.support.mirror import clone, official_source
from tests.support.tiny_checkpoints import stable_diffusion as tiny_pipelines

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

ENTRIES = [
    (task, name, entry)
    for task, entries in authors_entries.SETTINGS.items()
    for name, entry in entries.items()
]
IDS = [f"{name}-{task}" for task, name, _ in ENTRIES]
PHOTO = Image.linear_gradient("L").resize((80, 60)).convert("RGB")


def code_of(entry: dict[str, Any]) -> dict[str, str]:
    return next(asset for asset in entry["assets"] if "code" in asset)


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, Any]], Path]]:
    """Puts the stand-in for an entry's authors' code in its place, and says where that is."""
    monkeypatch.setattr(authors, "CODE", tmp_path / "code")
    with ExitStack() as stack:
        yield lambda entry: stack.enter_context(
            stand_in(code_of(entry)["to"], tmp_path / "code", monkeypatch)
        )


@pytest.fixture
def build(put: Callable[[dict[str, Any]], Path], tmp_path: Path) -> Callable[..., Any]:
    """Builds a model of the registry beside stand-ins for its authors' code, on the CPU and from local folders."""

    def built(task: str, name: str, **kwargs: Any) -> Any:
        entry = MODEL_SETTINGS[task][name]
        put(entry)
        kwargs = {"model_path": str(tmp_path), "device": "cpu", **entry["model_kwargs"], **kwargs}
        return _class(entry)(**kwargs)

    return built


def _class(entry: dict[str, Any]) -> Any:
    module = importlib.import_module(entry["module"], package="custom_models")
    return getattr(module, entry["class"])


def image_of(answer: Any) -> Image.Image:
    image = answer.image if isinstance(answer, Generated) else answer
    assert isinstance(image, Image.Image)
    return image


# ---- BAGEL


@pytest.fixture
def bagel_weights(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from safetensors.torch import save_file

    (tmp_path / "llm_config.json").write_text('{"num_hidden_layers": 28}')
    (tmp_path / "vit_config.json").write_text('{"num_hidden_layers": 27}')
    tensors = {"vae2llm.weight": torch.full((2, 2), 3.0), "vae2llm.bias": torch.zeros(2)}
    save_file(tensors, tmp_path / "ema.safetensors", metadata={"format": "pt"})


@pytest.mark.usefixtures("bagel_weights")
def test_bagel_is_put_together_as_its_authors_do(build: Callable[..., Any], tmp_path: Path) -> None:
    build("t2i", "bagel")
    (llm,), (vit,) = calls("Qwen2ForCausalLM"), calls("SiglipVisionModel")
    assert (llm["qk_norm"], llm["tie_word_embeddings"]) == (True, False)
    assert llm["layer_module"] == "Qwen2MoTDecoderLayer" and llm["num_hidden_layers"] == 28
    assert (vit["rope"], vit["num_hidden_layers"]) == (False, 26)
    assert calls("convert_conv2d_to_linear") == [{"meta": True}]
    assert calls("load_ae") == [{"local_path": str(tmp_path / "ae.safetensors")}]
    (config,) = calls("BagelConfig")
    assert (config["latent_patch_size"], config["max_latent_size"]) == (2, 64)
    assert config["vit_max_num_patch_per_side"] == 70 and config["vae_config"] == "its configuration"
    (parts,) = calls("InterleaveInferencer")
    weight = parts["model"].vae2llm.weight
    assert weight.dtype == torch.bfloat16 and weight.eq(3).all() and not parts["model"].training
    assert parts["vae_transform"].sides == (1024, 512, 16)
    assert parts["vit_transform"].sides == (980, 224, 14)
    assert parts["new_token_ids"] == {"bos_token_id": 1} and parts["vae_model"] == "the autoencoder"


@pytest.mark.usefixtures("bagel_weights")
def test_bagel_text_to_image(build: Callable[..., Any]) -> None:
    model = build("t2i", "bagel")
    answers = [model.generate("a red bus", seed) for seed in (7, 7, 8)]
    assert image_of(answers[0]).size == (1024, 1024) and answers[0].extra == {}
    first, again, other = calls("interleave_inference")
    assert first["input_lists"] == ["a red bus"] and first["image_shapes"] == (1024, 1024)
    settings = {
        "cfg_text_scale": 4.0,
        "cfg_img_scale": 1.0,
        "cfg_interval": [0.4, 1.0],
        "num_timesteps": 50,
        "timestep_shift": 3.0,
        "cfg_renorm_min": 0.0,
        "cfg_renorm_type": "global",
        "think": False,
        "do_sample": False,
    }
    assert {name: first[name] for name in settings} == settings
    assert first["drawn"] == again["drawn"]
    assert all(one != two for one, two in zip(first["drawn"], other["drawn"], strict=True))


@pytest.mark.usefixtures("bagel_weights")
def test_bagel_edit_reads_texts_and_images_in_order(build: Callable[..., Any]) -> None:
    model = build("edit", "bagel")
    parts = [PHOTO, "like this one:", PHOTO.convert("RGBA"), "but blue"]
    model.generate(parts, 7)
    (call,) = calls("interleave_inference")
    assert call["input_lists"] == parts
    settings = {"cfg_text_scale": 4.0, "cfg_img_scale": 2.0, "cfg_interval": [0.0, 1.0]}
    settings |= {
        "cfg_renorm_type": "text_channel",
        "num_timesteps": 50,
        "timestep_shift": 3.0,
        "think": False,
    }
    assert {name: call[name] for name in settings} == settings
    with pytest.raises(ItemFailed, match="no input image"):
        model.generate(["make it blue"], 7)


@pytest.mark.usefixtures("bagel_weights")
def test_bagel_think_plans_first_and_keeps_the_plan(build: Callable[..., Any]) -> None:
    entry = MODEL_SETTINGS["t2i"]["bagel"]
    model = build("t2i", "bagel-think", width=512, height=256)
    answer = model.generate("a red bus", 7)
    (call,) = calls("interleave_inference")
    assert (call["think"], call["max_think_token_n"], call["do_sample"]) == (True, 1000, False)
    assert answer.extra == {"thought": "a plan"} and image_of(answer).size == (512, 256)
    with pytest.raises(ModelUnusable, match="not 1000 x 256"):
        _class(entry)("nowhere", **{**entry["model_kwargs"], "width": 1000, "height": 256})


# ---- Ovis-U1

_OVIS_CONFIG = {
    "model_type": "stand_in_ovis",
    "architectures": ["StandIn"],
    "auto_map": {"AutoConfig": "modeling.StandInConfig", "AutoModelForCausalLM": "modeling.StandIn"},
}
_OVIS_CODE = """
import torch
from flash_attn import flash_attn_varlen_func
from flash_attn.layers.rotary import apply_rotary_emb
from transformers import PretrainedConfig, PreTrainedModel

class StandInConfig(PretrainedConfig):
    model_type = "stand_in_ovis"
    def __init__(self, llm_attn_implementation="flash_attention_2", **kwargs):
        super().__init__(**kwargs)
        self.llm_attn_implementation = llm_attn_implementation

class StandIn(PreTrainedModel):
    config_class = StandInConfig
    def __init__(self, config):
        super().__init__(config)
        self.head = torch.nn.Linear(2, 2)
        self.post_init()
"""


@pytest.fixture
def ovis_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    from safetensors.torch import save_file
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    (tmp_path / "config.json").write_text(json.dumps(_OVIS_CONFIG))
    (tmp_path / "modeling.py").write_text(_OVIS_CODE)
    tensors = {"head.weight": torch.ones(2, 2), "head.bias": torch.zeros(2)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.usefixtures("ovis_weights")
def test_ovis_u1_text_to_image(build: Callable[..., Any]) -> None:
    model = build("t2i", "ovis-u1", width=512)
    assert image_of(model.generate("a red bus", 7)).size == (512, 1024)
    (call,) = calls("pipe_t2i")
    loaded = call.pop("model")
    assert call == {"prompt": "a red bus", "height": 1024, "width": 512, "steps": 50, "cfg": 5.0, "seed": 7}
    assert loaded.head.weight.dtype == torch.bfloat16 and not loaded.training
    if importlib.util.find_spec("flash_attn") is None:
        assert loaded.config.llm_attn_implementation == "sdpa"


@pytest.mark.usefixtures("ovis_weights")
def test_ovis_u1_edit(build: Callable[..., Any]) -> None:
    model = build("edit", "ovis-u1")
    assert image_of(model.generate(["make it", PHOTO.convert("RGBA"), "blue"], 7)).size == (64, 32)
    (call,) = calls("pipe_img_edit")
    assert call["input_img"].mode == "RGB" and call["input_img"].size == PHOTO.size
    assert (call["prompt"], call["seed"]) == ("make it blue", 7)
    assert (call["steps"], call["txt_cfg"], call["img_cfg"]) == (50, 6.0, 1.5)
    with pytest.raises(ItemFailed, match="exactly one input image, the item has 2"):
        model.generate([PHOTO, PHOTO, "make it blue"], 7)


# ---- Lumina-DiMOO


@pytest.fixture
def lumina_weights(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from diffusers import VQModel
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # one token for each letter, its number in the alphabet
    letters = {letter: number for number, letter in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZ")}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="A"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    VQModel(block_out_channels=(8,), norm_num_groups=4).save_pretrained(tmp_path / "vqvae")


@pytest.mark.usefixtures("lumina_weights")
def test_lumina_dimoo_text_to_image(build: Callable[..., Any]) -> None:
    entry = MODEL_SETTINGS["t2i"]["lumina-dimoo"]
    model = build("t2i", "lumina-dimoo", width=48, height=32)
    assert image_of(model.generate("BC", 7)).size == (48, 32)
    (loaded,), (call,) = calls("LLaDA"), calls("generate_image")
    assert (loaded["torch_dtype"], loaded["device_map"]) == (torch.bfloat16, "cpu")
    row = [900, 900, 900, 901]
    # the prompt TBC, begin of answer and image, two rows of masks, ends of image and answer
    assert call["prompt"].tolist() == [[19, 1, 2, 902, 904, *row, *row, 905, 903]]
    assert call["uncon_ids"].tolist() == [[20]] and call["code_start"] == 5
    assert (call["seq_len"], call["newline_every"]) == (6, 3)
    assert (call["timesteps"], call["temperature"], call["cfg_scale"]) == (64, 1.0, 4.0)
    assert call["use_cache"] is False
    (decoded,) = calls("decode_vq_to_image")
    assert decoded["without_gradients"]
    assert (decoded["vq_codes"], decoded["image_width"], decoded["image_height"]) == ("tokens", 48, 32)
    assert type(decoded["vqvae"]).__name__ == "VQModel"
    for seed in (7, 2**33 + 8):
        model.generate("BC", seed)
    first, again, other = (call["drawn"] for call in calls("generate_image"))
    assert first == again and all(one != two for one, two in zip(first, other, strict=True))
    with pytest.raises(ModelUnusable, match="16 divides, not 1000 x 1024"):
        _class(entry)("nowhere", **{**entry["model_kwargs"], "width": 1000})


@pytest.mark.usefixtures("lumina_weights")
def test_lumina_dimoo_edit(build: Callable[..., Any]) -> None:
    model = build("edit", "lumina-dimoo")
    assert image_of(model.generate([PHOTO, "BC"], 7)).size == (64, 32)
    (sizes,), (cut,) = calls("generate_crop_size_list"), calls("var_center_crop")
    assert (sizes["num_patches"], sizes["patch_size"]) == (256, 32)
    assert (cut["crop_size_list"], cut["random_top_k"]) == ([(64, 32)], 1)
    # the cut is random: it comes after the seed
    assert cut["drawn"] == random.Random(7).random()
    assert calls("encode_img_with_breaks")[0]["without_gradients"]
    (prompted,), (call,) = calls("generate_image_to_image_prompt"), calls("generate_i2i")
    assert (prompted["prompt_text"], prompted["edit_type"]) == ("BC", "edit")
    row, shown = [900] * 4 + [901], [904, 700, 905]
    # the image stands before the prompt's last token: EB C
    assert call["prompt"].tolist() == [[4, 1, *shown, 2, 902, 904, *row, *row, 905, 903]]
    assert call["uncon_text"].tolist() == [[13, *shown, 14]]
    assert call["uncon_image"].tolist() == [[4, 1, 2]] and call["code_start"] == 8
    assert (call["seq_len"], call["newline_every"]) == (8, 4)
    assert (call["cfg_scale"], call["cfg_img"]) == (2.5, 4.0)
    assert (call["timesteps"], call["temperature"]) == (64, 1.0)
    assert calls("LLaDA")[0]["torch_dtype"] == torch.bfloat16
    with pytest.raises(ItemFailed, match="exactly one input image"):
        model.generate(["BC"], 7)


@pytest.mark.usefixtures("lumina_weights")
def test_lumina_dimoo_names_a_misspelt_dtype(build: Callable[..., Any]) -> None:
    with pytest.raises(ModelUnusable, match=r"dtype 'bfloat61' is not one of bfloat16, .*did you mean"):
        build("t2i", "lumina-dimoo", dtype="bfloat61")


# ---- OminiControl


class FluxPipelineStandIn:
    """In the place of the pipeline, whose LoRA loading needs peft; each call must suit the real method."""

    loaded: dict[str, Any]
    lora: dict[str, Any]

    @classmethod
    def from_pretrained(cls, path: str, **options: Any) -> FluxPipelineStandIn:
        cls.loaded = {"path": path, **options}
        return cls()

    def to(self, device: str) -> FluxPipelineStandIn:
        return self

    def set_progress_bar_config(self, disable: bool) -> None:
        pass

    def load_lora_weights(self, *args: Any, **kwargs: Any) -> None:
        from diffusers.loaders import FluxLoraLoaderMixin

        bound = inspect.signature(FluxLoraLoaderMixin.load_lora_weights).bind(self, *args, **kwargs)
        type(self).lora = {**bound.arguments, **bound.arguments.pop("kwargs")}


def test_ominicontrol(build: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import diffusers.pipelines

    monkeypatch.setattr(diffusers.pipelines, "FluxPipeline", FluxPipelineStandIn)
    model = build("subject", "ominicontrol")
    entry = MODEL_SETTINGS["subject"]["ominicontrol"]
    base = next(asset for asset in entry["assets"] if asset.get("hub"))
    assert FluxPipelineStandIn.loaded == {
        "path": base["hub"],
        "revision": base["revision"],
        "torch_dtype": torch.bfloat16,
    }
    lora = FluxPipelineStandIn.lora
    assert lora["weight_name"] == "subject_512.safetensors" and lora["adapter_name"] == "subject"
    assert lora["pretrained_model_name_or_path_or_dict"] == str(tmp_path / "omini")

    wide = Image.new("RGB", (900, 300), "red")
    wide.paste("blue", (300, 0, 600, 300))
    answer = model.generate(["a toy car", wide, "this item on a table"], 7)
    assert image_of(answer).size == (512, 512) == answer.requested_size
    model.generate(["a toy car", wide, "this item on a table"], 2**33 + 8)
    (condition, _), (call, other) = calls("Condition"), calls("generate")
    assert (condition["adapter_setting"], condition["position_delta"]) == ("subject", (0, 32))
    # the middle square alone
    assert condition["condition"].size == (512, 512)
    assert condition["condition"].getcolors() == [(512 * 512, (0, 0, 255))]
    assert (call["prompt"], call["num_inference_steps"]) == ("this item on a table", 8)
    assert (call["width"], call["height"], call["image_guidance_scale"]) == (512, 512, 1.0)
    assert len(call["conditions"]) == 1
    torch.manual_seed(7)
    assert call["drawn"] == (torch.rand(()).item(), np.random.RandomState(7).rand())
    assert call["drawn"][0] != other["drawn"][0] and torch.backends.cudnn.deterministic
    with pytest.raises(ItemFailed, match="exactly one input image, the item has 2"):
        model.generate(["a toy car", wide, wide, "it on a table"], 7)


# ---- SSR-Encoder


def test_ssr_encoder(build: Callable[..., Any], tmp_path: Path) -> None:
    for name in ("pytorch_model.bin", "pytorch_model_1.bin"):
        (tmp_path / name).touch()
    model = build("subject", "ssr-encoder", encoder_path=str(tmp_path))
    entry = MODEL_SETTINGS["subject"]["ssr-encoder"]
    (loaded,) = calls("from_pretrained")
    assert loaded["folder"] == "stable-diffusion-v1-5/stable-diffusion-v1-5"
    assert loaded["revision"] == entry["model_kwargs"]["base_revision"]
    assert (loaded["safety_checker"], loaded["torch_dtype"]) == (None, torch.float32)
    (encoder,) = calls("SSR_encoder")
    assert (encoder["unet"], encoder["image_encoder_path"]) == ("the unet", str(tmp_path))
    assert (encoder["device"], encoder["dtype"]) == ("cpu", torch.float32)
    aligner, layers = (str(tmp_path / name) for name in ("pytorch_model.bin", "pytorch_model_1.bin"))
    assert calls("load_SSR") == [{"aligner_path": aligner, "layers_path": layers}]

    answer = model.generate(["a", "dog", PHOTO, "a dog on a table"], 7)
    assert image_of(answer).size == (512, 512)
    (call,) = calls("generate")
    assert call.pop("pil_image").size == PHOTO.size
    assert call == {
        "concept": "a dog",
        "uncond_concept": "",
        "prompt": "a dog on a table",
        "negative_prompt": "bad quality",
        "scale": 0.65,
        "num_samples": 1,
        "seed": 7,
        "guidance_scale": 5.0,
        "num_inference_steps": 30,
        "height": 512,
        "width": 512,
        "scheduler": "UniPCMultistepScheduler",
    }
    with pytest.raises(ItemFailed, match="the item has 1 and no name"):
        model.generate([PHOTO, "a dog on a table"], 7)


def test_ssr_encoder_without_its_weights_says_where_they_are(build: Callable[..., Any]) -> None:
    with pytest.raises(
        ModelUnusable, match=r"lacks pytorch_model.bin and .*prefetch.sh --model_names ssr-encoder"
    ):
        build("subject", "ssr-encoder")


# ---- FreeDiff


def test_freediff(build: Callable[..., Any], tmp_path: Path) -> None:
    tiny_pipelines.save_stable_diffusion(tmp_path / "sd")
    model = build("edit", "freediff", model_path=str(tmp_path / "sd"), revision=None)
    answer = model.generate([PHOTO, "a marmot"], 7)
    assert image_of(answer).size == (512, 512) and model.seed_honoured is False
    (load,), (text,), (inverted,) = (
        calls(name) for name in ("load_512", "encode_text", "ddim_inversion_null_fixpt")
    )
    assert load["image_path"].shape == (60, 80, 3) and (load["NH"], load["NW"]) == (512, 512)
    assert calls("img2latn")[0]["image"].shape == (512, 512, 3) and text["prompts"] == ""
    assert (inverted["x0"], inverted["uncond_emb"]) == ("latent", "embedding")
    # it reads the scheduler's steps before anything has set them
    assert (inverted["INV_STEPS"], inverted["FP_STEPS"], inverted["steps"]) == (50, 5, 50)
    (edit,) = calls("frq_img_gen")
    settings = {"prompt": ["a marmot"], "latent": "noise", "num_infer_steps": 50, "guidance_scale": 7.5}
    settings |= {"TS": (801, 781, 581), "FS": (32, 32, 10, 10), "HS": (32,) * 6}
    settings |= {"filter_shape": "sq", "clear_low": True, "mod_guidance_frq": True, "remove": False}
    assert {name: edit[name] for name in settings} == settings
    assert edit["save_dir"].endswith("/") and not Path(edit["save_dir"]).exists()
    assert calls("latn2img") == [{"latents": "edited"}]
    scheduler = edit["model"].scheduler
    assert type(scheduler).__name__ == "DDIMScheduler" and scheduler.config.beta_schedule == "scaled_linear"
    assert (scheduler.config.beta_start, scheduler.config.beta_end) == (0.00085, 0.012)
    assert edit["model"].unet.dtype == torch.float32 and edit["model"].safety_checker is None


# ---- All of them


@pytest.mark.parametrize(("task", "name", "entry"), ENTRIES, ids=IDS)
def test_entry_names_what_there_is(task: str, name: str, entry: dict[str, Any]) -> None:
    assert MODEL_SETTINGS[task][name] is entry
    # unknown or missing arguments raise TypeError here
    inspect.signature(_class(entry)).bind("folder", **entry["model_kwargs"])
    assert all(parse_entries(entry["assets"], name))
    assert (SUPPORT / f"stand_in_{code_of(entry)['to'].replace('-', '_')}").is_dir()
    # the entry alone says what decides the pixels, so that the fingerprint does
    for base in _class(entry).__mro__[:-1]:
        parameters = (
            inspect.signature(vars(base)["__init__"]).parameters.values() if "__init__" in vars(base) else ()
        )
        optional = {p.name for p in parameters if p.default is not p.empty}
        assert {argument for argument in optional if not argument.endswith("revision")} <= {"device"}
        required = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
        assert required <= entry["model_kwargs"].keys()
    config = (REPO / "config.sh").read_text()
    [environment] = re.findall(rf"\['{re.escape(name)}'\]='([\w-]+)'", config)
    lines = (REPO / "requirements" / "model" / f"{environment}.txt").read_text().splitlines()
    assert re.fullmatch(r"# python: 3\.\d+", lines[0])
    pins = [line for line in lines if not line.startswith("#")]
    assert pins and all(re.fullmatch(r"[\w-]+(==[\w.]+| @ https://\S+)", pin) for pin in pins)


@pytest.mark.parametrize(("task", "name", "entry"), ENTRIES, ids=IDS)
def test_absent_code_and_absent_gpu_are_one_clear_line(
    task: str, name: str, entry: dict[str, Any], put: Callable[[dict[str, Any]], Path], tmp_path: Path
) -> None:
    kwargs = {"model_path": str(tmp_path), **entry["model_kwargs"]}
    with pytest.raises(
        ModelUnusable, match=rf"code is not at .*: run bash utils/prefetch.sh --model_names .*\b{name}\b"
    ):
        _class(entry)(**kwargs)
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    if name in NEED_MORE:
        return
    put(entry)
    with pytest.raises(ModelUnusable, match="device 'cuda' is not usable here"):
        _class(entry)(**kwargs)


# what these import besides is replaced in test_authors_models_b.py
NEED_MORE = {
    "show-o",
    "show-o-512",
    "orthus-7b-base",
    "orthus-7b-instruct",
    "janusflow-1.3b",
    "vila-u-7b-256",
}


def test_package_that_the_code_lacks_is_named_with_the_list(
    put: Callable[[dict[str, Any]], Path], tmp_path: Path
) -> None:
    entry = MODEL_SETTINGS["edit"]["freediff"]
    (put(entry) / "ptp/invutils.py").write_text("import seaborn_of_another_name\n")
    with pytest.raises(ModelUnusable, match=r"seaborn_of_another_name.*requirements/model/freediff.txt"):
        _class(entry)(model_path=str(tmp_path), device="cpu", **entry["model_kwargs"])


# ---- The stand-ins are like the real code

CODES = {code_of(entry)["to"]: code_of(entry) for _, _, entry in ENTRIES}
# a class that loads itself is not built by us
LOADING = {"__init__", "from_pretrained", "from_json_file"}
# what classes of the authors inherit from transformers, diffusers or torch
INHERITED = {"__init__", "__call__", "to", "eval", "set_progress_bar_config"}
# in the place of other packages than the authors'
OTHERS = {"language.py", "omegaconf.py", "transformers.py"}


@pytest.mark.parametrize(
    ("to", "file"),
    [
        (to, str(file.relative_to(folder)))
        for to in CODES
        for folder in [SUPPORT / f"stand_in_{to.replace('-', '_')}"]
        for file in sorted(folder.rglob("*.py"))
        if signatures(file.read_text()) and file.name not in OTHERS and "diffusers" not in file.parts
    ],
)
def test_stand_ins_have_the_signatures_of_the_pinned_commit(to: str, file: str) -> None:
    source = official_source(CODES[to]["code"], CODES[to]["commit"], file)
    real, ours = (
        signatures(source),
        signatures((SUPPORT / f"stand_in_{to.replace('-', '_')}" / file).read_text()),
    )
    for name, parameters in ours.items():
        owner, _, method = name.rpartition(".")
        loads_itself = bool({f"{owner}.{loading}" for loading in LOADING - {"__init__"}} & ours.keys())
        if owner.startswith("_") or (method in LOADING and loads_itself):
            continue
        if name in real:
            assert parameters == real[name], name
        else:
            assert method in INHERITED or f"self.{method} = " in source, (
                f"{name} is neither a method nor a module of theirs"
            )


@pytest.mark.parametrize("to", CODES)
def test_tree_of_the_pinned_commit(to: str) -> None:
    asset = CODES[to]
    root = official_source(asset["code"], asset["commit"], "")
    command = ["git", "-C", str(clone(asset["code"])), "rev-parse", f"{asset['commit']}^{{tree}}"]
    assert subprocess.check_output(command, text=True).strip() == asset["tree"]
    # GitHub's archive lacks or changes what such a file says
    if ".gitattributes" in root.splitlines():
        assert "export-" not in official_source(asset["code"], asset["commit"], ".gitattributes")


# ---- Instead of flash-attn


def test_attention_over_several_sequences() -> None:
    torch.manual_seed(0)
    lengths = [(3, 3), (2, 5), (1, 4)]
    q, k, v = torch.randn(6, 4, 8), torch.randn(12, 2, 8), torch.randn(12, 2, 8)
    q_starts, k_starts = torch.tensor([0, 3, 5, 6]), torch.tensor([0, 3, 8, 12])
    for causal in (False, True):
        out = flash.varlen_attention(q, k, v, q_starts, k_starts, 3, 5, causal=causal)
        for n, (queries, keys) in enumerate(lengths):
            for i in range(queries):
                for head in range(4):
                    seen = keys - queries + i + 1 if causal else keys
                    rows = slice(k_starts[n], k_starts[n] + seen)
                    weights = (k[rows, head // 2] @ q[q_starts[n] + i, head] / 8**0.5).softmax(0)
                    expected = weights @ v[rows, head // 2]
                    torch.testing.assert_close(out[q_starts[n] + i, head], expected)


def test_rotary_embedding_turns_pairs_of_channels() -> None:
    torch.manual_seed(0)
    x, angles = torch.randn(2, 5, 3, 10, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    out = flash.rotary_embedding(x, angles.cos(), angles.sin())
    turned = torch.complex(x[..., :4], x[..., 4:8]) * torch.exp(1j * angles)[:, None]
    torch.testing.assert_close(
        out, torch.cat([turned.real, turned.imag, x[..., 8:]], -1), rtol=1e-6, atol=1e-6
    )


def test_flash_attention_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("flash_attn") is not None:
        pytest.skip("flash-attn is installed")
    with flash.flash_attention() as installed:
        from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found]

        assert not installed and flash_attn_varlen_func is flash.varlen_attention
    assert not [name for name in sys.modules if name.startswith("flash_attn")]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace())
    with flash.flash_attention() as installed:
        assert installed and "flash_attn" not in sys.modules
