"""Adapters for authors' code, with stand-ins of the same signatures in the place of that code."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from custom_models import authors
from custom_models.load_model import MODEL_SETTINGS
from custom_models.model_settings import authors as authors_entries
from custom_models.model_utils import flash_attention as flash
from imageevalkit.assets import parse_entries
from imageevalkit.generate.model import Generated, ItemFailed, ModelUnusable
from tests.support.authors_calls import calls
from tests.support.authors_code import SUPPORT, signatures, stand_in
from tests.support.mirror import clone, official_source

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
    model = build("t2i", "bagel")
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
    for seed in (7, 7, 8):
        model.generate("a red bus", seed)
    first, again, other = (call["drawn"] for call in calls("interleave_inference"))
    assert first == again and all(one != two for one, two in zip(first, other, strict=True))


@pytest.mark.usefixtures("bagel_weights")
def test_bagel_edit_reads_texts_and_images_in_order(build: Callable[..., Any]) -> None:
    parts = [PHOTO, "like this one:", PHOTO.convert("RGBA"), "but blue"]
    build("edit", "bagel").generate(parts, 7)
    (call,) = calls("interleave_inference")
    assert call["input_lists"] == parts
    assert (call["cfg_img_scale"], call["cfg_renorm_type"]) == (2.0, "text_channel")


@pytest.mark.usefixtures("bagel_weights")
def test_bagel_think_plans_first_and_keeps_the_plan(build: Callable[..., Any]) -> None:
    answer = build("t2i", "bagel-think").generate("a red bus", 7)
    (call,) = calls("interleave_inference")
    assert (call["think"], call["max_think_token_n"], call["do_sample"]) == (True, 1000, False)
    assert answer.extra == {"thought": "a plan"} and image_of(answer).size == (1024, 1024)


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


@pytest.mark.usefixtures("lumina_weights")
def test_lumina_dimoo_edit(build: Callable[..., Any]) -> None:
    model = build("edit", "lumina-dimoo")
    assert image_of(model.generate([PHOTO, "BC"], 7)).size == (64, 32)
    (call,) = calls("generate_i2i")
    row, shown = [900] * 4 + [901], [904, 700, 905]
    # the image stands before the prompt's last token: EB C
    assert call["prompt"].tolist() == [[4, 1, *shown, 2, 902, 904, *row, *row, 905, 903]]
    assert (call["code_start"], call["seq_len"], call["newline_every"]) == (8, 8, 4)
    assert (call["cfg_scale"], call["cfg_img"]) == (2.5, 4.0)
    with pytest.raises(ItemFailed, match="exactly one input image"):
        model.generate(["BC"], 7)


# ---- OminiControl


class FluxPipelineStandIn:
    """In the place of the pipeline, whose LoRA loading needs peft; each call must suit the real method."""

    lora: dict[str, Any]

    @classmethod
    def from_pretrained(cls, path: str, **options: Any) -> FluxPipelineStandIn:
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
    lora = FluxPipelineStandIn.lora
    assert lora["weight_name"] == "subject_512.safetensors" and lora["adapter_name"] == "subject"
    assert lora["pretrained_model_name_or_path_or_dict"] == str(tmp_path / "omini")
    wide = Image.new("RGB", (900, 300), "red")
    wide.paste("blue", (300, 0, 600, 300))
    assert image_of(model.generate(["a toy car", wide, "this item on a table"], 7)).size == (512, 512)
    model.generate(["a toy car", wide, "this item on a table"], 2**33 + 8)
    (condition, _), (call, other) = calls("Condition"), calls("generate")
    assert (condition["adapter_setting"], condition["position_delta"]) == ("subject", (0, 32))
    # the middle square alone
    assert condition["condition"].getcolors() == [(512 * 512, (0, 0, 255))]
    assert (call["prompt"], call["num_inference_steps"]) == ("this item on a table", 8)
    assert call["drawn"][0] != other["drawn"][0] and torch.backends.cudnn.deterministic


# ---- All of them


@pytest.mark.parametrize(("task", "name", "entry"), ENTRIES, ids=IDS)
def test_entry_names_what_there_is(task: str, name: str, entry: dict[str, Any]) -> None:
    assert MODEL_SETTINGS[task][name] is entry
    # unknown or missing arguments raise TypeError here
    inspect.signature(_class(entry)).bind("folder", **entry["model_kwargs"])
    assert all(parse_entries(entry["assets"], name))
    # the entry alone says what decides the pixels, so that the fingerprint does
    for base in _class(entry).__mro__[:-1]:
        parameters = (
            inspect.signature(vars(base)["__init__"]).parameters.values() if "__init__" in vars(base) else ()
        )
        optional = {p.name for p in parameters if p.default is not p.empty}
        assert {argument for argument in optional if not argument.endswith("revision")} <= {"device"}
        required = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
        assert required <= entry["model_kwargs"].keys()


@pytest.mark.usefixtures("bagel_weights")
def test_what_is_missing_is_one_clear_line(put: Callable[[dict[str, Any]], Path], tmp_path: Path) -> None:
    entry = MODEL_SETTINGS["edit"]["bagel"]
    kwargs = {"model_path": str(tmp_path), **entry["model_kwargs"]}
    with pytest.raises(ModelUnusable, match=r"code is not at .*: run bash eval.sh prefetch .*\bbagel\b"):
        _class(entry)(**kwargs)
    (put(entry) / "inferencer.py").write_text("import seaborn_of_another_name\n")
    with pytest.raises(ModelUnusable, match=r"seaborn_of_another_name.*requirements/model/bagel.txt"):
        _class(entry)(**kwargs, device="cpu")
    if not torch.cuda.is_available():
        with pytest.raises(ModelUnusable, match="device 'cuda' is not usable here"):
            _class(entry)(**kwargs)


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


def test_flash_attention_leaves_nothing_behind() -> None:
    if importlib.util.find_spec("flash_attn") is not None:
        pytest.skip("flash-attn is installed")
    with flash.flash_attention() as installed:
        from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found]

        assert not installed and flash_attn_varlen_func is flash.varlen_attention
    assert not [name for name in sys.modules if name.startswith("flash_attn")]
