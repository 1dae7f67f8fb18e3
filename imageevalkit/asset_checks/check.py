"""The files that models, judges and encoders take: which they are, and which of them are missing here.

Sizes only, unless hashes are asked for: what is told before anything starts must be told quickly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit.asset_checks.code import check_code
from imageevalkit.asset_checks.files import Finding, index_problems, lacking
from imageevalkit.asset_checks.hub import check_hub, disagreement, is_offline, short_name
from imageevalkit.asset_checks.url import check_url
from imageevalkit.assets import CodeAsset, HubAsset, PlacedAsset
from imageevalkit.weights import may_be_hub_id


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


# huggingface_hub reads both
_HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_NAMED = 5


class Needs(NamedTuple):
    """``remark`` tells a user why ``assets`` are none where that may surprise."""

    assets: tuple[Needed, ...] = ()
    remark: str = ""


def weights_at(path: str, revision: Any, patterns: tuple[str, ...] = ()) -> Needed:
    """What the hub id or folder ``path`` is; ``patterns``: which of its files (empty: all)."""
    if not may_be_hub_id(path) or Path(path).is_dir():
        return LocalFolder(path)
    return HubAsset(path, str(revision) if revision else None, "model", patterns)


def hub_secrets(assets: Collection[Needed]) -> list[str]:
    """The variables with the hub's token, for a process whose libraries may fetch some of ``assets`` by themselves.

    None where there is code of other people among them: it runs with what prefetch has fetched.
    """
    if is_offline() or any(isinstance(asset, CodeAsset) for asset in assets):
        return []
    return list(_HUB_TOKENS) if any(isinstance(asset, HubAsset) for asset in assets) else []


def why_missing(assets: Iterable[Needed], command: str) -> str:
    """What of ``assets`` is missing, with the ``command`` that gets it; empty: nothing is known to be.

    Files that the libraries would download themselves count only where they must not.
    """
    assets = list(assets)
    if any(isinstance(asset, HubAsset) for asset in assets) and (problem := disagreement()):
        return problem
    offline = is_offline()
    problems: list[str] = []
    for asset in assets:
        # a folder of the user's own is for the class to find, and says itself what is wrong with it
        if isinstance(asset, LocalFolder) or (isinstance(asset, HubAsset) and not offline):
            continue
        problems += check_asset(asset, hashes=False).problems
    if not problems:
        return ""
    named = "; ".join(problems[:_NAMED])
    if (more := len(problems) - _NAMED) > 0:
        named += f"; and {more} more"
    return (
        f"{named}. Run: {command} "
        "(without internet: run it elsewhere and copy HF_HOME, eval_models/weights and infer/custom_models)"
    )
