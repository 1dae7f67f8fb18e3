"""Weights that a model's class reads from a folder of its own accord: a local one, or a commit of a hub repository."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from imageevalkit.generation.model import ModelUnusable
from imageevalkit.weights import why_not_loaded


def weights_folder(model_path: str, revision: str | None = None, patterns: Sequence[str] = ()) -> Path:
    """``model_path`` itself where it is a folder, else the hub repository's files (``patterns``; all when empty).

    Raises:
        ModelUnusable: neither; or the files are not in the cache and cannot be fetched.
    """
    if Path(model_path).is_dir():
        return Path(model_path)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model_path, revision=revision, allow_patterns=list(patterns) or None))
    except Exception as error:  # of the hub, of its HTTP library, of the disk
        raise ModelUnusable(why_not_loaded(model_path, error)) from error
