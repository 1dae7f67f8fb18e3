"""Downloads incomplete assets and benchmark data (files, rows, prompts), or copies them from a mirror.

A file gets its final name only after its hash matches, so a failed download never replaces a file. Judge
prompts come from a mirror's list of texts, or from the source of the official program, which is parsed but
never run. Rows of datasets are stored as JSON Lines and image files, so benchmarks need no Parquet library.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tqdm import tqdm

from imageevalkit.assets import (
    BenchmarkFiles,
    CodeAsset,
    FileAsset,
    FileFacts,
    Finding,
    HubAsset,
    LocalAsset,
    Needed,
    PromptsAsset,
    Record,
    TableAsset,
    UrlAsset,
    text_sha256,
)
from imageevalkit.assets.check import check_asset, chosen, commit_of, is_offline, snapshot_folder
from imageevalkit.assets.git import fetch_code
from imageevalkit.assets.http import alone, download, fetch_file, forget, locked
from imageevalkit.assets.hub import snapshot
from imageevalkit.common.atomic import disk_error, part_path, write_atomic
from imageevalkit.common.errors import CellFailure, show
from imageevalkit.common.images import CorruptImage, decode, map_threads, opened
from imageevalkit.common.redaction import one_line
from imageevalkit.common.text import some

GITHUB = "https://raw.githubusercontent.com"
# benchmarks have hundreds of small files: most of the time is waiting for the server
_DOWNLOAD_THREADS = 8


def fetch_asset(asset: Needed, name: str, hashes: bool, mirror: Path | None) -> Finding:
    """Downloads ``asset``, or copies it from the folder ``mirror``, and returns the remaining problems.

    With a mirror, hub files are only checked: on a machine without internet the user copies HF_HOME. Raises
    CellFailure or OSError.
    """
    if isinstance(asset, CodeAsset):
        return fetch_code(asset, name, mirror)
    if isinstance(asset, UrlAsset):
        return fetch_file(asset, name, hashes, download_allowed=not mirror)
    if isinstance(asset, HubAsset) and not mirror:
        snapshot(asset, hashes)
        hashes = False
    return check_asset(asset, hashes)


def fetch(files: BenchmarkFiles, mirror: Path | None) -> list[str]:
    """Gets a benchmark's missing files from ``mirror`` or the internet. Returns a line for each failure."""
    name, local = files.benchmark, files.local
    for asset in local:
        if isinstance(asset, PromptsAsset):
            new, now = files.folder / asset.path, asset.place(files.folder)
            if now != new:  # an older version stored the file at another place
                new.parent.mkdir(exist_ok=True)
                now.replace(new)
    wrong = [asset for asset in local if asset.problem(files.folder, hashes=True)]
    with tqdm(total=sum(map(_size, wrong)), desc=name, unit="B", unit_scale=True, disable=None) as bar:

        def get(asset: LocalAsset) -> str:
            problem = _fetch(asset, files.folder, mirror)
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


def _fetch(asset: LocalAsset, folder: Path, mirror: Path | None) -> str:
    try:
        if isinstance(asset, PromptsAsset):
            _fetch_prompts(asset, folder, mirror)
        elif isinstance(asset, TableAsset):
            fetch_table(asset, folder, download_allowed=not mirror)
        else:
            _fetch_file(asset, folder, mirror)
    except CellFailure as error:
        return f"{asset.path}: {error}"
    except OSError as error:
        return f"{asset.path}: {error.strerror or error}: {error.filename or asset.repo}"
    return asset.problem(folder, hashes=False)


def _fetch_file(asset: FileAsset, folder: Path, mirror: Path | None) -> None:
    place = folder / asset.path
    part = part_path(place)
    with _stored(asset.source, part, mirror):
        if FileFacts(asset.size, asset.digest).problem(part, asset.path, hashes=True):
            forget(part)
            kind = "sha256" if len(asset.digest) == 64 else "git blob"
            where = mirror / asset.source if mirror else f"{GITHUB}/{asset.source}"
            raise CellFailure(f"{where} does not hold the pinned bytes ({kind} {asset.digest})")
        part.replace(place)
        forget(part)


