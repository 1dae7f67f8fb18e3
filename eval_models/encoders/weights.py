"""The encoders' weights: where they are, what they are, and where to get those that are missing."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imageevalkit.asset_checks.check import LocalFolder, Needed, weights_at
from imageevalkit.assets import CodeAsset, HubAsset, PlacedAsset, UrlAsset
from imageevalkit.cell import REPO
from imageevalkit.cell.fingerprint import weights_of
from imageevalkit.errors import CellFailure, UserError, suggest
from imageevalkit.weights import (
    WeightsSource,
    WeightsUser,
    find_weights,
    first_line,
    may_be_hub_id,
    missing_package,
    why_not_loaded,
)

if TYPE_CHECKING:
    import torch

ENCODERS = WeightsUser(
    "encoders", "it needs an environment made by bash utils/make_env.sh --benchmark with the benchmark's name"
)
_FOLDER = "eval_models/weights"
CLIP = "CLIPVisionModelWithProjection"
# of DreamSim: its package reads these files, or downloads them
LORA = "ensemble_lora"
_BACKBONES = ("dino_vitb16_pretrain.pth", "clip_vitb16_pretrain.pth.tar", "open_clip_vitb16_pretrain.pth.tar")
# torch.hub's names for the repository, and for what its hubconf.py downloads
_DINO = "facebookresearch_dino_main"
_DINO_WEIGHTS = "checkpoints/dino_vitbase16_pretrain.pth"
DREAMSIM_ENTRIES = (
    *(*_BACKBONES, _DINO_WEIGHTS, LORA),
    *(f"{_DINO}/hubconf.py", f"{_DINO}/vision_transformer.py"),
)
"""What the package reads in DreamSim's folder; of the DINO code, the files that make the model."""
_DREAMSIM_FILES = (
    *((name,) for name in (*DREAMSIM_ENTRIES, f"{LORA}/adapter_config.json")),
    # peft reads either
    (f"{LORA}/adapter_model.safetensors", f"{LORA}/adapter_model.bin"),
)
"""One of each must be there."""

_ASSETS: dict[str, tuple[PlacedAsset, ...]] = {
    # CSD on OpenAI's ViT-L/14, whose own weights it replaces by its own, all of them. The official code names a file
    # on Google Drive (1FX0xs8p-C7Ob-h5Y4cUhTeOepHzXv_46), which no program can fetch reliably; this is its authors' own
    # copy on the hub.
    "csd": (
        UrlAsset(
            "https://huggingface.co/tomg-group-umd/CSD-ViT-L/resolve/5bc26a6fb0487f3f00a2a7313135103a005b1b67/"
            "pytorch_model.bin",
            f"{_FOLDER}/csd/checkpoint.pth",
            "CC-BY-4.0",
            sha256="40e92fad63a361b8136100cd234c42d401ef9b34ff1748234318929ebcc7e7a1",
            size=2_438_228_893,
        ),
    ),
    # no revision of these is known for certain: the newest, or the one in HF_HOME; a score's name holds its commit
    "se": (HubAsset("xingpng/OneIG-StyleEncoder"),),
    "llm2clip_vision": (HubAsset("microsoft/LLM2CLIP-Openai-L-14-336"),),
    "llm2clip_text": (HubAsset("microsoft/LLM2CLIP-Llama-3-8B-Instruct-CC-Finetuned"),),
    "dreamsim": (
        # nobody has published hashes of the two files
        UrlAsset(
            "https://github.com/ssundaram21/dreamsim/releases/download/v0.2.0-checkpoints/"
            "dreamsim_ensemble_checkpoint.zip",
            f"{_FOLDER}/dreamsim",
            "MIT",
            unpack=(*_BACKBONES, f"{LORA}/adapter_config.json"),
        ),
        # the newest commit of the branch main, which the package reads; the repository is archived
        CodeAsset(
            "facebookresearch/dino",
            "7c446df5b9f45747937fb0d72314eb9f7b66930a",
            "b0273e7ed12b0e4d4f7a37a215004038cbe7222b",
            f"{_FOLDER}/dreamsim/{_DINO}",
            "Apache-2.0",
        ),
        UrlAsset(
            "https://dl.fbaipublicfiles.com/dino/dino_vitbase16_pretrain/dino_vitbase16_pretrain.pth",
            f"{_FOLDER}/dreamsim/{_DINO_WEIGHTS}",
            "Apache-2.0",
        ),
    ),
    # GenEval: the detector that transformers has, trained anew by its authors, and OpenAI's CLIP in open_clip's format
    "mask2former": (HubAsset("facebook/mask2former-swin-small-coco-instance"),),
    "geneval_clip": (HubAsset("timm/vit_large_patch14_clip_224.openai"),),
    "hpsv2": (HubAsset("xswu/HPSv2", patterns=("HPS_v2_compressed.pt", "HPS_v2.1_compressed.pt")),),
    "clip_flant5_xxl": (HubAsset("zhiqiulin/clip-flant5-xxl"),),
    "clip_flant5_xl": (HubAsset("zhiqiulin/clip-flant5-xl"),),
    # DPG-Bench: ModelScope's hub has a client of its own
    "mplug": (
        UrlAsset(
            "https://www.modelscope.cn/models/iic/mplug_visual-question-answering_coco_large_en",
            f"{_FOLDER}/mplug",
            "Apache-2.0",
            by_hand=True,
        ),
    ),
    "clip_vit_l_336": (HubAsset("openai/clip-vit-large-patch14-336"),),
    # the authors' weights in transformers' format
    "llava_13b": (HubAsset("llava-hf/llava-1.5-13b-hf"),),
    "clip_vit_b_32": (HubAsset("openai/clip-vit-base-patch32"),),
    "clip_vit_l_14": (HubAsset("openai/clip-vit-large-patch14"),),
    "aesthetic": (
        UrlAsset(
            "https://github.com/christophschuhmann/improved-aesthetic-predictor/raw/"
            "6934dd81792f086e613a121dbce43082cb8be85e/sac+logos+ava1-l14-linearMSE.pth",
            f"{_FOLDER}/aesthetic/sac+logos+ava1-l14-linearMSE.pth",
            "Apache-2.0",
            sha256="21dd590f3ccdc646f0d53120778b296013b096a035a2718c9cb0d511bff0f1e0",
            size=3_714_759,
        ),
    ),
    # NIQE's statistics of undistorted photographs
    "niqe": (
        UrlAsset(
            "https://github.com/XPixelGroup/BasicSR/raw/8d56e3a045f9fb3e1d8872f92ee4a4f07f886b0a/"
            "basicsr/metrics/niqe_pris_params.npz",
            f"{_FOLDER}/niqe/niqe_pris_params.npz",
            "Apache-2.0",
            sha256="2a7c182a68c9e7f1b2e2e5ec723279d6f65d912b6fcaf37eb2bf03d7367c4296",
            size=11_850,
        ),
    ),
}
"""What prefetch gets; the first of each says where the weights are."""
WEIGHTS: dict[str, str] = {
    name: first.hub if isinstance(first, HubAsset) else f"{REPO}/{first.path}"
    for name, (first, *_) in _ASSETS.items()
}
"""The default place of each: a file, a folder, or a hub id."""
# a file of each that has no config.json
_HAS = {"geneval_clip": "open_clip_config.json", "hpsv2": "HPS_v2.1_compressed.pt"}
_WITH_REFERENCES = ("csd", "se")  # measure by vectors that the benchmark brings


