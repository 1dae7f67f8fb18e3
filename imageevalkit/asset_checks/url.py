"""Whether a file from any address, or the content of an archive, is in its place.

Beside it lies a record of what was fetched. Where nobody has published a hash, that record is what later looks go by.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from imageevalkit.asset_checks.files import FileFacts, Finding, is_there, of_files, read_json, wrong
from imageevalkit.assets import UrlAsset
from imageevalkit.atomic import write_atomic
from imageevalkit.cell import REPO


class UrlRecord(NamedTuple):
    """``sha256`` is that of what the address gave; ``files`` are in the folder :func:`folder_of`."""

    sha256: str
    files: Mapping[str, FileFacts]


def check_url(asset: UrlAsset, hashes: bool) -> Finding:
    """Sizes always, as far as they are known; content if ``hashes``."""
    folder, record = folder_of(asset), read_record(asset)
    if record and asset.sha256 and record.sha256 != asset.sha256:
        return Finding([f"{asset.path} is not the version that is wanted now"])
    facts = record.files if record else _published(asset)
    names = list(facts) or list(asset.unpack) or [Path(asset.path).name]
    missing = [name for name in names if not is_there(folder / name)]
    found = (wrong(folder / name, name, fact, hashes) for name, fact in facts.items() if name not in missing)
    problems = of_files(asset.path, missing, [problem for problem in found if problem])
    if not asset.unpack:
        # one file names itself
        problems = [f"{asset.path} is missing"] if missing else problems
    notes = []
    if not problems and not facts:
        notes = [
            f"{asset.path}: nobody has published its hash, and it was not fetched by prefetch: not verified"
        ]
    return Finding(problems, notes, bool(facts))


def address_of(asset: UrlAsset) -> str:
    """Words on where to get what is put there by hand."""
    unpacked = ", unpacked" if asset.unpack else ""
    return f"get it from {asset.url}{unpacked} and put it at {REPO / asset.path}"


def folder_of(asset: UrlAsset) -> Path:
    """Where its files are: the folder of an archive's content, else that of the file."""
    path = REPO / asset.path
    return path if asset.unpack else path.parent


def file_of(asset: UrlAsset) -> Path:
    """Where what the address gives is stored: in the end, or until it is unpacked."""
    if asset.unpack:
        return folder_of(asset) / Path(urlsplit(asset.url).path).name
    return REPO / asset.path


def read_record(asset: UrlAsset) -> UrlRecord | None:
    """None where there is none, or a damaged one."""
    value = read_json(record_of(asset))
    try:
        return UrlRecord(
            str(value["sha256"]), {str(name): FileFacts.of(facts) for name, facts in value["files"].items()}
        )
    except (TypeError, KeyError, ValueError, AttributeError):
        return None


def write_record(asset: UrlAsset, record: UrlRecord) -> None:
    """Keep what was fetched beside it."""
    files = {name: facts.as_json() for name, facts in record.files.items()}
    value = {"url": asset.url, "sha256": record.sha256, "files": files}
    write_atomic(record_of(asset), json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def record_of(asset: UrlAsset) -> Path:
    """The record's own file."""
    file = file_of(asset)
    return file.with_name(f".{file.name}.fetched.json")


def _published(asset: UrlAsset) -> Mapping[str, FileFacts]:
    path = REPO / asset.path
    if asset.unpack or not asset.sha256 or not is_there(path):
        return {}
    # without a published size any will do
    size = path.stat().st_size if asset.size is None else asset.size
    return {path.name: FileFacts(size, asset.sha256)}
