"""What a benchmark needs from outside the tree: the list, and whether it is here byte for byte.

``benchmarks/<ds>/assets.json`` is a list of two kinds of objects::

    {"path": "prompts.jsonl",                               below benchmarks/<ds>/data/
     "source": {"repo": "owner/name", "commit": "<40 hex>", "path": "dir/prompts.jsonl"},
     "sha256": "<64 hex>", "size": 203974, "licence": "Apache-2.0"}

    {"hub": "org/name", "revision": "<40 hex>", "type": "model", "patterns": ["*.safetensors"]}

A benchmark without the file needs nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from imageevalkit.cell import REPO
from imageevalkit.errors import CellFailure

BENCHMARKS = REPO / "benchmarks"
_NAMED_PROBLEMS = 20
_REPO = re.compile(r"[\w.-]+/[\w.-]+")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class FileAsset(NamedTuple):
    """One file of a GitHub repository at a commit. ``path`` is relative to the benchmark's data folder."""

    path: str
    repo: str
    commit: str
    source_path: str
    sha256: str
    size: int
    licence: str

    @property
    def source(self) -> str:
        """``owner/name/commit/path``: the same below GitHub's raw address and below a mirror folder."""
        return f"{self.repo}/{self.commit}/{self.source_path}"


class HubAsset(NamedTuple):
    """Files of a Hugging Face repository at a revision; without ``patterns`` all of them."""

    hub: str
    revision: str
    type: str
    patterns: tuple[str, ...]


Asset = FileAsset | HubAsset


def benchmark_folder(benchmark: str) -> Path:
    """The folder of ``benchmark``: its name, with ``_`` for ``-``, since it is a Python package."""
    return BENCHMARKS / benchmark.replace("-", "_")


def manifest_path(benchmark: str) -> Path:
    """Where the asset list of ``benchmark`` is."""
    return benchmark_folder(benchmark) / "assets.json"


def data_folder(benchmark: str) -> Path:
    """Where the downloaded files of ``benchmark`` are."""
    return benchmark_folder(benchmark) / "data"


def load_manifest(benchmark: str) -> list[Asset]:
    """The assets of ``benchmark``; none when it has no manifest.

    Raises:
        CellFailure: the manifest is malformed; the message names the entry and the field.
    """
    path = manifest_path(benchmark)
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise CellFailure(f"{path} is no JSON ({error})") from None
    if not isinstance(entries, list):
        raise CellFailure(f"{path} is no list of assets")
    return [_parse(entry, f"{path}, entry {n}") for n, entry in enumerate(entries)]


def file_assets(benchmark: str) -> list[FileAsset]:
    """The assets of ``benchmark`` that are files in its data folder. Raises like :func:`load_manifest`."""
    return [asset for asset in load_manifest(benchmark) if isinstance(asset, FileAsset)]


def _parse(entry: Any, where: str) -> Asset:
    def field(holder: Any, key: str, valid: Callable[[Any], Any]) -> Any:
        try:
            value = holder[key]
        except (KeyError, TypeError):
            raise CellFailure(f"{where}: lacks '{key}'") from None
        if not valid(value):
            raise CellFailure(f"{where}: '{key}' is {value!r}")
        return value

    if isinstance(entry, dict) and "hub" in entry:
        return HubAsset(
            hub=field(entry, "hub", _matches(_REPO)),
            revision=field(entry, "revision", _matches(_COMMIT)),
            type=field(entry, "type", lambda v: v in ("model", "dataset")),
            patterns=tuple(field(entry, "patterns", _is_strings)),
        )
    source = field(entry, "source", lambda v: isinstance(v, dict))
    return FileAsset(
        path=field(entry, "path", _stays_below),
        repo=field(source, "repo", _matches(_REPO)),
        commit=field(source, "commit", _matches(_COMMIT)),
        source_path=field(source, "path", _stays_below),
        sha256=field(entry, "sha256", _matches(_SHA256)),
        size=field(entry, "size", lambda v: type(v) is int and v >= 0),
        licence=field(entry, "licence", lambda v: isinstance(v, str) and v),
    )


def _matches(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) and v for v in value)


def _stays_below(value: Any) -> bool:
    if not isinstance(value, str) or not value:
        return False
    path = PurePosixPath(value)
    return not path.is_absolute() and ".." not in path.parts


def problem_of(asset: FileAsset, benchmark: str, hashes: bool) -> str:
    """What is wrong with the local copy of ``asset`` (``"prompts.jsonl is missing"``), or an empty string."""
    path = data_folder(benchmark) / asset.path
    try:
        size = path.stat().st_size
        if not path.is_file():
            return f"{asset.path} is no file"
        if size != asset.size:
            return f"{asset.path} has {size} bytes instead of {asset.size}"
        if hashes and (found := _sha256(path)) != asset.sha256:
            return f"{asset.path} has other content (sha256 {found[:12]}… instead of {asset.sha256[:12]}…)"
    except FileNotFoundError:
        return f"{asset.path} is missing"
    except OSError as error:
        return f"{asset.path} cannot be read ({error.strerror})"
    return ""


def _sha256(path: Path) -> str:
    # imported here: a plan reads sizes only, and is made where Pillow may be missing
    from imageevalkit.images import sha256_file

    return sha256_file(path)


def check(benchmark: str, hashes: bool = False) -> list[str]:
    """What is missing or wrong among the data files of ``benchmark``: sizes always, SHA-256 if ``hashes``.

    Hub assets are not looked at: online, the library that loads them fetches them
    (``imageevalkit.prefetch --check`` reports them). Raises like :func:`load_manifest`.
    """
    found = (problem_of(asset, benchmark, hashes) for asset in file_assets(benchmark))
    return [problem for problem in found if problem]


def explain(problems: list[str], benchmark: str) -> str:
    """One line that names the missing or wrong files and the command that mends them."""
    named = "; ".join(problems[:_NAMED_PROBLEMS])
    if more := len(problems) - _NAMED_PROBLEMS:
        named += f"; and {more} more (--check names them all)" if more > 0 else ""
    return (
        f"benchmark {benchmark}: {named}. Run: bash utils/prefetch.sh --ds_names {benchmark} "
        f"(without internet: run it elsewhere and copy benchmarks/{benchmark}/data)"
    )


def data_sha256(benchmark: str) -> dict[str, str]:
    """Path → SHA-256 of the benchmark's data files, for provenance, after verifying every byte.

    Raises:
        CellFailure: a file is missing or is not the pinned one; one message names all of them.
    """
    problems = check(benchmark, hashes=True)
    if problems:
        raise CellFailure(explain(problems, benchmark))
    return {asset.path: asset.sha256 for asset in file_assets(benchmark)}
