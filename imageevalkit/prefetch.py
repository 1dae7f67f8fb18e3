"""Gets the assets of benchmarks on a machine with internet or from a mirror folder, and verifies them.

Nothing is ever half there: a file gets its name only after its SHA-256 matched, so a wrong file is replaced
by a right one or not at all.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from tqdm import tqdm

from imageevalkit import assets
from imageevalkit.arguments import Arguments
from imageevalkit.assets import FileAsset, HubAsset
from imageevalkit.errors import CellFailure, ExitStatus, UserError, run_main, suggest
from imageevalkit.hub import snapshot
from imageevalkit.images import map_threads

GITHUB = "https://raw.githubusercontent.com"
_RETRIES = 3
_FINAL = frozenset({401, 403, 404, 410, 451})
# benchmarks have hundreds of small files: waiting for the server is most of the time
_DOWNLOAD_THREADS = 8


def main() -> ExitStatus:
    """The command ``bash utils/prefetch.sh``."""
    parser = Arguments("bash utils/prefetch.sh", "Download and verify the files that benchmarks need.")
    parser.add_argument("--ds_names", default="", help='benchmarks, "a;b" (default: all that need files)')
    parser.add_argument(
        "--mirror", type=Path, metavar="DIR", help="copy from DIR/<owner>/<repo>/<commit>/<path>, no internet"
    )
    parser.add_argument("--check", action="store_true", help="only report what is missing or wrong")
    options = parser.parse_args()
    if options.mirror and not options.mirror.is_dir():
        raise UserError(f"--mirror: there is no folder {options.mirror}")

    problems = []
    for benchmark in _benchmarks(options.ds_names):
        try:
            found = report(benchmark) if options.check else fetch(benchmark, options.mirror)
        except CellFailure as failure:
            found = [str(failure)]
        problems += [f"{benchmark}: {problem}" for problem in found]
    if problems:
        raise CellFailure("\n  ".join([f"{len(problems)} assets are missing or wrong:", *problems]))
    return ExitStatus.COMPLETE


def _benchmarks(names: str) -> list[str]:
    folders = sorted(path.parent.name for path in assets.BENCHMARKS.glob("*/assets.json"))
    chosen = [name.strip() for name in names.split(";") if name.strip()]
    for name in chosen:
        if name not in folders and not (assets.BENCHMARKS / name).is_dir():
            raise UserError(f"unknown benchmark '{name}'{suggest(name, folders)}")
    return list(dict.fromkeys(chosen)) or folders


def report(benchmark: str) -> list[str]:
    """What of ``benchmark`` is missing or wrong, hub assets included; says so on stdout when nothing is."""
    problems = assets.check(benchmark, hashes=True)
    problems += _snapshots(benchmark, offline=True)
    if not problems:
        print(f"{benchmark}: {len(assets.load_manifest(benchmark))} assets, all right")
    return problems


def fetch(benchmark: str, mirror: Path | None) -> list[str]:
    """Get what ``benchmark`` lacks from ``mirror`` or the internet; return what could not be got."""
    files = assets.file_assets(benchmark)
    wrong = [asset for asset in files if assets.problem_of(asset, benchmark, hashes=True)]
    with tqdm(
        total=sum(asset.size for asset in wrong), desc=benchmark, unit="B", unit_scale=True, disable=None
    ) as bar:

        def get(asset: FileAsset) -> str:
            problem = _fetch_file(asset, benchmark, mirror)
            bar.update(asset.size)
            return problem

        problems = [problem for problem in map_threads(get, wrong, _DOWNLOAD_THREADS) if problem]
    # the mirror is for machines without internet: there, hub assets come with a copied HF_HOME
    problems += _snapshots(benchmark, offline=mirror is not None)
    print(
        f"{benchmark}: {len(files) - len(wrong)} files were right already, {len(wrong)} wanted, "
        f"{len(problems)} problems"
    )
    return problems


def _fetch_file(asset: FileAsset, benchmark: str, mirror: Path | None) -> str:
    import pooch
    from requests import RequestException

    pooch.get_logger().setLevel("ERROR")
    source = str(mirror / asset.source) if mirror else f"{GITHUB}/{quote(asset.source)}"
    downloader = _copy if mirror else _download
    store = pooch.create(
        path=assets.data_folder(benchmark),
        base_url="",
        registry={asset.path: f"sha256:{asset.sha256}"},
        urls={asset.path: source},
        retry_if_failed=0 if mirror else _RETRIES,
    )
    try:
        store.fetch(asset.path, downloader=downloader)
    except ValueError:
        return f"{asset.path}: {source} does not hold the pinned bytes (sha256 {asset.sha256})"
    except (CellFailure, RequestException) as error:
        return f"{asset.path}: {error}"
    except OSError as error:
        return f"{asset.path}: {error.strerror or error}: {error.filename or source}"
    return assets.problem_of(asset, benchmark, hashes=False)


def _download(source: str, target: str | IO[bytes], store: Any) -> None:
    import pooch
    from requests import HTTPError

    _with_usual_mode(target)
    try:
        pooch.HTTPDownloader(chunk_size=1 << 16)(source, target, store)
    except HTTPError as error:
        if error.response.status_code in _FINAL:
            raise CellFailure(str(error)) from None  # which pooch does not try again
        raise


def _copy(source: str, target: str | IO[bytes], _store: Any) -> None:
    _with_usual_mode(target)
    shutil.copyfile(source, str(target))


def _with_usual_mode(target: str | IO[bytes]) -> None:
    # pooch's temporary file is for its owner alone (0600); one made anew follows the umask, for a team's folder
    Path(str(target)).unlink()


def _snapshots(benchmark: str, offline: bool) -> Sequence[str]:
    problems = []
    for asset in assets.load_manifest(benchmark):
        if isinstance(asset, HubAsset):
            try:
                snapshot(asset.hub, asset.revision, asset.type, asset.patterns, offline)
            except CellFailure as failure:
                problems.append(str(failure))
    return problems


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # progress on stderr stays in order
    run_main(main)
