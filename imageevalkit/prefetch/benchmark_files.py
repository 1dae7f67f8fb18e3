"""The data files of benchmarks, from GitHub or a mirror folder, and their pinned prompts.

Nothing is ever half there: a file gets its name only after its SHA-256 matched, so a wrong file is replaced
by a right one or not at all. Prompts are found in a mirror's list of texts, or in the official program, which is read,
never run.
"""

from __future__ import annotations

import ast
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from tqdm import tqdm

from imageevalkit.assets import BenchmarkFiles, FileAsset, LocalAsset, PromptsAsset, TableAsset, text_sha256
from imageevalkit.atomic import write_atomic
from imageevalkit.errors import CellFailure, show
from imageevalkit.images import map_threads
from imageevalkit.prefetch.tables import fetch_table

MIRROR_LISTS = "judge_prompts*.json"


def texts_in_program(program: bytes) -> Iterator[str]:
    """Every string constant of a Python ``program``, and every f-string as the template it stands for.

    A template is one for ``str.format``, its fields named by the last name in them: ``{data['Prompt']}``,
    ``{data.Prompt}`` and ``{Prompt}`` are all ``{Prompt}``. A constant with braces is there as it is and, since a list
    of templates may hold it so, with its braces doubled.

    Raises:
        CellFailure: it is no Python.
    """
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError) as error:
        raise CellFailure(f"it is no Python program ({error})") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
            yield _template_part(node)
        elif isinstance(node, ast.JoinedStr):
            yield "".join(map(_template_part, node.values))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            yield _sum(node)


def _sum(part: ast.expr) -> str:
    """A sum of texts and names as the template it stands for: ``"a " + data.Prompt`` is ``a {Prompt}``."""
    if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add):
        return _sum(part.left) + _sum(part.right)
    if isinstance(part, ast.JoinedStr):
        return "".join(map(_template_part, part.values))
    return _template_part(part) if isinstance(part, ast.Constant) else f"{{{_field_name(part)}}}"


def _template_part(part: ast.expr) -> str:
    if isinstance(part, ast.FormattedValue):
        return f"{{{_field_name(part.value)}}}"
    literal = str(part.value) if isinstance(part, ast.Constant) else ""
    return literal.replace("{", "{{").replace("}", "}}")


def _field_name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Subscript) and isinstance(expression.slice, ast.Constant):
        return str(expression.slice.value)
    return expression.attr if isinstance(expression, ast.Attribute) else ast.unparse(expression)


