"""Where the libraries of Hugging Face keep a repository, found without them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from imageevalkit.asset_manifest import HubAsset

_COMMIT = re.compile(r"[0-9a-f]{40}")
_TRUE = frozenset({"1", "ON", "YES", "TRUE"})


def is_commit(revision: str) -> bool:
    """As opposed to a branch or tag, which may stand for another commit tomorrow."""
    return _COMMIT.fullmatch(revision) is not None


def is_offline() -> bool:
    """Whether the libraries may ask no hub, as they read it from the environment."""
    setting = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return setting.upper() in _TRUE


def cache_folder() -> Path:
    """Where all repositories are, by the variables and defaults of huggingface_hub."""
    environ = os.environ.get
    home = environ("HF_HOME", f"{environ('XDG_CACHE_HOME', '~/.cache')}/huggingface")
    cache = environ("HF_HUB_CACHE", environ("HUGGINGFACE_HUB_CACHE", f"{home}/hub"))
    return Path(os.path.expandvars(cache)).expanduser()


def disagreement() -> str:
    """One line where transformers before version 5 would look in another cache than all others, prefetch too."""
    other = os.environ.get("TRANSFORMERS_CACHE", "")
    if not other or Path(other).resolve() == cache_folder().resolve():
        return ""
    return (
        f"TRANSFORMERS_CACHE is {other}, but the cache of the hub's libraries is {cache_folder()}: which one is "
        "read depends on the model; leave TRANSFORMERS_CACHE empty (HF_HOME tells the place), or make both the same"
    )


def repo_folder(asset: HubAsset) -> Path:
    """Where the repository of ``asset`` is."""
    return cache_folder() / f"{asset.type}s--{asset.hub.replace('/', '--')}"


def commit_of(asset: HubAsset) -> str | None:
    """The commit that the revision of ``asset`` stood for when it was fetched; None: it never was."""
    revision = asset.revision or "main"
    if is_commit(revision):
        return revision
    try:
        return (repo_folder(asset) / "refs" / revision).read_text(encoding="utf-8").strip() or None
    except (OSError, ValueError):
        return None


def snapshot_folder(asset: HubAsset, commit: str) -> Path:
    """Where the files of ``commit`` are, as files or as links to them."""
    return repo_folder(asset) / "snapshots" / commit


def short_name(asset: HubAsset) -> str:
    """``org/name at 0123456`` for messages."""
    revision = asset.revision or ""
    return f"{asset.hub} at {revision[:7] if is_commit(revision) else revision}" if revision else asset.hub
