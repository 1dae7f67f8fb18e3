"""Which assets a model or the evaluation of a benchmark takes, by the same settings as a run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit.asset_checks.check import LocalFolder, Needed
from imageevalkit.asset_checks.hub_cache import is_offline
from imageevalkit.asset_manifest import CodeAsset, HubAsset, PlacedAsset, UrlAsset, parse_entries
from imageevalkit.assets import placed_assets
from imageevalkit.benchmark.contract import check_judge, rules_of
from imageevalkit.cell import REPO
from imageevalkit.errors import CellFailure
from imageevalkit.judges.choice import JudgeChoice
from imageevalkit.launch import registry
from imageevalkit.launch.config import Config
from imageevalkit.launch.judge_settings import configured_kwargs, runs_elsewhere
from imageevalkit.load_errors import may_be_hub_id
from imageevalkit.registry import find_judge

# huggingface_hub reads both
_HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


class Needs(NamedTuple):
    """``remark`` tells a user why ``assets`` are none where that may surprise."""

    assets: tuple[Needed, ...] = ()
    remark: str = ""


def model_needs(
    name: str, use_api: bool, kwargs: Mapping[str, Any], tasks: Iterable[str] | None = None
) -> Needs:
    """What model ``name`` with the user's ``kwargs`` takes for ``tasks``, those of its registry entries if None.

    Raises:
        UserError: there is no such model.
        CellFailure: it does none of the tasks, or its entry cannot be loaded or has a malformed asset.
    """
    found: dict[Needed, None] = {}
    runs_here, does_some, lacks = False, False, None
    for task in tasks or registry.model_tasks().get(name, ["t2i"]):
        by_api = use_api or registry.is_api_only(name, task)
        try:
            setting = registry.resolve_model(name, task, by_api, dict(kwargs))
        except registry.WrongTask as failure:
            lacks = failure
            continue
        does_some = True
        if setting.get("api"):
            continue
        runs_here = True
        listed = _listed(setting, f"the assets of model {name} in the registry")
        # files that the entry names in its own folder: they stand for it, and another model_path has its own
        shipped = registry.resolve_model(name, task, by_api, {})["model_path"]
        own = [asset for asset in listed if shipped and _is_below(shipped, asset)]
        other = "model_path" in kwargs
        if other or not own:
            found |= dict.fromkeys(_weights(setting, other))
        found |= dict.fromkeys(asset for asset in listed if not (other and asset in own))
    if lacks and not does_some:
        raise lacks
    if not runs_here:
        return Needs(remark="is reached through an API: nothing to fetch")
    return Needs(tuple(found), "" if found else "needs no files")


def hub_secrets(assets: Collection[Needed]) -> list[str]:
    """The variables with the hub's token, for a process whose libraries may fetch some of ``assets`` by themselves.

    None where there is code of other people among them: it runs with what prefetch has fetched.
    """
    if is_offline() or any(isinstance(asset, CodeAsset) for asset in assets):
        return []
    return list(_HUB_TOKENS) if any(isinstance(asset, HubAsset) for asset in assets) else []


def evaluator_needs(
    config: Config, benchmark: str, judge: str, judge_kwargs: Mapping[str, Any], ds_kwargs: Mapping[str, Any]
) -> Needs:
    """What evaluating ``benchmark`` takes besides its data, with the ``judge`` (empty: its default).

    Raises:
        UserError: an unknown judge, or a malformed setting.
        CellFailure: the benchmark's manifest is malformed.
    """
    own = assets_without_judge(benchmark, ds_kwargs)
    choice = find_judge(check_judge(benchmark, judge, ds_kwargs))
    if choice is None:
        return Needs(own)
    kwargs = {**configured_kwargs(config, choice), **judge_kwargs}
    return Needs((*own, *judge_weights(choice, kwargs)), _judge_remark(choice, kwargs))


def assets_without_judge(benchmark: str, ds_kwargs: Mapping[str, Any]) -> tuple[Needed, ...]:
    """What evaluating ``benchmark`` takes besides its data and its judge. Raises like :func:`evaluator_needs`."""
    rules = rules_of(benchmark, ds_kwargs)
    return (*placed_assets(benchmark), *getattr(rules, "evaluator_assets", tuple)())


def judge_weights(choice: JudgeChoice, kwargs: Mapping[str, Any]) -> list[Needed]:
    """The weights of a judge with the settings ``kwargs``; none where it runs elsewhere."""
    if runs_elsewhere(choice, kwargs):
        return []
    return [_at(choice.setting.model_path, kwargs.get("revision"), ())]


def _judge_remark(choice: JudgeChoice, kwargs: Mapping[str, Any]) -> str:
    return f"its judge {choice.name} is asked over the network" if runs_elsewhere(choice, kwargs) else ""


def _weights(setting: Mapping[str, Any], other: bool) -> list[Needed]:
    path = setting["model_path"]
    if not path:
        return []
    # what the entry needs of its own repository may be called otherwise in another one
    patterns = () if other else tuple(setting.get("patterns", ()))
    return [_at(path, setting.get("model_kwargs", {}).get("revision"), patterns)]


def _at(path: str, revision: Any, patterns: tuple[str, ...]) -> Needed:
    if not may_be_hub_id(path) or Path(path).is_dir():
        return LocalFolder(path)
    return HubAsset(path, str(revision) if revision else None, "model", patterns)


def _is_below(folder: str, asset: PlacedAsset) -> bool:
    return isinstance(asset, UrlAsset) and Path(folder) in (REPO / asset.path).parents


def _listed(setting: Mapping[str, Any], where: str) -> list[PlacedAsset]:
    assets = []
    for asset in parse_entries(list(setting.get("assets", ())), where):
        if not isinstance(asset, PlacedAsset):
            raise CellFailure(f"{where}: {asset.path} is of a kind that only benchmarks have")
        assets.append(asset)
    return assets