def texts_in_mirror(folder: Path) -> dict[str, str]:
    """The texts by key in the lists of ``folder``: ``{key: {"text": …, "sha256": …}}``; none without lists.

    Raises:
        CellFailure: a list is no such object.
    """
    texts: dict[str, str] = {}
    for path in sorted(folder.glob(MIRROR_LISTS)):
        try:
            texts |= {key: str(entry["text"]) for key, entry in json.loads(path.read_bytes()).items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CellFailure(f"{path} is no list of texts") from None
    return texts


def pinned_texts(
    asset: PromptsAsset, listed: Mapping[str, str], program: Callable[[str], bytes]
) -> dict[str, str]:
    """The texts of ``asset`` by key: those ``listed``, the others out of ``program(path in the repository)``.

    What a text is, its pinned hash alone decides.

    Raises:
        CellFailure: a text is not there, or is another; the message names it.
    """
    in_file: dict[str, dict[str, str]] = {}
    found = {}
    for key, sha256 in asset.texts.items():
        file = key.partition("::")[0]
        if key in listed:
            candidates = {text_sha256(listed[key]): listed[key]}
        else:
            if file not in in_file:
                in_file[file] = {text_sha256(text): text for text in texts_in_program(program(file))}
            candidates = in_file[file]
        if sha256 not in candidates:
            raise CellFailure(f"{asset.source} does not hold the pinned text of {key} (sha256 {sha256})")
        found[key] = candidates[sha256]
    return found


GITHUB = "https://raw.githubusercontent.com"
_RETRIES = 3
_FINAL = frozenset({401, 403, 404, 410, 451})
# benchmarks have hundreds of small files: waiting for the server is most of the time
_DOWNLOAD_THREADS = 8


def fetch(files: BenchmarkFiles, mirror: Path | None) -> list[str]:
    """Get what a benchmark lacks from ``mirror`` or the internet; return what could not be got."""
    name, local = files.benchmark, files.local
    wrong = [asset for asset in local if files.problem_of(asset, hashes=True)]
    with tqdm(total=sum(map(_size, wrong)), desc=name, unit="B", unit_scale=True, disable=None) as bar:

        def get(asset: LocalAsset) -> str:
            problem = _fetch(asset, files, mirror)
            bar.update(_size(asset))
            return problem

        problems = [problem for problem in map_threads(get, wrong, _DOWNLOAD_THREADS) if problem]
    licences = "; ".join(dict.fromkeys(asset.licence for asset in local))
    show(
        f"{name}: {len(local) - len(wrong)} files were right already, {len(wrong) - len(problems)} fetched, "
        f"{len(problems)} problems" + f"; licence: {licences}" * bool(local)
    )
    return problems


def _size(asset: LocalAsset) -> int:
    return (asset.size or 0) if isinstance(asset, FileAsset) else 0


def _fetch(asset: LocalAsset, files: BenchmarkFiles, mirror: Path | None) -> str:
    from requests import RequestException

    try:
        if isinstance(asset, PromptsAsset):
            _fetch_prompts(asset, files.folder, mirror)
        elif isinstance(asset, TableAsset):
            fetch_table(asset, files.folder, download_allowed=not mirror)
        else:
            _fetch_file(asset, files.folder, mirror)
    except CellFailure as error:
        return f"{asset.path}: {error}"
    except RequestException as error:
        # the HTTP library's own words are three lines of object names
        return f"{asset.path}: {GITHUB} cannot be reached ({type(error).__name__}); --mirror DIR copies from a folder"
    except OSError as error:
        source = asset.repo if isinstance(asset, TableAsset) else asset.source
        return f"{asset.path}: {error.strerror or error}: {error.filename or source}"
    return files.problem_of(asset, hashes=isinstance(asset, FileAsset) and not asset.has_sha256)


def _fetch_file(asset: FileAsset, folder: Path, mirror: Path | None) -> None:
    try:
        # of one with git's name alone the caller looks at the bytes
        _store(
            asset.path, asset.source, f"sha256:{asset.digest}" if asset.has_sha256 else None, folder, mirror
        )
    except ValueError:
        where = _address(asset.source, mirror)
        raise CellFailure(f"{where} does not hold the pinned bytes (sha256 {asset.digest})") from None


def _fetch_prompts(asset: PromptsAsset, data: Path, mirror: Path | None) -> None:
    with tempfile.TemporaryDirectory(prefix="imageevalkit-") as folder:

        def program(path: str) -> bytes:
            # nothing but its texts is used, and each of them has a hash of its own
            _store(path, f"{asset.source}/{path}", None, Path(folder), mirror)
            return (Path(folder) / path).read_bytes()

        listed = texts_in_mirror(mirror / asset.source) if mirror else {}
        texts = pinned_texts(asset, listed, program)
    write_atomic(data / asset.path, json.dumps(texts, ensure_ascii=False, indent=1) + "\n")


def _address(source: str, mirror: Path | None) -> str:
    return str(mirror / source) if mirror else f"{GITHUB}/{quote(source)}"


def _store(path: str, source: str, known_hash: str | None, folder: Path, mirror: Path | None) -> None:
    """Leave ``source`` as ``folder/path``. Raises ValueError when it has another hash, OSError, CellFailure."""
    import pooch

    pooch.get_logger().setLevel("ERROR")
    # pooch looks whether a folder is there before it makes it, and another thread may be faster
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
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
