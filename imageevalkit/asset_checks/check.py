"""One look at any asset that has a place of its own."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from imageevalkit.asset_checks.checkpoint_index import index_problems
from imageevalkit.asset_checks.code import check_code
from imageevalkit.asset_checks.finding import Finding
from imageevalkit.asset_checks.hub import check_hub
from imageevalkit.asset_checks.hub_cache import short_name
from imageevalkit.asset_checks.url import check_url
from imageevalkit.asset_checks.weight_files import lacking
from imageevalkit.asset_manifest import CodeAsset, HubAsset, PlacedAsset


class LocalFolder(NamedTuple):
    """A file or folder of the user's own, which nobody fetches."""

    path: str


Needed = PlacedAsset | LocalFolder
"""What a model or an evaluator needs."""


def check_asset(asset: Needed, hashes: bool) -> Finding:
    """Sizes always, content if ``hashes``. Reads the disk only."""
    if isinstance(asset, LocalFolder):
        return Finding(_local_problems(asset.path), is_known=False)
    if isinstance(asset, HubAsset):
        return check_hub(asset, hashes)
    return check_code(asset, hashes) if isinstance(asset, CodeAsset) else check_url(asset, hashes)


def name_of(asset: Needed) -> str:
    """A short name for progress and reports."""
    if isinstance(asset, HubAsset):
        return short_name(asset)
    return f"{asset.code} at {asset.commit[:7]}" if isinstance(asset, CodeAsset) else asset.path


def _local_problems(place: str) -> list[str]:
    try:
        path = Path(place).expanduser()
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return [f"there is no {place}, or nothing in it: put it there, or correct the path"]
        # of other folders nothing is known
        if not any((path / name).is_file() for name in ("model_index.json", "config.json")):
            return []
        return [f"{place}: {problem}" for problem in (*index_problems(path), *lacking(path, (), ()))]
    except (OSError, RuntimeError) as error:  # no permission, no such user
        return [f"{place} cannot be looked at ({error}): correct the path"]
