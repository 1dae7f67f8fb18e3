"""What a user asks to be fetched, in the words of ``eval.sh``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit import assets
from imageevalkit.arguments import Arguments
from imageevalkit.asset_checks.check import Needed
from imageevalkit.errors import CellFailure, UserError, suggest
from imageevalkit.launch.benchmark_kwargs import configured_settings
from imageevalkit.launch.config import Config, parse_boolean, split_names
from imageevalkit.launch.kwargs import parse_kwargs, parse_kwargses
from imageevalkit.launch.needs import Needs, evaluator_needs, model_needs
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
)


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
    if models and _boolean(given, "infer", config, "ENABLE_INFER", True):
        use_api = _boolean(given, "use_api", config, "USE_API", False)
        for model, kwargs in merge(models, parse_kwargses(kwargses, len(models))).items():
            _add(request, f"model {model}", lambda m=model, k=kwargs: model_needs(m, use_api, k))
    evaluates = _boolean(given, "eval", config, "ENABLE_EVAL", True)
    judges = {**config.maps.get("JUDGE_MAP", {}), **parse_judges(given["judges"] or "")}
    judge_kwargs = parse_kwargs(given["judge_kwargs"] or "", "--judge_kwargs")
    ds_kwargs = parse_kwargs(given["ds_kwargs"] or "", "--ds_kwargs")
    for benchmark in benchmarks:
        request.benchmarks.append(benchmark)
        if evaluates:
            settings = {**configured_settings(config, benchmark), **ds_kwargs}
            judge = judges.get(benchmark, "")
            _add(
                request,
                f"benchmark {benchmark}",
                lambda b=benchmark, j=judge, s=settings: evaluator_needs(config, b, j, judge_kwargs, s),
            )
    return request


def _parse(words: list[str]) -> dict[str, Any]:
    parser = Arguments(
        "bash utils/prefetch.sh",
        "Download and verify what models and benchmarks need: give it the options of your run, and it gets weights, "
        "authors' code, data and evaluators' weights. What is there is kept; what was cut off goes on. "
        "Without names: MODEL_NAMES and DS_NAMES of config.sh, else all benchmarks.",
    )
    for name in _AS_IN_A_RUN:
        option = OPTIONS[name]
        parser.add_argument(name, metavar=option.value, help=f"as for eval.sh: {option.help}")
    parser.add_argument(
        "--mirror", metavar="DIR", help="copy data and code from DIR/<owner>/<repo>/<commit>/…, no internet"
    )
    parser.add_argument("--check", action="store_true", help="only report what is missing or wrong, by size")
    parser.add_argument(
        "--hashes", action="store_true", help="verify the content of every file too, not only its size"
    )
    return vars(parser.parse_args(words))


def _names(given: dict[str, Any], config: Config) -> tuple[list[str], list[str]]:
    models, benchmarks = given["model_names"], given["ds_names"]
    if models is None and benchmarks is None:
        return config.names("MODEL_NAMES"), _benchmarks(config.names("DS_NAMES")) or _with_assets()
    return split_names(models or ""), _benchmarks(split_names(benchmarks or ""))


def _benchmarks(names: list[str]) -> list[str]:
    known = set(map(assets.benchmark_name, _folders("*/*")))
    # the name of a folder, wise_verified, is as good as that of its benchmark
    chosen = [name.replace("_", "-") for name in names]
    for name in chosen:
        if name not in known:
            raise UserError(f"unknown benchmark '{name}'{suggest(name, known)}")
    return list(dict.fromkeys(chosen))


def _with_assets() -> list[str]:
    return sorted(map(assets.benchmark_name, _folders("*/assets.json")))


def _folders(pattern: str) -> Iterable[Path]:
    return (path.parent for path in assets.BENCHMARKS.glob(pattern))


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
