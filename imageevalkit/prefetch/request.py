"""What a user asks to be fetched, in the words of ``eval.sh``."""

from __future__ import annotations

from argparse import SUPPRESS
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit import registry
from imageevalkit.asset_checks.check import Needed, Needs
from imageevalkit.asset_checks.hub import disagreement
from imageevalkit.assets import HubAsset
from imageevalkit.errors import Arguments, CellFailure, UserError, suggest
from imageevalkit.launch.benchmarks import choose_benchmark
from imageevalkit.launch.config import Config, parse_boolean, split_names
from imageevalkit.launch.kwargs import parse_kwargs, parse_kwargses
from imageevalkit.launch.models import model_needs
from imageevalkit.launch.options import OPTIONS, merge, parse_judges

_AS_IN_A_RUN = (
    "--model_names",
    "--custom_model_kwargses",
    "--ds_names",
    "--use_api",
    "--infer",
    "--eval",
    "--judges",
    "--judge_kwargs",
    "--ds_kwargs",
    "--images",
)
# these do not run anything, so that nobody would have files fetched for them
_NO_RUN = frozenset({"--dry_run", "--list", "--quickstart", "--help"})


class Request(NamedTuple):
    """``benchmarks`` are those whose data are needed; ``needs`` are all other assets by who needs them."""

    benchmarks: list[str]
    needs: dict[Needed, list[str]]
    remarks: list[str]
    problems: list[str]
    """What cannot be fetched because its list cannot be read."""
    mirror: Path | None
    check: bool
    hashes: bool


def read_request(words: list[str], config: Config) -> Request:
    """The request that ``words`` of the command line make over the configuration.

    Raises:
        UserError: an unknown option or name, or a malformed setting.
    """
    given = _parse(words)
    mirror = Path(given["mirror"]) if given["mirror"] else None
    if mirror and not mirror.is_dir():
        raise UserError(f"--mirror: there is no folder {mirror}")
    request = Request([], {}, [], [], mirror, given["check"], given["hashes"])
    models, benchmarks = _names(given, config)
    kwargses = given["custom_model_kwargses"]
    if kwargses is None:
        kwargses = ";".join(config.arrays.get("CUSTOM_MODEL_KWARGSES", []))
    makes_images = given["images"] is None and _boolean(given, "infer", config, "ENABLE_INFER", True)
    if models and makes_images:
        use_api = _boolean(given, "use_api", config, "USE_API", False)
        for model, kwargs in merge(models, parse_kwargses(kwargses, len(models))).items():
            tasks = _tasks(given, config)
            _add(request, f"model {model}", lambda m=model, k=kwargs, t=tasks: model_needs(m, use_api, k, t))
    evaluates = _boolean(given, "eval", config, "ENABLE_EVAL", True)
    judges = {**config.maps.get("JUDGE_MAP", {}), **parse_judges(given["judges"] or "")}
    judge_kwargs = parse_kwargs(given["judge_kwargs"] or "", "--judge_kwargs")
    ds_kwargs = parse_kwargs(given["ds_kwargs"] or "", "--ds_kwargs")
    for benchmark in benchmarks:
        request.benchmarks.append(benchmark)
        if evaluates:
            choose = partial(
                choose_benchmark, config, benchmark, judges.get(benchmark, ""), judge_kwargs, ds_kwargs
            )
            _add(request, f"benchmark {benchmark}", lambda c=choose: c().needs)
    if any(isinstance(asset, HubAsset) for asset in request.needs) and (problem := disagreement()):
        raise UserError(problem)
    return request


def _parse(words: list[str]) -> dict[str, Any]:
    parser = Arguments(
        "bash utils/prefetch.sh",
        "Download and verify what models and benchmarks need: give it the options of your run, and it gets weights, "
        "authors' code, data and evaluators' weights. What is there is kept; what was cut off goes on. "
        "Without names: MODEL_NAMES and DS_NAMES of config.sh, else all benchmarks. Options of eval.sh that are not "
        "below make no difference here.",
    )
    for name in _AS_IN_A_RUN:
        option = OPTIONS[name]
        parser.add_argument(name, metavar=option.value, help=f"as for eval.sh: {option.help}")
    for name in OPTIONS.keys() - _AS_IN_A_RUN - _NO_RUN:
        # a flag may be followed by true or false
        parser.add_argument(name, nargs=None if OPTIONS[name].value else "?", help=SUPPRESS)
    parser.add_argument(
        "--mirror", metavar="DIR", help="copy data and code from DIR/<owner>/<repo>/<commit>/…, no internet"
    )
    parser.add_argument("--check", action="store_true", help="only report what is missing or wrong, by size")
    parser.add_argument(
        "--hashes", action="store_true", help="verify the content of every file too, not only its size"
    )
    return vars(parser.parse_args([_with_underscores(word) for word in words]))


def _with_underscores(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{value}" if name.startswith("--") else word


def _names(given: dict[str, Any], config: Config) -> tuple[list[str], list[str]]:
    models, benchmarks = given["model_names"], given["ds_names"]
    if models is None and benchmarks is None:
        return config.names("MODEL_NAMES"), _benchmarks(config.names("DS_NAMES")) or _with_assets()
    return split_names(models or ""), _benchmarks(split_names(benchmarks or ""))


def _tasks(given: dict[str, Any], config: Config) -> list[str] | None:
    """Those of the benchmarks that a run would make images for; None, all of a model: no benchmark is named."""
    names = given["ds_names"]
    if names is None and given["model_names"] is None:
        names = ";".join(config.names("DS_NAMES"))
    known = registry.benchmark_tasks()
    tasks = [known[name] for name in _benchmarks(split_names(names or "")) if name in known]
    return list(dict.fromkeys(tasks)) or None


def _benchmarks(names: list[str]) -> list[str]:
    known = [
        *registry.benchmark_tasks(),
        *(folder.replace("_", "-") for folder in registry.broken_benchmarks()),
    ]
    # the name of a folder, wise_verified, is as good as that of its benchmark
    chosen = [name if name in known else name.replace("_", "-") for name in names]
    for name in chosen:
        if name not in known:
            raise UserError(f"unknown benchmark '{name}'{suggest(name, known)}")
    return list(dict.fromkeys(chosen))


def _with_assets() -> list[str]:
    return [
        name
        for name in _benchmarks(list(registry.benchmark_tasks()))
        if registry.benchmark_files(name).assets
    ]


def _boolean(given: dict[str, Any], option: str, config: Config, variable: str, default: bool) -> bool:
    if given[option] is not None:
        return parse_boolean(given[option], f"--{option}")
    return config.boolean(variable, default)


def _add(request: Request, user: str, needs_of: Any) -> None:
    try:
        needs: Needs = needs_of()
    except CellFailure as failure:
        request.problems.append(f"{user}: {failure}")
        return
    if needs.remark:
        request.remarks.append(f"{user}: {needs.remark}")
    for asset in needs.assets:
        request.needs.setdefault(asset, []).append(user)
