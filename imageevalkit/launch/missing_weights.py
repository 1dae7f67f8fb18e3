"""What of a cell's weights and code is known to be missing here, told before anything starts: sizes only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from imageevalkit.asset_checks.check import LocalFolder, Needed, check_asset
from imageevalkit.asset_checks.hub_cache import disagreement, is_offline
from imageevalkit.asset_manifest import HubAsset
from imageevalkit.assets import placed_assets
from imageevalkit.errors import CellFailure
from imageevalkit.launch import registry
from imageevalkit.launch.config import Config
from imageevalkit.launch.needs import evaluator_needs, model_needs
from imageevalkit.launch.options import Options

_NAMED = 5


def missing_of_model(options: Options, model: str, kwargs: Mapping[str, Any], task: str) -> str:
    """One line on what ``model`` lacks for ``task``, weights with the command that gets them; empty: nothing is known.

    Files that the libraries would download themselves count only where they must not. Raises UserError like
    :func:`model_needs`.
    """
    try:
        setting = registry.resolve_model(model, task, options.use_api, dict(kwargs))
        registry.check_class(model, task, setting)
        needed = model_needs(model, options.use_api, kwargs, [task]).assets
        if problem := _two_caches(needed):
            return f"model {model}: {problem}"
        missing = _missing(needed)
    except CellFailure as failure:
        return str(failure)
    if not missing:
        return ""
    command = f"bash utils/prefetch.sh --model_names {model}"
    own = ",".join(f"{name}={kwargs[name]}" for name in ("model_path", "revision") if name in kwargs)
    command += f' --custom_model_kwargses "{own}"' * bool(own)
    return f"model {model}: {_some(missing)}. Run: {command}{_ELSEWHERE}"


def missing_of_evaluator(
    options: Options, config: Config, benchmark: str, ds_kwargs: Mapping[str, Any]
) -> str:
    """The same for what measures ``benchmark``."""
    try:
        judge = options.judges.get(benchmark, "")
        needs = evaluator_needs(config, benchmark, judge, options.judge_kwargs, ds_kwargs)
        if problem := _two_caches(needs.assets):
            return f"benchmark {benchmark}: {problem}"
        # of encoders' files, those that are always needed are told by the benchmark itself
        listed = placed_assets(benchmark)
        missing = _missing(asset for asset in needs.assets if isinstance(asset, HubAsset) or asset in listed)
    except CellFailure as failure:
        return str(failure)
    if not missing:
        return ""
    chosen = f' --judges "{benchmark}={judge}"' * bool(judge)
    command = f"bash utils/prefetch.sh --ds_names {benchmark}{chosen}"
    return f"benchmark {benchmark}: {_some(missing)}. Run: {command}{_ELSEWHERE}"


_ELSEWHERE = (
    " (without internet: run it elsewhere and copy HF_HOME, eval_models/weights and infer/custom_models)"
)


def _two_caches(assets: Iterable[Needed]) -> str:
    return disagreement() if any(isinstance(asset, HubAsset) for asset in assets) else ""


def _missing(assets: Iterable[Needed]) -> list[str]:
    offline = is_offline()
    problems: list[str] = []
    for asset in assets:
        # a folder of the user's own is for the class to find, and says itself what is wrong with it
        if isinstance(asset, LocalFolder) or (isinstance(asset, HubAsset) and not offline):
            continue
        problems += check_asset(asset, hashes=False).problems
    return problems


def _some(problems: list[str]) -> str:
    more = len(problems) - _NAMED
    return "; ".join(problems[:_NAMED]) + (f"; and {more} more" if more > 0 else "")