def assets_of(names: Sequence[str], options: Mapping[str, Any]) -> list[Needed]:
    """What ``names`` are made of, for prefetch; the user's own ``options["weights"]`` are only looked at.

    Raises UserError: there are no weights of a name there.
    """
    found: list[Needed] = []
    for name in names:
        place, on_hub = _place(name, places := options.get("weights", {}))
        own = weights_at(place, None) if on_hub else LocalFolder(place)
        found += [own] if name in places else _ASSETS[name]
    return found


def missing_files(names: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """A line for each of ``names`` that is no hub id and is not where it should be, or not whole; and for each file of
    reference vectors that ``options["references"]`` should name. Needs no package."""
    places, references = options.get("weights", {}), options.get("references", {})
    lines = []
    for name in names:
        if name in _WITH_REFERENCES and not Path(file := references.get(name, "")).is_file():
            where = f"at {file}" if file else f"in references['{name}']"
            lines.append(
                f"encoders: there is no file of reference vectors for '{name}' {where}; "
                "bash utils/prefetch.sh --ds_names oneig gets it"
            )
        if not _place(name, places)[1]:
            try:
                find(name, places)
            except CellFailure as error:
                lines.append(str(error))
    return lines


def find(name: str, places: Mapping[str, str]) -> WeightsSource:
    """The weights ``name`` (a key of :data:`WEIGHTS`) without loading them: where they are and what they are.

    ``places`` are the user's own. A local file or folder is told by its content alone, a hub repository by its id
    and commit.

    Raises:
        UserError: ``places`` has an unknown name.
        CellFailure: they are neither here nor on the hub, or not whole; says where to get them.
    """
    place, on_hub = _place(name, places)
    try:
        path = Path(place).expanduser()
        identity = weights_of(str(path))
    except (OSError, RuntimeError) as error:  # no such user, no permission, too long a name
        raise CellFailure(
            f"encoders: the weights '{name}' cannot be looked for at {place}: {first_line(error)}"
        ) from error
    if identity:
        needed = _DREAMSIM_FILES if name == "dreamsim" else ()
        if absent := [" or ".join(either) for either in needed if not any(any(path.glob(f)) for f in either)]:
            raise CellFailure(
                f"encoders: DreamSim's folder {place} lacks {', '.join(absent)}; bash utils/prefetch.sh --ds_names "
                "oneig fetches a whole one"
            )
        return WeightsSource(str(path), None, dict(identity))
    if on_hub:
        return find_weights(ENCODERS, place, None, _HAS.get(name, "config.json"))
    first = _ASSETS[name][0]
    origin = f"the hub has it as {WEIGHTS[name]}"
    if isinstance(first, UrlAsset):
        origin = f"bash utils/prefetch.sh with the options of this run gets it from {first.url}"
        if first.by_hand:
            origin = f"put the files of {first.url} there"
    raise CellFailure(
        f"encoders: the weights '{name}' are not at {place}; {origin}, "
        f"""or name another place: --ds_kwargs 'weights={{"{name}": "/path"}}'"""
    )


def check_names(places: Mapping[str, str]) -> None:
    """Raises UserError: ``places`` has an unknown name."""
    for name in places:
        if name not in WEIGHTS:
            raise UserError(
                f"unknown weights '{name}'{suggest(name, WEIGHTS)}; known: {', '.join(sorted(WEIGHTS))}"
            )


def _place(name: str, places: Mapping[str, str]) -> tuple[str, bool]:
    """The place of the weights ``name``, and whether that is a hub id."""
    check_names(places)
    place = places.get(name, WEIGHTS[name])
    return place, isinstance(_ASSETS[name][0], HubAsset) and may_be_hub_id(place)


@contextmanager
def loading(source: WeightsSource) -> Iterator[None]:
    """A block that loads ``source``. Raises CellFailure, in one line, whatever is wrong with it."""
    path = source.model_path
    try:
        yield
    except CellFailure:
        raise
    except ImportError as error:
        raise missing_package(ENCODERS, error) from error
    except Exception as error:  # of the hub, of the disk, of the device, a damaged file, no memory left
        is_file = Path(path).is_file()
        why = f"{path} does not load: {first_line(error)}" if is_file else why_not_loaded(path, error)
        raise CellFailure(f"encoders: {why}") from error


def cached(source: WeightsSource, name: str) -> Path:
    """The file ``name`` of a folder or hub repository. Raises OSError: there is none."""
    from transformers.utils import cached_file

    return Path(str(cached_file(source.model_path, name, revision=source.commit)))


def first_cached(source: WeightsSource, names: Sequence[str]) -> Path:
    """The first file of ``names`` that there is. Raises OSError: there is none."""
    for name in names[:-1]:
        with suppress(OSError):
            return cached(source, name)
    return cached(source, names[-1])


def load_pretrained(
    source: WeightsSource, class_name: str, dtype: str, device: str, unused: str = ".*", **options: Any
) -> Any:
    """The model of transformers' class in ``dtype``, from ``options["state_dict"]`` where ``source`` was read already.

    ``unused`` matches the names of what the checkpoint may have and the class has not.
    Raises CellFailure: it does not load, or they are another model's weights.
    """
    with loading(source):
        import transformers

        # its bars and its advice to programmers would garble the log of the job
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        model, found = getattr(transformers, class_name).from_pretrained(
            None if "state_dict" in options else source.model_path,
            revision=source.commit,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # told by name below
            **options,
        )
        unfit = {
            "lacks": found["missing_keys"],
            "has unexpected": [name for name in found["unexpected_keys"] if not re.fullmatch(unused, name)],
            "has another shape of": [str(name) for name, *_ in found["mismatched_keys"]],
        }
        refuse_unfit(source, unfit)
        return model.to(device).eval()


def load_state(model: torch.nn.Module, state: Mapping[str, torch.Tensor], source: WeightsSource) -> None:
    """Give ``model`` the tensors of ``source``, neither more nor fewer than it has.

    Raises CellFailure: some lack, are unexpected or of another shape.
    """
    own = model.state_dict()
    unfit = {
        "lacks": own.keys() - state.keys(),
        "has unexpected": state.keys() - own.keys(),
        "has another shape of": [
            name for name in own.keys() & state.keys() if own[name].shape != state[name].shape
        ],
    }
    refuse_unfit(source, unfit)
    model.load_state_dict(state)


def refuse_unfit(source: WeightsSource, kinds: Mapping[str, Collection[str]]) -> None:
    """Raise CellFailure with a few names where weights would stay random (libraries only warn) or be left out.

    ``kinds``: names of weights by the words for what is wrong ("lacks").
    """
    found = [
        f"{words} {', '.join(sorted(names)[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
        for words, names in kinds.items()
        if names
    ]
    if found:
        raise CellFailure(
            f"encoders: {source.model_path} does not hold the weights of its model: it {'; it '.join(found)}; "
            "download it anew"
        )
