"""Identifies the weights of a model or evaluator without loading them, and explains failed loading."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit.common.errors import CellFailure, UserError
from imageevalkit.common.hashes import weights_of


def why_not_loaded(model_path: str, error: BaseException) -> str:
    """Returns a message for an ``error`` that a library raised while loading ``model_path``."""
    from huggingface_hub import constants

    if not Path(model_path).is_dir():
        if not may_be_hub_id(model_path):
            return f"there is no folder {model_path}; download the model or correct its path"
        state = (
            "HF_HUB_OFFLINE=1 forbids downloading" if constants.HF_HUB_OFFLINE else "the hub is unreachable"
        )
        classes = {cls.__name__ for cause in _chain(error) for cls in type(cause).__mro__}
        for name, reason in _REASONS.items():
            if name in classes:
                return f"{model_path} {reason.format(cache=constants.HF_HUB_CACHE, state=state)}"
    return f"{model_path} does not load: {first_line(error)}"


_ABSENT = (
    "is no local folder and not complete in the cache {cache}, and {state}; "
    "with internet, bash eval.sh prefetch with the options of this run fetches it"
)
# by classes of huggingface_hub, subclasses first
_REASONS = {
    # says prefetch even if HF_TOKEN is set: a model that runs authors' code does not get the token
    "GatedRepoError": "is gated: accept its licence on the hub, set HF_TOKEN and run bash eval.sh prefetch with the "
    "options of this run",
    "RepositoryNotFoundError": "is neither a local folder nor a hub repository that HF_TOKEN may read",
    "RevisionNotFoundError": "has no such revision on the hub",
    "LocalEntryNotFoundError": _ABSENT,
    "OfflineModeIsEnabled": _ABSENT,
}


def may_be_hub_id(model_path: str) -> bool:
    """Whether ``model_path`` has the form ``owner/name`` of a hub id, so that it is not surely a path."""
    return re.fullmatch("[^/.~][^/]*/[^/.~][^/]*", model_path) is not None


def without_cache_layout(path: str) -> str:
    """Returns the snapshot in a Hugging Face cache folder (``models--org--name``), or any other ``path``.

    Raises UserError if the folder has several snapshots and none of them is the branch main.
    """
    folder = Path(path).expanduser()
    snapshots = folder / "snapshots"
    if not folder.name.startswith("models--") or not snapshots.is_dir():
        return path
    main = folder / "refs/main"
    there = sorted(each for each in snapshots.iterdir() if each.is_dir())
    of_main = [each for each in there if main.is_file() and each.name == main.read_text().strip()]
    if len(chosen := of_main or there) != 1:
        raise UserError(
            f"{folder} is a folder of the Hugging Face cache with {len(there)} snapshots: name one of them"
            + "".join(f", as {each}" for each in there[:1])
        )
    return str(chosen[0])


def first_line(error: BaseException) -> str:
    """Returns class and first line of ``error``, or of its cause if the text only points to the cause."""
    lines = str(error).strip().splitlines()
    # transformers and diffusers import lazily and wrap the errors of imports
    if lines and "look up to see its traceback" in lines[0]:
        *_, cause = _chain(error)
        if cause is not error:
            return first_line(cause)
        lines = [" ".join(lines)]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _chain(error: BaseException) -> list[BaseException]:
    cause = error.__cause__ or error.__context__
    return [error, *_chain(cause)] if cause else [error]


class WeightsSource(NamedTuple):
    """A local path (``commit`` is None) or hub id ``model_path``. ``identity`` contains no local path."""

    model_path: str
    commit: str | None
    identity: dict[str, Any]


class WeightsUser(NamedTuple):
    """The user of weights: ``name`` begins messages, ``remedy`` says how to get packages."""

    name: str
    remedy: str


def find_weights(
    user: WeightsUser, model_path: str, revision: str | None, file: str = "config.json"
) -> WeightsSource:
    """Returns the weights of the folder or hub id ``model_path``. A cached revision is not looked up again.

    ``file`` is any file that every such repository has. Raises CellFailure if there is no such folder, and no
    such repository in the cache or on the hub.
    """
    folder = Path(model_path)
    if folder.is_dir():
        return WeightsSource(model_path, None, {"model": folder.resolve().name, **weights_of(model_path)})
    try:
        from huggingface_hub import hf_hub_download, try_to_load_from_cache

        if not may_be_hub_id(model_path):
            raise FileNotFoundError(model_path)
        config = try_to_load_from_cache(model_path, file, revision=revision)
        if not isinstance(config, str):
            config = hf_hub_download(model_path, file, revision=revision)
    except ImportError as error:
        raise missing_package(user, error) from error
    except Exception as error:  # errors of the hub, its HTTP library and the disk have no common base class
        raise CellFailure(f"{user.name}: {why_not_loaded(model_path, error)}") from error
    commit = Path(config).parent.name  # …/snapshots/<commit>/<file>
    return WeightsSource(model_path, commit, {"model": model_path, "revision": commit})


def package_versions(
    user: WeightsUser, needed: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, str]:
    """Returns the versions of packages by name. Raises CellFailure if one of ``needed`` is missing."""
    from importlib.metadata import version  # here, because it takes a tenth of the start of a process

    versions = {}
    for name in (*needed, *optional):
        try:
            versions[name] = version(name)
        except ImportError as error:
            if name in needed:
                raise missing_package(user, error) from None
    return versions


def missing_package(user: WeightsUser, error: ImportError) -> CellFailure:
    text = f"{user.name}: package {error.name} does not import in this environment ({error}); {user.remedy}"
    return CellFailure(text)
