"""Which weights a judge has, without loading them: a folder's content, or one commit of a hub repository."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit.errors import CellFailure
from imageevalkit.fingerprint import weights_of
from imageevalkit.load_errors import may_be_hub_id, why_not_loaded

REMEDY = "EVAL_ENV_MAP must name an environment made with requirements/benchmark/t2i/geneval2.txt"
_NEEDED = ("torch", "transformers", "tokenizers", "pillow")
# where it is installed, transformers resizes with it instead of Pillow: other last bits of every pixel
_OPTIONAL = ("torchvision",)


class WeightsSource(NamedTuple):
    """``model_path`` is a local folder (``commit`` None) or a hub id. ``identity``: name and content, no place."""

    model_path: str
    commit: str | None
    identity: dict[str, Any]


def find_weights(model_path: str, revision: str | None) -> WeightsSource:
    """What ``model_path`` stands for now. A revision that is in the cache is not looked up anew.

    Raises:
        CellFailure: there is neither such a folder, nor such a repository in the cache or on the hub.
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
        raise missing_package(error) from error
    except Exception as error:  # of the hub, of its HTTP library, of the disk
        raise CellFailure(f"judge: {why_not_loaded(model_path, error)}") from error
    # …/snapshots/<commit>/config.json
    commit = Path(config).parent.name
    return WeightsSource(model_path, commit, {"model": model_path, "revision": commit})


def package_versions() -> dict[str, str]:
    """Versions of the packages that compute the answer.

    Raises:
        CellFailure: one is missing.
    """
    versions = {}
    for name in (*_NEEDED, *_OPTIONAL):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError as error:
            if name in _NEEDED:
                raise CellFailure(
                    f"judge: package {name} is missing in this environment; {REMEDY}"
                ) from error
    return versions


def missing_package(error: ImportError) -> CellFailure:
    """The failure that names the package which ``error`` lacks."""
    return CellFailure(f"judge: package {error.name} does not import in this environment ({error}); {REMEDY}")
