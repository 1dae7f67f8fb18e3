"""What a user asks to be fetched, in the words of ``eval.sh``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit import registry
from imageevalkit.asset_checks.check import Needed, Needs
from imageevalkit.asset_checks.hub import disagreement
from imageevalkit.assets import HubAsset, RewriterFiles
from imageevalkit.errors import CellFailure, UserError, suggest
from imageevalkit.launch.benchmarks import BenchmarkChoice, choose_benchmark
from imageevalkit.launch.config import Config
from imageevalkit.launch.models import model_needs
from imageevalkit.launch.options import OPTIONS, Option, is_set, options_over, parse_words, rows_of

# these do not run anything, so that nobody would have files fetched for them
_NO_RUN = frozenset({"--dry_run", "--list", "--quickstart"})
_OWN = {
    "--mirror": Option("DIR", "copy data and code from DIR/<owner>/<repo>/<commit>/…, no internet"),
    "--check": Option("", "only report what is missing or wrong, by size"),
    "--hashes": Option("", "verify the content of every file too, not only its size"),
}
_OF_A_RUN = {name: option for name, option in OPTIONS.items() if name not in _NO_RUN}
_DECISIVE = (
    *("--model_names", "--custom_model_kwargses", "--ds_names", "--use_api", "--infer", "--eval"),
    *("--judges", "--judge_kwargs", "--ds_kwargs", "--images", "--prompt_rewriter"),
)


def given_in(words: list[str]) -> dict[str, str]:
    """The options in ``words``. Raises UserError: an unknown one."""
    return parse_words(words, _OF_A_RUN | _OWN, "bash utils/prefetch.sh")


def help_text() -> str:
    """What ``--help`` prints."""
    return "\n".join(
        [
            "Usage: bash utils/prefetch.sh [options]",
            "",
            "Downloads and verifies what models and benchmarks need: give it the options of your run, and it gets",
            "weights, authors' code, data and evaluators' weights. What is there is kept; what was cut off goes on.",
            "Without names: MODEL_NAMES and DS_NAMES of config.sh, else all benchmarks.",
            "",
            *rows_of(_OWN),
            "",
            "As for eval.sh, whose other options make no difference here:",
            *rows_of({name: OPTIONS[name] for name in _DECISIVE}),
        ]
    )


class Request(NamedTuple):
    """``benchmarks`` are those whose data are needed, with the settings given; ``rewriters`` have the files of the
    prompt rewriter, if there is one; ``needs`` are all other assets by who needs them."""

    benchmarks: dict[str, Mapping[str, Any]]
    rewriters: list[RewriterFiles]
    needs: dict[Needed, list[str]]
    remarks: list[str]
    problems: list[str]
    """What cannot be fetched because its list cannot be read."""
    mirror: Path | None
    check: bool
    hashes: bool


def read_request(given: dict[str, str], config: Config) -> Request:
    """The request that the options ``given`` make over the configuration.

    Raises:
        UserError: an unknown name, or a malformed setting.
    """
    # a rewriter alone is as good as a benchmark: nothing but its texts is fetched
    names_given = any(name in given for name in ("--model_names", "--ds_names", "--prompt_rewriter"))
    options = options_over({"--model_names": "", "--ds_names": "", **given} if names_given else given, config)
    mirror = Path(given["--mirror"]) if given.get("--mirror") else None
    if mirror and not mirror.is_dir():
        raise UserError(f"--mirror: there is no folder {mirror}")
    rewriters = [options.rewriter.files] if options.rewriter else []
    request = Request({}, rewriters, {}, [], [], mirror, is_set(given, "--check"), is_set(given, "--hashes"))
    benchmarks, known = _benchmarks(options.benchmarks), registry.benchmark_tasks()
    if options.infer and options.images is None:
        # without benchmarks, all tasks of a model
        tasks = list(dict.fromkeys(known[name] for name in benchmarks if name in known)) or None
        for model, kwargs in zip(options.models, options.model_kwargs, strict=True):
            _add(request, f"model {model}", partial(model_needs, model, options.use_api, kwargs, tasks))
    for benchmark in benchmarks if benchmarks or names_given else _with_assets():
        request.benchmarks[benchmark] = {}
        judge = options.judges.get(benchmark, "") if options.evaluate else ""
        choose = partial(choose_benchmark, config, benchmark, judge, options.judge_kwargs, options.ds_kwargs)
        _add(request, f"benchmark {benchmark}", partial(_needs, request, choose, options.evaluate))
    if any(isinstance(asset, HubAsset) for asset in request.needs) and (problem := disagreement()):
        raise UserError(problem)
    return request


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


def _needs(request: Request, choose: Callable[[], BenchmarkChoice], evaluate: bool) -> Needs:
    """What evaluating a benchmark takes besides its data; its settings are noted. Raises CellFailure."""
    choice = choose()
    request.benchmarks[choice.name] = choice.settings
    return choice.needs if evaluate else Needs()


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
