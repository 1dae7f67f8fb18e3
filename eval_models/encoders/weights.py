"""The weights of encoders: finds, checks and loads them, and says where to get missing ones."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imageevalkit.assets import HubAsset, LocalFolder, Needed, UrlAsset, parse_entries
from imageevalkit.assets.check import weights_at
from imageevalkit.assets.weights import (
    WeightsSource,
    WeightsUser,
    find_weights,
    first_line,
    may_be_hub_id,
    missing_package,
    why_not_loaded,
)
from imageevalkit.common.errors import CellFailure, unknown
from imageevalkit.common.hashes import sha256_file, weights_of
from imageevalkit.store.cell import REPO

if TYPE_CHECKING:
    import torch

ENCODERS = WeightsUser(
    "encoders", "it needs an environment made by bash utils/make_env.sh --benchmark with the benchmark's name"
)
CLIP = "CLIPVisionModelWithProjection"
LORA = "ensemble_lora"
DREAMSIM_ENTRIES = (
    "dino_vitb16_pretrain.pth",
    "clip_vitb16_pretrain.pth.tar",
    "open_clip_vitb16_pretrain.pth.tar",
    "checkpoints/dino_vitbase16_pretrain.pth",
    LORA,
    # the files of the DINO code that build the model, in torch.hub's folder
    "facebookresearch_dino_main/hubconf.py",
    "facebookresearch_dino_main/vision_transformer.py",
)
"""The files that DreamSim's package reads in its folder, or else downloads."""
_DREAMSIM_FILES = (
    *((name,) for name in (*DREAMSIM_ENTRIES, f"{LORA}/adapter_config.json")),
    # peft reads either file
    (f"{LORA}/adapter_model.safetensors", f"{LORA}/adapter_model.bin"),
)
"""Alternatives: one file of each tuple must exist."""

_LIST = Path(__file__).resolve().parents[1] / "weights.json"
_ASSETS = {
    name: parse_entries(entries, f"'{name}' in eval_models/weights.json")
    for name, entries in json.loads(_LIST.read_text(encoding="utf-8"))["weights"].items()
}
WEIGHTS: dict[str, str] = {
    name: first.hub if isinstance(first, HubAsset) else f"{REPO}/{first.path}"
    for name, (first, *_) in _ASSETS.items()
}
"""The default location of the weights by name: a file, a folder, or a hub id."""
# the file that identifies a hub repository without config.json
_HAS = {
    "geneval_clip": "open_clip_config.json",
    "hpsv2": "HPS_v2.1_compressed.pt",
    "imagereward": "ImageReward.pt",
    "hpsv3": "HPSv3.safetensors",
}
_WITH_REFERENCES = ("csd", "se")  # these compare with reference vectors of the benchmark


def assets_of(names: Sequence[str], options: Mapping[str, Any]) -> list[Needed]:
    """Returns the assets of the weights ``names`` for prefetch. ``options["weights"]`` of the user are only
    checked.

    Raises UserError if ``options["weights"]`` has an unknown name.
    """
    found: list[Needed] = []
    for name in names:
        place, on_hub = _place(name, places := options.get("weights", {}))
        own = weights_at(place, None) if on_hub else LocalFolder(place)
        found += [own] if name in places else _ASSETS[name]
    return found


