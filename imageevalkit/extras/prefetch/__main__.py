"""The command ``bash eval.sh prefetch``: downloads all that the models and benchmarks of a run need."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from imageevalkit import registry
from imageevalkit.assets import BenchmarkFiles, Finding, Needed, Needs
from imageevalkit.assets.check import check_asset, disagreement, name_of
from imageevalkit.assets.data import fetch, fetch_asset
from imageevalkit.cli.command_line import PREFETCH, parse
from imageevalkit.common.errors import CellFailure, ExitStatus, UserError, run_main, show, suggest
from imageevalkit.common.redaction import one_line
from imageevalkit.plan.benchmarks import choose_benchmark
from imageevalkit.plan.config import Config, read_config
from imageevalkit.plan.models import model_needs, models_of
from imageevalkit.plan.options import Options, options_over


class Request:
    """The files to download or check for the options of a run. ``remarks`` name files that are neither.

    ``data`` are benchmark files by benchmark, ``assets`` all other files, with the models or benchmarks that
    need them. ``problems``: needs that are unknown because of an error.
    """

    def __init__(self, options: Options) -> None:
        own = options.extra["prefetch"]
        self.mirror: Path | None = own["mirror"]
        self.only_checks, self.reads_all = bool(own["check"]), bool(own["hashes"])
        self.data: dict[str, Callable[[], BenchmarkFiles]] = {}
        self.assets: dict[Needed, list[str]] = {}
        self.remarks: list[str] = []
        self.problems: list[str] = []

    def add(self, user: str, needs_of: Callable[[], Needs]) -> None:
        """Record the needs of ``user`` (a model or benchmark), or the error if they are unknown."""
        try:
            needs = needs_of()
        except CellFailure as failure:
            self.problems.append(f"{user}: {failure}")
            return
        if needs.remark:
            self.remarks.append(f"{user}: {needs.remark}")
        for asset in needs.assets:
            self.assets.setdefault(asset, []).append(user)


def read_request(given: Mapping[str, str], config: Config) -> Request:
    """Returns the request for the options ``given``, which override the configuration.

    Raises:
        UserError: a name is unknown, or a setting is malformed.
    """
    # with a rewriter alone, only its texts are downloaded
    names_given = any(name in given for name in ("--model_names", "--ds_names", "--prompt_rewriter"))
    options = options_over({"--model_names": "", "--ds_names": "", **given} if names_given else given, config)
    request = Request(options)
    if request.mirror and not request.mirror.is_dir():
        raise UserError(f"--mirror: there is no folder {request.mirror}")
    benchmarks = _benchmarks(options.benchmarks)
    known = registry.benchmark_tasks(benchmarks)
    if options.makes_images:
        # without benchmarks, all tasks of a model
        tasks = list(dict.fromkeys(known[name] for name in benchmarks if name in known)) or None
        for model, kwargs in models_of(options).items():
            request.add(f"model {model}", partial(model_needs, model, options.use_api, kwargs, tasks))
    if not benchmarks and not names_given:
        benchmarks = [name for name in _benchmarks(list(known)) if registry.benchmark_files(name).assets]

    def needs_of(name: str) -> Needs:
        judge = options.judges.get(name, "") if options.eval else ""
        choice = choose_benchmark(config, name, judge, options.judge_kwargs, options.ds_kwargs)
        request.data[name] = lambda: choice.files
        return choice.needs if options.eval else Needs()

    for name in benchmarks:
        request.data[name] = partial(registry.benchmark_files, name)  # needs_of() may replace it
        request.add(f"benchmark {name}", partial(needs_of, name))
    if options.rewriter:
        request.data[f"prompt rewriter {options.rewriter.name}"] = options.rewriter.files
    if problem := disagreement(request.assets):
        raise UserError(problem)
    return request


def _benchmarks(names: list[str]) -> list[str]:
    broken = (folder.replace("_", "-") for folder in registry.broken_benchmarks())
    known = [*registry.benchmark_tasks(), *broken]
    if not {*names} <= {*known}:
        known += registry.plugin_names("benchmarks")
    # a folder's name such as wise_verified also names its benchmark
    chosen = [name if name in known else name.replace("_", "-") for name in names]
    for name in chosen:
        if name not in known:
            raise UserError(f"unknown benchmark '{name}'{suggest(name, known)}")
    return list(dict.fromkeys(chosen))


def main() -> ExitStatus:
    """Download or check all files. Problems are reported in one message at the end, with exit status 1."""
    words = sys.argv[1:]
    if words[:1] != ["--config-fd"]:
        raise UserError("start this as bash eval.sh prefetch --help")
    request = read_request(parse(words[2:], PREFETCH), read_config(int(words[1])))
    # Python would wait for running downloads; the next call resumes them
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for remark in request.remarks:
        show(remark)
    problems = request.problems
    for name, files_of in request.data.items():
        try:
            files = files_of()
            found = report(files) if request.only_checks else fetch(files, request.mirror)
        except (CellFailure, OSError) as failure:
            found = [_line_of(failure)]
        problems += [f"{name}: {problem}" for problem in found]
    problems += _placed(request)
    if problems:
        count = f"{len(problems)} assets are" if len(problems) > 1 else "1 asset is"
        raise CellFailure("\n  ".join([f"{count} missing or wrong:", *problems]))
    return ExitStatus.COMPLETE


def report(files: BenchmarkFiles) -> list[str]:
    """Returns the missing or wrong files of a benchmark, by hash. Prints a line if there are none."""
    problems = files.problems(hashes=True)
    if not problems:
        show(f"{files.benchmark}: {len(files.local)} files, all right")
    return problems


def _placed(request: Request) -> list[str]:
    problems = list[str]()
    how = "by content" if request.reads_all else "by size"
    for number, (asset, users) in enumerate(request.assets.items(), 1):
        name, whose = f"[{number}/{len(request.assets)}] {name_of(asset)}", ", ".join(users)
        try:
            if request.only_checks:
                found = check_asset(asset, request.reads_all)
            else:
                found = fetch_asset(asset, name, request.reads_all, request.mirror)
        except (CellFailure, OSError) as failure:
            found = Finding([f"{name_of(asset)}: " * isinstance(failure, OSError) + _line_of(failure)])
        for note in found.notes:
            show(f"note: {note}")
        outcome = f"all right {how}" if request.only_checks else "all right"
        if not found.is_known:
            outcome = "exists; its expected files are unknown"
        if not found.problems:
            show(f"{name} for {whose}: {outcome}")
        problems += [f"{whose}: {problem}" for problem in found.problems]
    return problems


def _line_of(failure: CellFailure | OSError) -> str:
    """Returns one line about ``failure``, with the file's name for an OSError."""
    if isinstance(failure, OSError):
        return one_line(f"{failure.strerror or failure}" + f": {failure.filename}" * bool(failure.filename))
    return str(failure)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # progress on stderr stays in order
    run_main(main)
