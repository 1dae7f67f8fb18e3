"""The encoders' weights: where they are, what they are, and where to get those that are missing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from eval_models import weights_source
from eval_models.encoders import dreamsim_files
from eval_models.encoders.interface import EncoderOptions
from eval_models.weights_source import WeightsSource, WeightsUser
from imageevalkit.cell import REPO
from imageevalkit.errors import CellFailure, UserError, suggest
from imageevalkit.fingerprint import weights_of
from imageevalkit.load_errors import first_line, may_be_hub_id, why_not_loaded

ENCODERS = WeightsUser("encoders", "it needs an environment made by bash utils/make_env.sh --benchmark oneig")
_FOLDER = REPO / "eval_models" / "weights"


class _Known(NamedTuple):
    """``origin``: where to get it, for a reader; empty for what the hub has."""

    place: str
    what: str
    origin: str = ""


_KNOWN = {
    "csd": _Known(
        f"{_FOLDER}/csd/checkpoint.pth",
        "the CSD style encoder",
        "https://drive.google.com/file/d/1FX0xs8p-C7Ob-h5Y4cUhTeOepHzXv_46",
    ),
    "csd_clip": _Known(
        f"{_FOLDER}/csd/ViT-L-14.pt",
        "OpenAI's CLIP under the CSD style encoder",
        "https://openaipublic.azureedge.net/clip/models/"
        "b8cca3fd41ae0c99ba7e8951adf17d267cdb84cd88be6f7c2e0eca1737a03836/ViT-L-14.pt",
    ),
    "se": _Known("xingpng/OneIG-StyleEncoder", "the SE style encoder"),
    "llm2clip_vision": _Known("microsoft/LLM2CLIP-Openai-L-14-336", "LLM2CLIP's image encoder"),
    "llm2clip_text": _Known("microsoft/LLM2CLIP-Llama-3-8B-Instruct-CC-Finetuned", "LLM2CLIP's text encoder"),
    "dreamsim": _Known(
        f"{_FOLDER}/dreamsim",
        "DreamSim's ensemble",
        "https://github.com/ssundaram21/dreamsim/releases/download/v0.2.0-checkpoints/"
        "dreamsim_ensemble_checkpoint.zip (unpacked)",
    ),
}
WEIGHTS: dict[str, str] = {name: known.place for name, known in _KNOWN.items()}
"""The default place of each: a file, a folder, or a hub id."""


def check_names(options: EncoderOptions) -> None:
    """Raise UserError where ``options.weights`` names weights that there are not."""
    for name in options.weights:
        if name not in WEIGHTS:
            raise UserError(
                f"unknown weights '{name}'{suggest(name, WEIGHTS)}; known: {', '.join(sorted(WEIGHTS))}"
            )


def missing_files(names: Iterable[str], options: EncoderOptions) -> list[str]:
    """A line for each of ``names`` that is no hub id and is not where it should be, or not whole. Needs no package."""
    lines = [_problem_of_file(name, options.weights.get(name, WEIGHTS[name])) for name in names]
    return [line for line in lines if line]


def _problem_of_file(name: str, place: str) -> str:
    if may_be_hub_id(place) and not _KNOWN[name].origin:
        return ""
    try:
        path = Path(place).expanduser()
        if not path.exists():
            return _missing(name, place)
        return dreamsim_files.problem(path) if name == "dreamsim" else ""
    except (OSError, RuntimeError) as error:  # no such user, no permission, too long a name
        return f"encoders: the weights '{name}' cannot be looked for at {place}: {first_line(error)}"


def find(name: str, options: EncoderOptions) -> WeightsSource:
    """The weights ``name`` (a key of :data:`WEIGHTS`) without loading them: where they are and what they are.

    A local file or folder is told by its content alone, a hub repository by its id and commit.

    Raises:
        UserError: ``options.weights`` has an unknown name.
        CellFailure: they are neither here nor on the hub; says where to get them.
    """
    check_names(options)
    place = str(Path(options.weights.get(name, WEIGHTS[name])).expanduser())
    try:
        if Path(place).exists():
            return WeightsSource(place, None, dict(weights_of(place)))
    except OSError as error:
        raise CellFailure(f"encoders: {place} cannot be read ({error.strerror})") from error
    if may_be_hub_id(place) and not _KNOWN[name].origin:
        return weights_source.find_weights(ENCODERS, place, None)
    raise CellFailure(_missing(name, place))


def does_not_load(source: WeightsSource, error: BaseException) -> CellFailure:
    """The failure, in one line, of loading ``source``."""
    if isinstance(error, ImportError):
        return weights_source.missing_package(ENCODERS, error)
    if Path(source.model_path).is_file():
        return CellFailure(f"encoders: {source.model_path} does not load: {first_line(error)}")
    return CellFailure(f"encoders: {why_not_loaded(source.model_path, error)}")


def package_versions(*more: str) -> dict[str, str]:
    """Versions of torch, transformers, numpy, Pillow, and ``more``. Raises CellFailure where one is missing."""
    return weights_source.package_versions(ENCODERS, ("torch", "transformers", "numpy", "pillow", *more))


def _missing(name: str, place: str) -> str:
    known = _KNOWN[name]
    origin = f"get it from {known.origin}" if known.origin else f"the hub has it as {known.place}"
    return (
        f"encoders: the weights '{name}' ({known.what}) are not at {place}; {origin}, "
        f"""or name another place: --ds_kwargs 'weights={{"{name}": "/path"}}'"""
    )
