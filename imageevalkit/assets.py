"""What a benchmark needs from outside the tree: whether it is here byte for byte, and what it holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit.asset_manifest import Asset, FileAsset, LocalAsset, PlacedAsset, PromptsAsset
from imageevalkit.cell import REPO
from imageevalkit.errors import CellFailure
from imageevalkit.hashes import sha256_file

BENCHMARKS = REPO / "benchmarks"
_NAMED_PROBLEMS = 20


def data_folder(benchmark: str) -> Path:
    """Where the downloaded files of ``benchmark`` are: below its name, with ``_`` for ``-`` as in packages."""
    return BENCHMARKS / benchmark.replace("-", "_") / "data"


class BenchmarkFiles(NamedTuple):
    """The ``assets`` of ``benchmark``; a foreign one has none that we know of."""

    benchmark: str
    assets: Sequence[Asset] = ()

    @property
    def local(self) -> list[LocalAsset]:
        """Those in its data folder."""
        return [asset for asset in self.assets if isinstance(asset, LocalAsset)]

    @property
    def placed(self) -> list[PlacedAsset]:
        """The other ones, which benchmarks and models may share."""
        return [asset for asset in self.assets if not isinstance(asset, LocalAsset)]

    def problems(self, hashes: bool = False) -> list[str]:
        """What is missing or wrong among the :attr:`local` ones: sizes always, SHA-256 if ``hashes``."""
        found = (self.problem_of(asset, hashes) for asset in self.local)
        return [problem for problem in found if problem]

    def problem_of(self, asset: LocalAsset, hashes: bool) -> str:
        """What is wrong with the local copy of ``asset`` (``"prompts.jsonl is missing"``), or an empty string.

        The texts of a :class:`PromptsAsset` are few and short: they are always compared.
        """
        path = data_folder(self.benchmark) / asset.path
        try:
            if isinstance(asset, PromptsAsset):
                return _prompts_problem(path, asset)
            return _file_problem(path, asset, hashes)
        except FileNotFoundError:
            return f"{asset.path} is missing"
        except OSError as error:
            return f"{asset.path} cannot be read ({error.strerror})"

    def explain(self, problems: Sequence[str]) -> str:
        """One line that names the missing or wrong files and the command that mends them."""
        named = "; ".join(problems[:_NAMED_PROBLEMS])
        if (more := len(problems) - _NAMED_PROBLEMS) > 0:
            named += f"; and {more} more (--check names them all)"
        folder = data_folder(self.benchmark).relative_to(BENCHMARKS.parent)
        return (
            f"benchmark {self.benchmark}: {named}. Run: bash utils/prefetch.sh --ds_names {self.benchmark} "
            f"(without internet: run it elsewhere and copy {folder})"
        )

    def sha256(self) -> dict[str, str]:
        """The SHA-256 of the data files by path, and of the prompts by key, after verifying every byte.

        Raises:
            CellFailure: a file is missing or is not the pinned one; one message names all of them.
        """
        if problems := self.problems(hashes=True):
            raise CellFailure(self.explain(problems))
        hashes: dict[str, str] = {}
        for asset in self.local:
            hashes.update(asset.texts if isinstance(asset, PromptsAsset) else {asset.path: asset.sha256})
        return hashes

    def prompts(self) -> dict[str, str]:
        """The official judge prompts by ``file::where`` of the official code, every byte verified.

        Raises:
            CellFailure: they are not there or not the pinned ones; the message says how to get them.
        """
        prompts: dict[str, str] = {}
        for asset in self.local:
            if not isinstance(asset, PromptsAsset):
                continue
            if problem := self.problem_of(asset, hashes=True):
                raise CellFailure(self.explain([problem]))
            prompts |= json.loads((data_folder(self.benchmark) / asset.path).read_text(encoding="utf-8"))
        return prompts


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
