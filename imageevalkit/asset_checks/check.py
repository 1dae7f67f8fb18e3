"""One look at any asset that has a place of its own."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from imageevalkit.asset_checks.code import check_code
from imageevalkit.asset_checks.finding import Finding
from imageevalkit.asset_checks.hub import check_hub
from imageevalkit.asset_checks.hub_cache import short_name
from imageevalkit.asset_checks.url import check_url
from imageevalkit.asset_manifest import CodeAsset, HubAsset, PlacedAsset


class LocalFolder(NamedTuple):
    """A file or folder of the user's own, which nobody fetches."""

    path: str


Needed = PlacedAsset | LocalFolder
"""What a model or an evaluator needs."""


def check_asset(asset: Needed, hashes: bool) -> Finding:
    """Sizes always, content if ``hashes``. Reads the disk only."""
    if isinstance(asset, LocalFolder):
        try:
            is_here = Path(asset.path).expanduser().exists()
        except (OSError, RuntimeError):  # no permission, no such user
            is_here = False
        problems = [] if is_here else [f"there is no {asset.path}: put it there, or correct the path"]
        return Finding(problems, is_known=False)
    if isinstance(asset, HubAsset):
        return check_hub(asset, hashes)
    return check_code(asset, hashes) if isinstance(asset, CodeAsset) else check_url(asset, hashes)


def name_of(asset: Needed) -> str:
    """A short name for progress and reports."""
    if isinstance(asset, HubAsset):
        return short_name(asset)
    return f"{asset.code} at {asset.commit[:7]}" if isinstance(asset, CodeAsset) else asset.path
