"""The encoders' weights: where they are, what they are, and where to get those that are missing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit.asset_checks.check import LocalFolder, Needed
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

ENCODERS = WeightsUser("encoders", "it needs an environment made by bash utils/make_env.sh --benchmark oneig")
_FOLDER = "eval_models/weights"
_VIT_L_14 = "b8cca3fd41ae0c99ba7e8951adf17d267cdb84cd88be6f7c2e0eca1737a03836"
# of DreamSim: its package reads these files, or downloads them
LORA = "ensemble_lora"
_LORA_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_BACKBONES = ("dino_vitb16_pretrain.pth", "clip_vitb16_pretrain.pth.tar", "open_clip_vitb16_pretrain.pth.tar")
# torch.hub's names for the repository, and for what its hubconf.py downloads
_DINO = "facebookresearch_dino_main"
_DINO_WEIGHTS = "checkpoints/dino_vitbase16_pretrain.pth"
_FILES = (*_BACKBONES, f"{LORA}/adapter_config.json", f"{_DINO}/hubconf.py", _DINO_WEIGHTS)


DREAMSIM_ENTRIES = (
    *(*_BACKBONES, _DINO_WEIGHTS, LORA),
    *(f"{_DINO}/hubconf.py", f"{_DINO}/vision_transformer.py"),
)
"""What the package reads in DreamSim's folder; of the DINO code, the files that make the model."""


class _Known(NamedTuple):
    """``assets`` are what prefetch gets; the first says where they are: a hub id, or a path below the tree's root."""

    what: str
    assets: tuple[PlacedAsset, ...]

    def is_on_hub(self, place: str) -> bool:
        return isinstance(self.assets[0], HubAsset) and may_be_hub_id(place)