@contextmanager
def _stored(source: str, part: Path, mirror: Path | None) -> Iterator[None]:
    """A ``with`` block in which the file ``source`` from GitHub, or from ``mirror``, is at ``part``."""
    if not mirror:
        with download(f"{GITHUB}/{quote(source)}", part, source, shown=False):
            yield
        return
    with locked(part):
        try:
            shutil.copyfile(mirror / source, part)
        except OSError as error:
            raise disk_error(error, part, part) from error
        yield


# --- official prompts ---


def _fetch_prompts(asset: PromptsAsset, data: Path, mirror: Path | None) -> None:
    with tempfile.TemporaryDirectory(prefix="imageevalkit-") as folder:

        def program(path: str) -> bytes:
            # the program needs no hash: only its texts are used, and each text is compared with its own hash
            with _stored(f"{asset.source}/{path}", Path(folder) / path, mirror):
                return (Path(folder) / path).read_bytes()

        texts = pinned_texts(asset, _listed_texts(mirror / asset.source) if mirror else {}, program)
    write_atomic(data / asset.path, json.dumps(texts, ensure_ascii=False, indent=1) + "\n")


def _listed_texts(folder: Path) -> dict[str, str]:
    """Returns the texts by key from the lists in a mirror's ``folder``: ``{key: {"text": …, "sha256": …}}``.

    Raises CellFailure if a list has another form.
    """
    texts: dict[str, str] = {}
    for path in sorted(folder.glob("judge_prompts*.json")):
        try:
            texts |= {key: str(entry["text"]) for key, entry in json.loads(path.read_bytes()).items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CellFailure(f"{path} is no list of texts") from None
    return texts


def pinned_texts(
    asset: PromptsAsset, listed: Mapping[str, str], program: Callable[[str], bytes]
) -> dict[str, str]:
    """Returns the texts of ``asset`` by key, from ``listed`` or else from ``program(path in repository)``.

    A text is recognised only by its pinned hash. Raises CellFailure if no text has the hash.
    """
    texts_of = functools.cache(
        lambda file: {text_sha256(text): text for text in texts_in_program(program(file))}
    )
    found = {}
    for key, sha256 in asset.texts.items():
        is_listed = key in listed
        texts = {text_sha256(listed[key]): listed[key]} if is_listed else texts_of(key.partition("::")[0])
        if sha256 not in texts:
            raise CellFailure(f"{asset.source} does not hold the pinned text of {key} (sha256 {sha256})")
        found[key] = texts[sha256]
    return found


def texts_in_program(program: bytes) -> Iterator[str]:
    """Yields every string constant of a Python ``program``, and every f-string or string sum as a template.

    A template is for ``str.format``. Its fields have the last name of the expression: ``{data['Prompt']}``,
    ``{data.Prompt}`` and ``{Prompt}`` all become ``{Prompt}``. A constant is also yielded with doubled
    braces, because pinned templates may contain it in that form. Raises CellFailure if ``program`` is no
    Python.
    """
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError) as error:
        raise CellFailure(f"it is no Python program ({error})") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
            yield _template(node)
        elif isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)
        ):
            yield _template(node)


def _template(part: ast.expr) -> str:
    """Returns the template: ``"a " + data.Prompt`` and ``f"a {data['Prompt']}"`` become ``a {Prompt}``."""
    if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add):
        return _template(part.left) + _template(part.right)
    if isinstance(part, ast.JoinedStr):
        return "".join(map(_template, part.values))
    if isinstance(part, ast.Constant):
        return str(part.value).replace("{", "{{").replace("}", "}}")
    field = part.value if isinstance(part, ast.FormattedValue) else part
    if isinstance(field, ast.Subscript) and isinstance(field.slice, ast.Constant):
        return f"{{{field.slice.value!s}}}"
    return f"{{{field.attr if isinstance(field, ast.Attribute) else ast.unparse(field)}}}"


# --- rows of datasets ---

_LIST = "requirements/parquet.txt"
_BATCH = 64  # rows in memory at once, with their images
IMAGES = "images"


