"""What a benchmark needs from outside the tree: the list, and whether it is here byte for byte.

``benchmarks/<ds>/assets.json`` is the list; ``asset_manifest.py`` says what it holds.
A benchmark without the file needs nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imageevalkit.asset_manifest import (
    Asset,
    FileAsset,
    LocalAsset,
    PlacedAsset,
    PromptsAsset,
    parse_manifest,
)
from imageevalkit.cell import REPO
from imageevalkit.errors import CellFailure
from imageevalkit.hashes import sha256_file

BENCHMARKS = REPO / "benchmarks"
_NAMED_PROBLEMS = 20


def benchmark_folder(benchmark: str) -> Path:
    """The folder of ``benchmark``: its name, with ``_`` for ``-``, since it is a Python package."""
    return BENCHMARKS / benchmark.replace("-", "_")


def is_foreign(benchmark: str) -> bool:
    """Whether nothing but a user's own script knows how ``benchmark`` is scored."""
    rules = benchmark_folder(benchmark) / "benchmark.py"
    return not rules.is_file() and (REPO / "eval" / f"{benchmark}.sh").is_file()


def benchmark_name(folder: Path) -> str:
    """The name of the benchmark in ``folder``."""
    return folder.name.replace("_", "-")


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
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return parse_manifest(text, str(path))


def local_assets(benchmark: str) -> list[LocalAsset]:
    """The assets of ``benchmark`` that lie in its data folder. Raises like :func:`load_manifest`."""
    return [asset for asset in load_manifest(benchmark) if isinstance(asset, LocalAsset)]


def placed_assets(benchmark: str) -> list[PlacedAsset]:
    """The other ones, which benchmarks and models may share. Raises like :func:`load_manifest`."""
    return [asset for asset in load_manifest(benchmark) if not isinstance(asset, LocalAsset)]


def problem_of(asset: LocalAsset, benchmark: str, hashes: bool) -> str:
    """What is wrong with the local copy of ``asset`` (``"prompts.jsonl is missing"``), or an empty string.

    The texts of a :class:`PromptsAsset` are few and short: they are always compared.
    """
    path = data_folder(benchmark) / asset.path
    try:
        if isinstance(asset, PromptsAsset):
            return _prompts_problem(path, asset)
        return _file_problem(path, asset, hashes)
    except FileNotFoundError:
        return f"{asset.path} is missing"
    except OSError as error:
        return f"{asset.path} cannot be read ({error.strerror})"


def _file_problem(path: Path, asset: FileAsset, hashes: bool) -> str:
    size = path.stat().st_size
    if not path.is_file():
        return f"{asset.path} is no file"
    if size != asset.size:
        return f"{asset.path} has {size} bytes instead of {asset.size}"
    if hashes and (found := sha256_file(path)) != asset.sha256:
        return f"{asset.path} has other content (sha256 {found[:12]}… instead of {asset.sha256[:12]}…)"
    return ""


def _prompts_problem(path: Path, asset: PromptsAsset) -> str:
    try:
        texts: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return f"{asset.path} is no JSON"
    if not isinstance(texts, Mapping) or not all(isinstance(text, str) for text in texts.values()):
        return f"{asset.path} is no JSON object of texts"
    # a text too many would change the evaluator's name, which holds the hash of all of them
    wrong = [k for k in {**asset.texts, **texts} if text_sha256(texts.get(k)) != asset.texts.get(k)]
    return f"{asset.path} has other content ({', '.join(wrong)})" if wrong else ""


def text_sha256(text: str | None) -> str:
    """Hex SHA-256 of ``text`` as UTF-8; empty for None."""
    return "" if text is None else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def check(benchmark: str, hashes: bool = False) -> list[str]:
    """What is missing or wrong among the data files of ``benchmark``: sizes always, SHA-256 if ``hashes``.

    :func:`placed_assets` are not looked at. Raises like :func:`load_manifest`.
    """
    found = (problem_of(asset, benchmark, hashes) for asset in local_assets(benchmark))
    return [problem for problem in found if problem]


def explain(problems: list[str], benchmark: str) -> str:
    """One line that names the missing or wrong files and the command that mends them."""
    named = "; ".join(problems[:_NAMED_PROBLEMS])
    if more := len(problems) - _NAMED_PROBLEMS:
        named += f"; and {more} more (--check names them all)" if more > 0 else ""
    return (
        f"benchmark {benchmark}: {named}. Run: bash utils/prefetch.sh --ds_names {benchmark} "
        f"(without internet: run it elsewhere and copy benchmarks/{benchmark_folder(benchmark).name}/data)"
    )


def data_sha256(benchmark: str) -> dict[str, str]:
    """The SHA-256 of the benchmark's data files by path, and of its prompts by key, after verifying every byte.

    Raises:
        CellFailure: a file is missing or is not the pinned one; one message names all of them.
    """
    problems = check(benchmark, hashes=True)
    if problems:
        raise CellFailure(explain(problems, benchmark))
    hashes: dict[str, str] = {}
    for asset in local_assets(benchmark):
        hashes.update(asset.texts if isinstance(asset, PromptsAsset) else {asset.path: asset.sha256})
    return hashes