_KNOWN = {
    # The official code names a file on Google Drive (1FX0xs8p-C7Ob-h5Y4cUhTeOepHzXv_46), which no program can fetch
    # reliably; this is its authors' own copy on the hub.
    "csd": _Known(
        "the CSD style encoder",
        (
            UrlAsset(
                "https://huggingface.co/tomg-group-umd/CSD-ViT-L/resolve/5bc26a6fb0487f3f00a2a7313135103a005b1b67/"
                "pytorch_model.bin",
                f"{_FOLDER}/csd/checkpoint.pth",
                "CC-BY-4.0",
                sha256="40e92fad63a361b8136100cd234c42d401ef9b34ff1748234318929ebcc7e7a1",
                size=2_438_228_893,
            ),
        ),
    ),
    "csd_clip": _Known(
        "OpenAI's CLIP under the CSD style encoder",
        (
            UrlAsset(
                # OpenAI's own addresses hold the hash
                f"https://openaipublic.azureedge.net/clip/models/{_VIT_L_14}/ViT-L-14.pt",
                f"{_FOLDER}/csd/ViT-L-14.pt",
                "MIT",
                sha256=_VIT_L_14,
            ),
        ),
    ),
    # no revision of these is known for certain: the newest, or the one in HF_HOME; a score's name holds its commit
    "se": _Known("the SE style encoder", (HubAsset("xingpng/OneIG-StyleEncoder"),)),
    "llm2clip_vision": _Known("LLM2CLIP's image encoder", (HubAsset("microsoft/LLM2CLIP-Openai-L-14-336"),)),
    "llm2clip_text": _Known(
        "LLM2CLIP's text encoder", (HubAsset("microsoft/LLM2CLIP-Llama-3-8B-Instruct-CC-Finetuned"),)
    ),
    "dreamsim": _Known(
        "DreamSim's ensemble",
        (
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
    ),
}
WEIGHTS: dict[str, str] = {
    name: first.hub if isinstance(first := known.assets[0], HubAsset) else f"{REPO}/{first.path}"
    for name, known in _KNOWN.items()
}
"""The default place of each: a file, a folder, or a hub id."""


def assets_of(names: Sequence[str], places: Mapping[str, str]) -> list[Needed]:
    """What ``names`` are made of, for prefetch; ``places`` are the user's own, which are only looked at.

    Raises:
        UserError: there are no weights of a name in ``places``.
    """
    check_names(places)
    # a checkpoint of the user's may be whole
    under = ["csd_clip"] if "csd" in names and "csd" not in places else []
    found: list[Needed] = []
    for name in [*names, *under]:
        place = places.get(name)
        if place is None:
            found += _KNOWN[name].assets
        elif _KNOWN[name].is_on_hub(place) and not Path(place).exists():
            found.append(HubAsset(place))
        else:
            found.append(LocalFolder(place))
    return found


def missing_files(names: Sequence[str], places: Mapping[str, str]) -> list[str]:
    """A line for each of ``names`` that is no hub id and is not where it should be, or not whole. Needs no package."""
    lines = []
    for name in names:
        place = places.get(name, WEIGHTS[name])
        if _KNOWN[name].is_on_hub(place):
            continue
        try:
            path = Path(place).expanduser()
            if not path.exists():
                lines.append(_missing(name, place))
            elif name == "dreamsim":
                lines.append(dreamsim_problem(path))
        except (OSError, RuntimeError) as error:  # no such user, no permission, too long a name
            lines.append(
                f"encoders: the weights '{name}' cannot be looked for at {place}: {first_line(error)}"
            )
    return [line for line in lines if line]


def find(name: str, places: Mapping[str, str]) -> WeightsSource:
    """The weights ``name`` (a key of :data:`WEIGHTS`) without loading them: where they are and what they are.

    ``places`` are the user's own. A local file or folder is told by its content alone, a hub repository by its id
    and commit.

    Raises:
        UserError: ``places`` has an unknown name.
        CellFailure: they are neither here nor on the hub; says where to get them.
    """
    check_names(places)
    place = str(Path(places.get(name, WEIGHTS[name])).expanduser())
    try:
        if Path(place).exists():
            return WeightsSource(place, None, dict(weights_of(place)))
    except OSError as error:
        raise CellFailure(f"encoders: {place} cannot be read ({error.strerror})") from error
    if _KNOWN[name].is_on_hub(place):
        return find_weights(ENCODERS, place, None)
    raise CellFailure(_missing(name, place))


def check_names(places: Mapping[str, str]) -> None:
    """Raises UserError: ``places`` has an unknown name."""
    for name in places:
        if name not in WEIGHTS:
            raise UserError(
                f"unknown weights '{name}'{suggest(name, WEIGHTS)}; known: {', '.join(sorted(WEIGHTS))}"
            )


def dreamsim_problem(folder: Path) -> str:
    """The one line on what DreamSim's ``folder`` lacks and how to get it; empty when it is whole."""
    absent = [name for name in _FILES if not (folder / name).exists()]
    if not any((folder / LORA / name).exists() for name in _LORA_WEIGHTS):
        absent.append(f"{LORA}/{_LORA_WEIGHTS[0]}")
    if not absent:
        return ""
    return (
        f"encoders: DreamSim's folder {folder} lacks {', '.join(absent)}; bash utils/prefetch.sh --ds_names oneig "
        "fetches a whole one"
    )


def does_not_load(source: WeightsSource, error: BaseException) -> CellFailure:
    """The failure, in one line, of loading ``source``."""
    if isinstance(error, ImportError):
        return missing_package(ENCODERS, error)
    if Path(source.model_path).is_file():
        return CellFailure(f"encoders: {source.model_path} does not load: {first_line(error)}")
    return CellFailure(f"encoders: {why_not_loaded(source.model_path, error)}")


def _missing(name: str, place: str) -> str:
    known = _KNOWN[name]
    first = known.assets[0]
    if isinstance(first, UrlAsset):
        origin = f"bash utils/prefetch.sh --ds_names oneig gets it from {first.url}"
    else:
        origin = f"the hub has it as {WEIGHTS[name]}"
    return (
        f"encoders: the weights '{name}' ({known.what}) are not at {place}; {origin}, "
        f"""or name another place: --ds_kwargs 'weights={{"{name}": "/path"}}'"""
    )


def load_bfloat16(
    source: WeightsSource, class_name: str, device: str, **options: Any
) -> tuple[Any, dict[str, Any]]:
    """The model of transformers' class, and what it lacks (its loading info). Raises CellFailure: it does not load."""
    try:
        import torch
        import transformers

        # its bars and its advice to programmers would garble the log of the job
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        model, loading = getattr(transformers, class_name).from_pretrained(
            source.model_path,
            revision=source.commit,
            dtype=torch.bfloat16,
            output_loading_info=True,
            **options,
        )
        return model.to(device).eval(), loading
    except Exception as error:  # the hub, a damaged file, no memory left on the device
        raise does_not_load(source, error) from error


def raise_unfit(
    source: WeightsSource,
    what: str,
    missing: Collection[str],
    unexpected: Collection[str],
    odd_shapes: Collection[str] = (),
) -> None:
    """Raise CellFailure with a few names where a checkpoint's weights are not those of ``what``."""
    kinds = {"lacks": missing, "has unexpected": unexpected, "has another shape of": odd_shapes}
    found = [
        f"{words} {', '.join(sorted(names)[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
        for words, names in kinds.items()
        if names
    ]
    if found:
        raise CellFailure(f"encoders: {source.model_path} is not {what}: it {'; it '.join(found)}")