def fetch_table(asset: TableAsset, data: Path, download_allowed: bool) -> None:
    """Writes the rows of ``asset``, their images and a record of both to the folder ``data``.

    The files of the dataset are downloaded to HF_HOME, or must already be there. Files in ``data`` are
    replaced only after all rows are read. Raises CellFailure if files of the dataset are missing or damaged,
    or if their rows differ from the first download.
    """
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise CellFailure(
            f"it comes as Parquet or Arrow, and pyarrow, which reads them, is not installed; run: "
            f"{sys.executable} -m pip install -r {_LIST}"
        ) from None
    hub = asset.hub
    if download_allowed and not is_offline():
        snapshot(hub)
    elif problems := check_asset(hub, hashes=False).problems:
        # on a machine without internet the user copies HF_HOME
        raise CellFailure(some(problems))
    source = snapshot_folder(hub, commit_of(hub) or "")
    found = (path for path in source.rglob("*") if path.suffix in (".parquet", ".arrow"))
    there = sorted(path.relative_to(source).as_posix() for path in found)
    if not (tables := chosen(there, asset.patterns)):
        raise CellFailure(f"{asset.repo}: none of its files is one of {', '.join(asset.patterns)}")
    with alone(part_path(data / asset.path)) as new:
        (new / IMAGES).mkdir()
        with (new / asset.path).open("w", encoding="utf-8") as written:
            for file in tables:
                for row in _rows(source / file, asset.columns, new):
                    written.write(json.dumps(row, ensure_ascii=False) + "\n")
        _put_in_place(asset, new, data)


def _rows(file: Path, columns: Sequence[str], folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the ``columns`` of the rows of ``file`` (none: all) and writes their images to ``folder``."""
    import pyarrow as pa

    number = 0
    try:
        for batch in _batches(file):
            for row in (batch.select(list(columns)) if columns else batch).to_pylist():
                number += 1
                yield {name: _plain(name, value, folder) for name, value in row.items()}
    except KeyError as error:
        raise CellFailure(f"{file.name} has no column {error}") from None
    except (pa.ArrowException, ValueError) as error:
        raise CellFailure(f"{file.name}, row {number}: {one_line(error, 200)}") from None


def _batches(file: Path) -> Iterator[Any]:
    """Yields the rows of a Parquet or Arrow file, some at once."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if file.suffix == ".parquet":
        with pq.ParquetFile(file) as table:
            yield from table.iter_batches(batch_size=_BATCH)
        return
    # datasets saved by Hugging Face's library are streams, not Arrow's file format
    with pa.memory_map(str(file)) as mapped, pa.ipc.open_stream(mapped) as stream:
        for batch in stream:
            yield from (batch.slice(start, _BATCH) for start in range(0, batch.num_rows, _BATCH))


def _plain(column: str, value: Any, folder: Path) -> Any:
    """Returns ``value`` as a JSON value. An image (bytes, or the dict of datasets) becomes a file path.

    Raises ValueError with the name of the ``column`` if an image is damaged or the type has no JSON form.
    """
    if isinstance(value, Mapping) and "bytes" in value:
        value = value["bytes"]
    if isinstance(value, bytes):
        try:
            with opened(value) as image:
                suffix = str(image.format).lower()
            name = f"{IMAGES}/{hashlib.sha256(value).hexdigest()}.{suffix}"
            if not (folder / name).exists():
                decode(value)
                (folder / name).write_bytes(value)
        except CorruptImage as error:
            raise ValueError(f"column {column}: {error}") from None
        return name
    if isinstance(value, Mapping):
        return {name: _plain(f"{column}.{name}", part, folder) for name, part in value.items()}
    if isinstance(value, list):
        return [_plain(column, part, folder) for part in value]
    if value is not None and not isinstance(value, str | int | float):
        raise ValueError(f"column {column} holds a {type(value).__name__}, which JSON does not")
    return value


def _put_in_place(asset: TableAsset, new: Path, data: Path) -> None:
    names = [asset.path, *sorted(path.relative_to(new).as_posix() for path in new.glob(f"{IMAGES}/*"))]
    facts = {name: FileFacts.of(new / name) for name in names}
    rows, record = facts[asset.path], asset.record(data)
    before = Record.read(record)
    if before and before.files.get(asset.path, rows).digest != rows.digest:
        raise CellFailure(
            f"{asset.repo} has other rows than at the first download; delete {record} to accept the new rows"
        )
    (data / IMAGES).mkdir(exist_ok=True)
    for name in reversed(names):  # the rows last, so that their images always exist
        (new / name).replace(data / name)
    commit = commit_of(asset.hub) or ""
    Record({"repo": asset.repo, "commit": commit}, facts).write(record)
    show(
        f"note: {asset.path} of {asset.repo} at {commit[:7]}: nobody has published its hash; recorded for later "
        f"checks: sha256 {rows.digest}"
    )
