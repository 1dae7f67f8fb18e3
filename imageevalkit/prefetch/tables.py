"""The rows of datasets on Hugging Face, made JSON Lines and image files: what reads them needs no Parquet."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from imageevalkit.asset_checks.files import chosen
from imageevalkit.asset_checks.hub import check_hub, commit_of, is_offline, snapshot_folder
from imageevalkit.assets import TableAsset, read_table_record, table_record_of
from imageevalkit.atomic import part_path, write_atomic
from imageevalkit.errors import CellFailure, show
from imageevalkit.hashes import sha256_file
from imageevalkit.images import FORMATS, CorruptImage, opened, prove
from imageevalkit.prefetch.hub import snapshot
from imageevalkit.secrets import one_line

_LIST = "requirements/parquet.txt"
_BATCH = 64  # rows that are in memory at once, with their images
IMAGES = "images"


def fetch_table(asset: TableAsset, data: Path, download_allowed: bool) -> None:
    """Put the rows of ``asset``, their images and the record of both into the folder ``data``.

    Its Parquet files are downloaded into HF_HOME, or must be there. Nothing in ``data`` is replaced before all is
    right. Raises CellFailure: they are not to be had, are no such files, or give other rows than were first fetched.
    """
    _check_reader()
    files = _parquet_files(asset, download_allowed)
    part = part_path(data / asset.path)
    shutil.rmtree(part, ignore_errors=True)
    try:
        (part / IMAGES).mkdir(parents=True)
        rows = part / asset.path
        with rows.open("w", encoding="utf-8") as written:
            for file in files:
                for row in _rows(file, part):
                    written.write(json.dumps(row, ensure_ascii=False) + "\n")
        _put_in_place(asset, rows, data)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _check_reader() -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise CellFailure(
            f"it comes as Parquet, and pyarrow, which reads that, is not installed; run: {sys.executable} -m pip "
            f"install -r {_LIST}"
        ) from None


def _parquet_files(asset: TableAsset, download_allowed: bool) -> list[Path]:
    hub = asset.hub
    if download_allowed and not is_offline():
        folder = Path(snapshot(hub))
    else:
        # as with all repositories of the hub: without internet HF_HOME comes as a copy
        if problems := check_hub(hub, hashes=False).problems:
            raise CellFailure("; ".join(problems))
        folder = snapshot_folder(hub, commit_of(hub) or "")
    there = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet"))
    if not (files := chosen(there, asset.patterns)):
        raise CellFailure(f"{asset.repo}: none of its files is one of {', '.join(asset.patterns)}")
    return [folder / file for file in files]


def _rows(file: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of ``file``, their images written to ``folder``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=_BATCH):
                for row in batch.to_pylist():
                    number += 1
                    yield {name: _plain(name, value, folder) for name, value in row.items()}
    except (pa.ArrowException, CorruptImage, _NoJson) as error:
        raise CellFailure(f"{file.name}, row {number}: {one_line(error, 200)}") from None


class _NoJson(Exception):
    """A cell holds what JSON has no word for."""


def _plain(column: str, value: Any, folder: Path) -> Any:
    """A JSON value; of an image, as bytes or in the form that the library datasets gives it, the path of its file.

    Raises CorruptImage or _NoJson, which name the ``column``.
    """
    if isinstance(value, Mapping) and "bytes" in value:
        value = value["bytes"]
    if isinstance(value, bytes):
        try:
            return _filed(value, folder)
        except CorruptImage as error:
            raise CorruptImage(f"column {column}: {error}") from None
    if isinstance(value, Mapping):
        return {name: _plain(f"{column}.{name}", part, folder) for name, part in value.items()}
    if isinstance(value, list):
        return [_plain(column, part, folder) for part in value]
    if value is not None and not isinstance(value, str | int | float):
        raise _NoJson(f"column {column} holds a {type(value).__name__}, which JSON does not")
    return value


def _filed(data: bytes, folder: Path) -> str:
    """The path below ``folder`` of the image ``data``, which is written there. Raises CorruptImage."""
    with opened(data) as image:
        suffix = str(image.format).lower()
    name = f"{IMAGES}/{hashlib.sha256(data).hexdigest()}.{suffix}"
    if not (folder / name).exists():
        prove(data, FORMATS)
        (folder / name).write_bytes(data)
    return name


def _put_in_place(asset: TableAsset, rows: Path, data: Path) -> None:
    place, folder = data / asset.path, rows.parent
    files = {
        path.relative_to(folder).as_posix(): path for path in [rows, *sorted(folder.glob(f"{IMAGES}/*"))]
    }
    facts = {name: (path.stat().st_size, sha256_file(path)) for name, path in files.items()}
    sha256, before = facts[asset.path][1], read_table_record(place)
    if before and before.files[asset.path][1] != sha256:
        raise CellFailure(
            f"{asset.repo} gives other rows than when it was first fetched; delete {table_record_of(place)} to trust "
            "what there is now"
        )
    (data / IMAGES).mkdir(exist_ok=True)
    for name, path in reversed(files.items()):  # the rows last: what they name is there
        path.replace(data / PurePosixPath(name))
    commit = commit_of(asset.hub) or ""
    record = {"repo": asset.repo, "commit": commit, "files": facts}
    write_atomic(table_record_of(place), json.dumps(record, indent=1) + "\n")
    show(
        f"note: {asset.path} of {asset.repo} at {commit[:7]}: nobody has published its hash; recorded for later "
        f"checks: sha256 {sha256}"
    )
