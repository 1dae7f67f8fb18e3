"""Gets the assets of benchmarks on a machine with internet or from a mirror folder, and verifies them.

Nothing is ever half there: a file gets its name only after its SHA-256 matched, so a wrong file is replaced
by a right one or not at all.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from tqdm import tqdm

from imageevalkit import assets
from imageevalkit.arguments import Arguments
from imageevalkit.assets import FileAsset, HubAsset, LocalAsset, PromptsAsset
from imageevalkit.atomic import write_atomic
from imageevalkit.errors import CellFailure, ExitStatus, UserError, run_main, suggest
from imageevalkit.hub import snapshot
from imageevalkit.images import map_threads
from imageevalkit.prompt_texts import pinned_texts, texts_in_mirror

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
    with_assets = sorted(map(assets.benchmark_name, _folders("*/assets.json")))
    known = set(map(assets.benchmark_name, _folders("*/*")))
    # the name of a folder, wise_verified, is as good as that of its benchmark
    chosen = [name.strip().replace("_", "-") for name in names.split(";") if name.strip()]
    for name in chosen:
        if name not in known:
            raise UserError(f"unknown benchmark '{name}'{suggest(name, with_assets)}")
    return list(dict.fromkeys(chosen)) or with_assets


def _folders(pattern: str) -> Iterable[Path]:
    return (path.parent for path in assets.BENCHMARKS.glob(pattern))


def report(benchmark: str) -> list[str]:
    """What of ``benchmark`` is missing or wrong, hub assets included; says so on stdout when nothing is."""
    problems = assets.check(benchmark, hashes=True)
    problems += _snapshots(benchmark, offline=True)
    if not problems:
        print(f"{benchmark}: {len(assets.load_manifest(benchmark))} assets, all right")
    return problems


def fetch(benchmark: str, mirror: Path | None) -> list[str]:
    """Get what ``benchmark`` lacks from ``mirror`` or the internet; return what could not be got."""
    files = assets.local_assets(benchmark)
    wrong = [asset for asset in files if assets.problem_of(asset, benchmark, hashes=True)]
    with tqdm(total=sum(map(_size, wrong)), desc=benchmark, unit="B", unit_scale=True, disable=None) as bar:

        def get(asset: LocalAsset) -> str:
            problem = _fetch(asset, benchmark, mirror)
            bar.update(_size(asset))
            return problem

        problems = [problem for problem in map_threads(get, wrong, _DOWNLOAD_THREADS) if problem]
    # the mirror is for machines without internet: there, hub assets come with a copied HF_HOME
    problems += _snapshots(benchmark, offline=mirror is not None)
    print(
        f"{benchmark}: {len(files) - len(wrong)} files were right already, {len(wrong)} fetched, "
        f"{len(problems)} problems"
    )
    return problems


def _size(asset: LocalAsset) -> int:
    return asset.size if isinstance(asset, FileAsset) else 0


def _fetch(asset: LocalAsset, benchmark: str, mirror: Path | None) -> str:
    from requests import RequestException

    try:
        if isinstance(asset, PromptsAsset):
            _fetch_prompts(asset, benchmark, mirror)
        else:
            _fetch_file(asset, assets.data_folder(benchmark), mirror)
    except CellFailure as error:
        return f"{asset.path}: {error}"
    except RequestException as error:
        # the HTTP library's own words are three lines of object names
        return f"{asset.path}: {GITHUB} cannot be reached ({type(error).__name__}); --mirror DIR copies from a folder"
    except OSError as error:
        return f"{asset.path}: {error.strerror or error}: {error.filename or asset.source}"
    return assets.problem_of(asset, benchmark, hashes=False)


def _fetch_file(asset: FileAsset, folder: Path, mirror: Path | None) -> None:
    try:
        _store(asset.path, asset.source, f"sha256:{asset.sha256}", folder, mirror)
    except ValueError:
        where = _address(asset.source, mirror)
        raise CellFailure(f"{where} does not hold the pinned bytes (sha256 {asset.sha256})") from None


def _fetch_prompts(asset: PromptsAsset, benchmark: str, mirror: Path | None) -> None:
    with tempfile.TemporaryDirectory(prefix="imageevalkit-") as folder:

        def program(path: str) -> bytes:
            # nothing but its texts is used, and each of them has a hash of its own
            _store(path, f"{asset.source}/{path}", None, Path(folder), mirror)
            return (Path(folder) / path).read_bytes()

        listed = texts_in_mirror(mirror / asset.source) if mirror else {}
        texts = pinned_texts(asset, listed, program)
    write_atomic(
        assets.data_folder(benchmark) / asset.path, json.dumps(texts, ensure_ascii=False, indent=1) + "\n"
    )


def _address(source: str, mirror: Path | None) -> str:
    return str(mirror / source) if mirror else f"{GITHUB}/{quote(source)}"


def _store(path: str, source: str, known_hash: str | None, folder: Path, mirror: Path | None) -> None:
    """Leave ``source`` as ``folder/path``. Raises ValueError when it has another hash, OSError, CellFailure."""
    import pooch

    pooch.get_logger().setLevel("ERROR")
    store = pooch.create(
        path=folder,
        base_url="",
        registry={path: known_hash},
        urls={path: _address(source, mirror)},
        retry_if_failed=0 if mirror else _RETRIES,
    )
    store.fetch(path, downloader=_copy if mirror else _download)


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
