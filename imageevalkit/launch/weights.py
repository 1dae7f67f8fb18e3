"""Files that models, judges and encoders take: which they are, and which are known to be missing here.

Sizes only: what is told before anything starts must be told quickly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit.asset_checks.check import LocalFolder, Needed, check_asset
from imageevalkit.asset_checks.hub_cache import disagreement, is_offline
from imageevalkit.asset_manifest import CodeAsset, HubAsset
from imageevalkit.load_errors import may_be_hub_id

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