def missing_files(names: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """Returns a line for each missing or incomplete local file of the weights ``names``, and for each missing
    file of reference vectors (``options["references"]``). Needs no package."""
    places, references = options.get("weights", {}), options.get("references", {})
    lines = []
    for name in names:
        if name in _WITH_REFERENCES and not Path(file := references.get(name, "")).is_file():
            where = f"at {file}" if file else f"in references['{name}']"
            lines.append(
                f"encoders: there is no file of reference vectors for '{name}' {where}; "
                "bash eval.sh prefetch --ds_names oneig gets it"
            )
        if not _place(name, places)[1]:
            try:
                find(name, places)
            except CellFailure as error:
                lines.append(str(error))
    return lines


def find(name: str, places: Mapping[str, str]) -> WeightsSource:
    """Returns the location and the identity of the weights ``name`` (a key of :data:`WEIGHTS`) without
    loading them.

    ``places`` maps names to the user's own paths or hub ids. A local file or folder is identified by its
    content, a hub repository by its id and commit.

    Raises UserError if ``places`` has an unknown name, and CellFailure, with the remedy, if weights are
    missing or incomplete.
    """
    place, on_hub = _place(name, places)
    try:
        path = Path(place).expanduser()
        identity = weights_of(str(path))
    except (OSError, RuntimeError) as error:  # unknown user, no permission, name too long
        raise CellFailure(
            f"encoders: the weights '{name}' cannot be looked for at {place}: {first_line(error)}"
        ) from error
    if identity:
        needed = _DREAMSIM_FILES if name == "dreamsim" else ()
        if absent := [" or ".join(either) for either in needed if not any(any(path.glob(f)) for f in either)]:
            raise CellFailure(
                f"encoders: DreamSim's folder {place} lacks {', '.join(absent)}; bash eval.sh prefetch --ds_names "
                "oneig downloads a complete one"
            )
        return WeightsSource(str(path), None, dict(identity))
    if on_hub:
        return find_weights(ENCODERS, place, None, _HAS.get(name, "config.json"))
    first = _ASSETS[name][0]
    origin = f"the hub has it as {WEIGHTS[name]}"
    if isinstance(first, UrlAsset):
        origin = f"bash eval.sh prefetch with the options of this run gets it from {first.url}"
        if first.by_hand:
            origin = f"put the files of {first.url} there"
    raise CellFailure(
        f"encoders: the weights '{name}' are not at {place}; {origin}, "
        f"""or name another place: --ds_kwargs 'weights={{"{name}": "/path"}}'"""
    )


def is_published(name: str, source: WeightsSource) -> bool:
    """Whether ``source`` is the file that the publisher of the weights ``name`` offers, by the published hash."""
    first, path = _ASSETS[name][0], Path(source.model_path)
    return isinstance(first, UrlAsset) and path.is_file() and not first.is_other(sha256_file(path))


def check_names(places: Mapping[str, str]) -> None:
    """Raises UserError if ``places`` has an unknown name."""
    for name in places:
        if name not in WEIGHTS:
            raise unknown("weights", name, sorted(WEIGHTS))


def _place(name: str, places: Mapping[str, str]) -> tuple[str, bool]:
    """Returns the location of the weights ``name`` and whether it is a hub id."""
    check_names(places)
    place = places.get(name, WEIGHTS[name])
    return place, isinstance(_ASSETS[name][0], HubAsset) and may_be_hub_id(place)


@contextmanager
def loading(source: WeightsSource, user: WeightsUser = ENCODERS) -> Iterator[None]:
    """A block that loads ``source``. Any exception inside becomes a CellFailure with one line."""
    path = source.model_path
    try:
        yield
    except CellFailure:
        raise
    except ImportError as error:
        raise missing_package(user, error) from error
    except Exception as error:  # an error of the hub, the disk or the device, a damaged file, no memory left
        if type(error).__name__ == "OutOfMemoryError":
            why = (
                f"{path} does not fit into GPU memory; give the job more GPUs or a larger one (EVAL_GPU_MAP), or "
                "choose a smaller model (a judge also takes dtype=bfloat16)"
            )
        elif Path(path).is_file():
            why = f"{path} does not load: {first_line(error)}"
        else:
            why = why_not_loaded(path, error)
        raise CellFailure(f"{user.name}: {why}") from error


def cached(source: WeightsSource, name: str) -> Path:
    """Returns the path of the file ``name`` in a folder or hub repository. Raises OSError if it does not
    exist."""
    from transformers.utils import cached_file

    return Path(str(cached_file(source.model_path, name, revision=source.commit)))


def first_cached(source: WeightsSource, names: Sequence[str]) -> Path:
    """Returns the path of the first existing file of ``names``. Raises OSError if none exists."""
    for name in names[:-1]:
        with suppress(OSError):
            return cached(source, name)
    return cached(source, names[-1])


def load_pretrained(
    source: WeightsSource,
    class_name: str,
    dtype: str,
    device: str | None,
    unused: str = ".*",
    user: WeightsUser = ENCODERS,
    needless: str = "",
    **options: Any,
) -> Any:
    """Loads transformers' class ``class_name`` in ``dtype`` from ``source``, or from
    ``options["state_dict"]``.

    ``device`` is None if ``options`` place the model. ``unused`` is a pattern of weight names that the
    checkpoint may have in addition to the class, ``needless`` is one of names that it may lack. Raises
    CellFailure if the model does not load, or if weights do not match it.
    """
    with loading(source, user):
        import transformers

        quieten_transformers()
        model, found = getattr(transformers, class_name).from_pretrained(
            None if "state_dict" in options else source.model_path,
            revision=source.commit,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refuse_unfit() below reports them by name
            **options,
        )
        unfit = {
            "lacks": [name for name in found["missing_keys"] if not re.fullmatch(needless, name)],
            "has unexpected": [name for name in found["unexpected_keys"] if not re.fullmatch(unused, name)],
            "has another shape of": [str(name) for name, *_ in found["mismatched_keys"]],
        }
        refuse_unfit(source, unfit, user)
        return (model.to(device) if device else model).eval()


def quieten_transformers() -> None:
    """Silences transformers: its progress bars and warnings would garble the log of the job."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def load_tokenizer(source: WeightsSource) -> Any:
    """Returns transformers' tokenizer of ``source``. Raises CellFailure if it does not load."""
    with loading(source):
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(source.model_path, revision=source.commit)


def load_state(model: torch.nn.Module, state: Mapping[str, torch.Tensor], source: WeightsSource) -> None:
    """Loads the tensors ``state`` of ``source`` into ``model``.

    Raises CellFailure if tensors are missing, unexpected or of another shape.
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


def below(prefix: str, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the tensors whose names begin with ``prefix``, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def refuse_unfit(
    source: WeightsSource, kinds: Mapping[str, Collection[str]], user: WeightsUser = ENCODERS
) -> None:
    """Raises CellFailure if weights would stay random (libraries only warn) or unused; the message has some
    names.

    ``kinds`` maps a problem ("lacks") to names of weights.
    """
    found = [
        f"{words} {', '.join(sorted(names)[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
        for words, names in kinds.items()
        if names
    ]
    if found:
        raise CellFailure(
            f"{user.name}: {source.model_path} does not hold the weights of its model: it {'; it '.join(found)}; "
            "download it again"
        )
