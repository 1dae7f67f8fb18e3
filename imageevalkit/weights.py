"""Which weights an evaluator has, without loading them: a folder's content, or one commit of a hub repository."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit.cell.fingerprint import weights_of
from imageevalkit.errors import CellFailure
from imageevalkit.load_errors import may_be_hub_id, why_not_loaded


class WeightsSource(NamedTuple):
    """``model_path`` is a local file or folder (``commit`` None) or a hub id. ``identity``: what it is, no place."""

    model_path: str
    commit: str | None
    identity: dict[str, Any]


class WeightsUser(NamedTuple):
    """Who looks: ``name`` begins its messages, ``remedy`` says where missing packages come from."""

    name: str
    remedy: str


def find_weights(user: WeightsUser, model_path: str, revision: str | None) -> WeightsSource:
    """What the folder or hub id ``model_path`` stands for now. A revision in the cache is not looked up anew.

    Raises CellFailure: there is neither such a folder, nor such a repository in the cache or on the hub.
    """
    folder = Path(model_path)
    if folder.is_dir():
        return WeightsSource(model_path, None, {"model": folder.resolve().name, **weights_of(model_path)})
    try:
        from huggingface_hub import hf_hub_download, try_to_load_from_cache

        if not may_be_hub_id(model_path):
            raise FileNotFoundError(model_path)
        config = try_to_load_from_cache(model_path, "config.json", revision=revision)
        if not isinstance(config, str):
            config = hf_hub_download(model_path, "config.json", revision=revision)
    except ImportError as error:
        raise missing_package(user, error) from error
    except Exception as error:  # of the hub, of its HTTP library, of the disk
        raise CellFailure(f"{user.name}: {why_not_loaded(model_path, error)}") from error
    # …/snapshots/<commit>/config.json
    commit = Path(config).parent.name
    return WeightsSource(model_path, commit, {"model": model_path, "revision": commit})


def package_versions(
    user: WeightsUser, needed: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, str]:
    """Versions of the packages that compute the answer, those of ``optional`` that are installed among them.

    Raises CellFailure: one of ``needed`` is missing.
    """
    versions = {}
    for name in (*needed, *optional):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            if name in needed:
                raise CellFailure(
                    f"{user.name}: package {name} is missing in this environment; {user.remedy}"
                ) from None
    return versions


def missing_package(user: WeightsUser, error: ImportError) -> CellFailure:
    """The failure that names the package which ``error`` lacks."""
    return CellFailure(
        f"{user.name}: package {error.name} does not import in this environment ({error}); {user.remedy}"
    )
