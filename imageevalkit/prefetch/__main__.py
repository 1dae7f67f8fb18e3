"""The command ``bash utils/prefetch.sh``."""

from __future__ import annotations

import signal
import sys
from functools import partial

from imageevalkit import registry
from imageevalkit.asset_checks.check import Needed, check_asset, name_of
from imageevalkit.asset_checks.files import Finding
from imageevalkit.assets import BenchmarkFiles, CodeAsset, HubAsset, UrlAsset
from imageevalkit.errors import CellFailure, ExitStatus, UserError, run_main, show
from imageevalkit.launch.config import read_config
from imageevalkit.launch.options import is_set
from imageevalkit.prefetch.benchmark_files import fetch
from imageevalkit.prefetch.code import fetch_code
from imageevalkit.prefetch.files import fetch_file
from imageevalkit.prefetch.hub import snapshot
from imageevalkit.prefetch.request import Request, given_in, help_text, read_request
from imageevalkit.secrets import one_line


def main() -> ExitStatus:
    """Fetch or check; what is missing or wrong in the end is one message, and status 1."""
    words = sys.argv[1:]
    if words[:1] != ["--config-fd"]:
        raise UserError("start this as bash utils/prefetch.sh --help")
    given = given_in(words[2:])
    if is_set(given, "--help"):
        show(help_text())
        return ExitStatus.COMPLETE
    request = read_request(given, read_config(int(words[1])))
    # Python would wait for the files being downloaded; they go on from where they are next time
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for remark in request.remarks:
        show(remark)
    problems = [*request.problems, *_benchmarks(request), *_placed(request)]
    if problems:
        count = f"{len(problems)} assets are" if len(problems) > 1 else "1 asset is"
        raise CellFailure("\n  ".join([f"{count} missing or wrong:", *problems]))
    return ExitStatus.COMPLETE


def _benchmarks(request: Request) -> list[str]:
    problems: list[str] = []
    for benchmark, settings in request.benchmarks.items():
        try:
            files = registry.benchmark_files(benchmark, settings)
        except CellFailure as failure:
            problems.append(f"{benchmark}: {failure}")
        else:
            problems += _files(request, benchmark, files)
    for rewriter in request.rewriters:
        problems += _files(request, rewriter.what, rewriter)
    return problems


def _files(request: Request, name: str, files: BenchmarkFiles) -> list[str]:
    try:
        found = report(files) if request.check else fetch(files, request.mirror)
    except (CellFailure, OSError) as failure:
        found = [_said(failure)]
    return [f"{name}: {problem}" for problem in found]


def report(files: BenchmarkFiles) -> list[str]:
    """What of the data of a benchmark is missing or wrong, every byte; says so on stdout when nothing is."""
    problems = files.problems(hashes=True)
    if not problems:
        show(f"{files.benchmark}: {len(files.local)} files, all right")
    return problems


def _placed(request: Request) -> list[str]:
    problems: list[str] = []
    for number, (asset, users) in enumerate(request.needs.items(), 1):
        name = f"[{number}/{len(request.needs)}] {name_of(asset)}"
        try:
            look = partial(check_asset, asset, request.hashes)
            found = look() if request.check else _fetch(asset, name, request)
        except (CellFailure, OSError) as failure:
            found = Finding([f"{name_of(asset)}: " * isinstance(failure, OSError) + _said(failure)])
        whose = ", ".join(users)
        for note in found.notes:
            show(f"note: {note}")
        if not found.problems:
            show(f"{name} for {whose}: {_outcome(found, request)}")
        problems += [f"{whose}: {problem}" for problem in found.problems]
    return problems


def _fetch(asset: Needed, name: str, request: Request) -> Finding:
    if isinstance(asset, HubAsset) and not request.mirror:
        # a mirror is for machines without internet: there, HF_HOME comes as a copy
        snapshot(asset, request.hashes)
        return check_asset(asset, hashes=False)
    if isinstance(asset, CodeAsset):
        return fetch_code(asset, name, request.mirror)
    if isinstance(asset, UrlAsset):
        return fetch_file(asset, name, request.hashes, download_allowed=not request.mirror)
    return check_asset(asset, request.hashes)


def _outcome(found: Finding, request: Request) -> str:
    if not found.is_known:
        return "is there; nothing tells what its files must be"
    return "all right" + (" by content" if request.hashes else " by size") * request.check


def _said(failure: CellFailure | OSError) -> str:
    """One line; an error of the disk says which file."""
    if isinstance(failure, OSError):
        return one_line(f"{failure.strerror or failure}" + f": {failure.filename}" * bool(failure.filename))
    return str(failure)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # progress on stderr stays in order
    run_main(main)
