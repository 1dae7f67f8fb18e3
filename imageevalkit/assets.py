"""Assets: what benchmarks, models and measurers need from outside the tree, and whether a benchmark's are here.

A benchmark's class lists them as objects (:func:`github` makes those of a repository's data and prompts). The
``assets`` of a model's entry are a list of dicts::

    {"hub": "org/name",                                     in HF_HOME
     "revision": "<40 hex>", "type": "model", "patterns": ["*.safetensors"]}
                                        without a revision: main; without a type: model; without patterns: all files

    {"code": "owner/name", "commit": "<40 hex>",            a repository of GitHub, as one folder
     "tree": "<40 hex>",                                    git's own hash of all its files
     "to": "bagel", "licence": "Apache-2.0"}                infer/custom_models/code/bagel/; or "path" as below

    {"url": "https://…", "path": "eval_models/weights/x.pt",  relative to the tree's root
     "sha256": "<64 hex>", "size": 203974,                  left out where nobody has published them
     "unpack": ["a.pth", "b/c.json"],                       a ZIP file, its content below "path"; some of its files
     "by_hand": true,                                       a program cannot download it
     "licence": "MIT"}
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple

from imageevalkit.cell import REPO
from imageevalkit.errors import CellFailure
from imageevalkit.hashes import git_blob_of, sha256_file

_REPO = re.compile(r"[\w.-]+/[\w.-]+")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
_NAME = re.compile(r"[\w-][\w.-]*")
_URL = re.compile(r"https?://\S+")

CODE = "infer/custom_models/code"
"""Where the authors' repositories are; git ignores it, as it does the other places."""
PROMPTS = "judge_prompts.json"
"""The file of a benchmark's prompts in its data folder: ``{key: text}``."""
_PLACES = (CODE, "infer/custom_models/checkpoints", "eval_models/weights")


class FileAsset(NamedTuple):
    """One file of a GitHub repository at a commit. ``path`` is relative to the benchmark's data folder.

    ``digest`` is its SHA-256, or git's own name for it (40 hex digits) where no more is published; ``size`` may be None
    then.
    """

    path: str
    repo: str
    commit: str
    source_path: str
    digest: str
    size: int | None
    licence: str

    @property
    def has_sha256(self) -> bool:
        """Whether its SHA-256 is known before it is here."""
        return len(self.digest) == 64

    def digest_of(self, path: Path) -> str:
        """The digest, of the same kind, of the file at ``path``."""
        return sha256_file(path) if self.has_sha256 else git_blob_of(path)

    @property
    def source(self) -> str:
        """``owner/name/commit/path``: the same below GitHub's raw address and below a mirror folder."""
        return f"{self.repo}/{self.commit}/{self.source_path}"


class PromptsAsset(NamedTuple):
    """Texts of a GitHub repository's program at a commit, kept in one JSON object ``path`` of the data folder.

    ``texts`` is the SHA-256 of each text (as UTF-8) by its key ``file::where``: ``file`` is the path in the
    repository, ``where`` tells a reader the function and role.
    """

    path: str
    repo: str
    commit: str
    texts: Mapping[str, str]
    licence: str

    @property
    def source(self) -> str:
        """``owner/name/commit``: the same below GitHub's raw address and below a mirror folder."""
        return f"{self.repo}/{self.commit}"


class TableAsset(NamedTuple):
    """Rows of a dataset on Hugging Face, kept as JSON Lines in ``path`` of the data folder.

    ``patterns`` choose its Parquet files, whose names decide the order of the rows. A cell that holds an image becomes
    the path of a file below ``images/`` beside ``path``, named by its SHA-256. Nobody has pinned the rows: those that
    come first are trusted and recorded.
    """

    path: str
    repo: str
    patterns: tuple[str, ...]
    licence: str

    @property
    def hub(self) -> HubAsset:
        """The Parquet files, which only prefetch needs."""
        return HubAsset(self.repo, type="dataset", patterns=self.patterns)


class HubAsset(NamedTuple):
    """Files of a Hugging Face repository; without ``patterns`` all of them.

    ``revision`` is a commit, in a manifest; a user's may be a branch or a tag too. None: main.
    """

    hub: str
    revision: str | None = None
    type: str = "model"
    patterns: tuple[str, ...] = ()


class CodeAsset(NamedTuple):
    """All files of a GitHub repository at a commit, as the folder ``path`` (relative to the tree's root)."""

    code: str
    commit: str
    tree: str
    path: str
    licence: str

    @property
    def source(self) -> str:
        """``owner/name/commit``: the place below a mirror folder."""
        return f"{self.code}/{self.commit}"


class UrlAsset(NamedTuple):
    """A file from any address, at ``path`` (relative to the tree's root).

    ``sha256`` and ``size`` are None where nobody has published them: what comes first is trusted and recorded.
    ``unpack`` are files that its ZIP archive holds, which is unpacked into the folder ``path``; empty: it is none.
    """

    url: str
    path: str
    licence: str
    sha256: str | None = None
    size: int | None = None
    unpack: tuple[str, ...] = ()
    by_hand: bool = False


LocalAsset = FileAsset | PromptsAsset | TableAsset
"""In the data folder of its benchmark."""
PlacedAsset = HubAsset | CodeAsset | UrlAsset
"""In a place of its own."""
Asset = LocalAsset | PlacedAsset


def github(
    repo: str,
    commit: str,
    files: Mapping[str, FileFacts] = MappingProxyType({}),
    prompts: Mapping[str, str] = MappingProxyType({}),
    *,
    licence: str,
) -> tuple[FileAsset | PromptsAsset, ...]:
    """Data files and judge prompts of the GitHub repository ``repo`` (``owner/name``) at ``commit``.

    ``files``: by the path below the benchmark's data folder, the :data:`FileFacts`. ``prompts``: the SHA-256 of texts
    of the repository's program, by ``file::where`` (see :class:`PromptsAsset`).

    Raises:
        ValueError: one of them is not of its kind; the message names it.
    """
    where = f"github('{repo}')"
    _check(where, "repo", repo, _matches(_REPO))
    _check(where, "commit", commit, _matches(_COMMIT))
    for path, (source, digest, size) in files.items():
        _check(where, "path", path, _stays_below)
        _check(where, f"path of {path}", source, _stays_below)
        _check(where, f"digest of {path}", digest, _matches(_DIGEST))
        _check(where, f"size of {path}", size, _is_size if len(digest) == 64 else _is_size_if_known)
    for key, sha256 in prompts.items():
        _check(where, "prompt", key, _is_text_key)
        _check(where, f"sha256 of {key}", sha256, _matches(_SHA256))
    found: list[FileAsset | PromptsAsset] = [
        FileAsset(path, repo, commit, *facts, licence=licence) for path, facts in files.items()
    ]
    if prompts:
        found.append(PromptsAsset(PROMPTS, repo, commit, prompts, licence))
    return tuple(found)


FileFacts = tuple[str, str, int | None]
"""Of a file: its path in the repository, its digest and its size in bytes, as in :class:`FileAsset`."""


def file_list(path: Path, folder: str) -> dict[str, FileFacts]:
    """The ``files`` of :func:`github` that the text file at ``path`` lists; they lie as below ``folder`` there.

    A line is digest, size ("-": not known) and path, which may hold blanks.
    """
    rows = (line.split(maxsplit=2) for line in path.read_text(encoding="utf-8").splitlines())
    return {
        name: (f"{folder}{name}", digest, None if size == "-" else int(size)) for digest, size, name in rows
    }


def text_list(path: Path) -> dict[str, str]:
    """The ``prompts`` of :func:`github` that the text file at ``path`` lists: SHA-256 and key in a line."""
    rows = (line.split(maxsplit=1) for line in path.read_text(encoding="utf-8").splitlines())
    return {key: sha256 for sha256, key in rows}


def file_table(table: str, folder: str = "") -> dict[str, FileFacts]:
    """The ``files`` of :func:`github` that lie side by side in the data folder.

    ``table`` has a row of path (below ``folder`` of the repository), size in bytes and SHA-256 for each.
    """
    rows = (line.split() for line in table.splitlines() if line)
    return {PurePosixPath(path).name: (f"{folder}{path}", sha256, int(size)) for path, size, sha256 in rows}


def _check(where: str, what: str, value: Any, valid: Callable[[Any], Any]) -> None:
    if not valid(value):
        raise ValueError(f"{where}: the {what} is {value!r}")


def parse_entries(entries: Any, where: str) -> list[PlacedAsset]:
    """The assets in a list of dicts, the content of the entry called ``where``.

    Raises:
        CellFailure: one is malformed; the message names it and the field.
    """
    if not isinstance(entries, list):
        raise CellFailure(f"{where} is no list of assets")
    return [_parse(entry, f"{where}, entry {n}") for n, entry in enumerate(entries)]


class _Entry:
    """The fields of one object, each checked; ``where`` begins the messages."""

    def __init__(self, value: Any, where: str) -> None:
        self._value, self.where = value, where

    def __contains__(self, key: str) -> bool:
        return isinstance(self._value, dict) and key in self._value

    def of(self, key: str, valid: Callable[[Any], Any]) -> Any:
        try:
            value = self._value[key]
        except (KeyError, TypeError):
            raise CellFailure(f"{self.where}: lacks '{key}'") from None
        if not valid(value):
            raise CellFailure(f"{self.where}: '{key}' is {value!r}")
        return value

    def or_else(self, default: Any, key: str, valid: Callable[[Any], Any]) -> Any:
        return self.of(key, valid) if key in self else default


def _parse(value: Any, where: str) -> PlacedAsset:
    entry = _Entry(value, where)
    if "hub" in entry:
        return HubAsset(
            hub=entry.of("hub", _matches(_REPO)),
            revision=entry.or_else(None, "revision", _matches(_COMMIT)),
            type=entry.or_else("model", "type", lambda v: v in ("model", "dataset")),
            patterns=tuple(entry.or_else([], "patterns", _is_strings)),
        )
    licence = entry.of("licence", lambda v: isinstance(v, str) and v)
    if "code" in entry:
        return CodeAsset(
            code=entry.of("code", _matches(_REPO)),
            commit=entry.of("commit", _matches(_COMMIT)),
            tree=entry.of("tree", _matches(_COMMIT)),
            path=f"{CODE}/{entry.of('to', _matches(_NAME))}"
            if "to" in entry
            else entry.of("path", _is_place),
            licence=licence,
        )
    return UrlAsset(
        url=entry.of("url", _matches(_URL)),
        path=entry.of("path", _is_place),
        licence=licence,
        sha256=entry.or_else(None, "sha256", _matches(_SHA256)),
        size=entry.or_else(None, "size", _is_size),
        unpack=tuple(entry.or_else([], "unpack", lambda v: _is_strings(v) and all(map(_stays_below, v)))),
        by_hand=entry.or_else(False, "by_hand", lambda v: isinstance(v, bool)),
    )


def _is_text_key(value: str) -> bool:
    file, colons, _ = value.partition("::")
    return bool(colons) and _stays_below(file)


def _matches(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_size_if_known(value: Any) -> bool:
    return value is None or _is_size(value)


def _is_place(value: Any) -> bool:
    return _stays_below(value) and any(value.startswith(f"{place}/") for place in _PLACES)


def _is_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) and v for v in value)


def _stays_below(value: Any) -> bool:
    if not isinstance(value, str) or not value:
        return False
    path = PurePosixPath(value)
    return not path.is_absolute() and ".." not in path.parts


BENCHMARKS = REPO / "benchmarks"
REWRITERS = REPO / "infer" / "custom_rewriters"
_NAMED_PROBLEMS = 20


def data_folder(benchmark: str) -> Path:
    """Where the downloaded files of ``benchmark`` are: below its name, with ``_`` for ``-`` as in packages."""
    return BENCHMARKS / benchmark.replace("-", "_") / "data"


class BenchmarkFiles(NamedTuple):
    """The ``assets`` of ``benchmark``; a foreign one has none that we know of."""

    benchmark: str
    assets: Sequence[Asset] = ()

    @property
    def folder(self) -> Path:
        """Where the :attr:`local` ones are."""
        return data_folder(self.benchmark)

    @property
    def remedy(self) -> str:
        """The command that gets what is missing."""
        folder = f"benchmarks/{self.folder.relative_to(BENCHMARKS)}"
        return _remedy(f"--ds_names {self.benchmark}", folder)

    @property
    def what(self) -> str:
        """Whose files they are, for messages."""
        return f"benchmark {self.benchmark}"

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
        path = self.folder / asset.path
        try:
            if isinstance(asset, PromptsAsset):
                return _prompts_problem(path, asset)
            if isinstance(asset, TableAsset):
                return _table_problem(path, hashes)
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
        return f"{self.what}: {named}. {self.remedy}"

    def sha256(self) -> dict[str, str]:
        """The SHA-256 of the data files by path, and of the prompts by key, after verifying every byte.

        Raises:
            CellFailure: a file is missing or is not the pinned one; one message names all of them.
        """
        if problems := self.problems(hashes=True):
            raise CellFailure(self.explain(problems))
        hashes: dict[str, str] = {}
        for asset in self.local:
            hashes |= asset.texts if isinstance(asset, PromptsAsset) else {asset.path: self._sha256(asset)}
        return hashes

    def _sha256(self, asset: FileAsset | TableAsset) -> str:
        if isinstance(asset, FileAsset) and asset.has_sha256:
            return asset.digest
        return sha256_file(self.folder / asset.path)  # rows name their images by their hashes

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
            prompts |= json.loads((self.folder / asset.path).read_text(encoding="utf-8"))
        return prompts


class RewriterFiles(BenchmarkFiles):
    """The official texts of the prompt rewriter called ``benchmark``."""

    @property
    def folder(self) -> Path:
        return REWRITERS / "data" / self.benchmark

    @property
    def remedy(self) -> str:
        return _remedy(f"--prompt_rewriter {self.benchmark}", "infer/custom_rewriters/data")

    @property
    def what(self) -> str:
        return f"prompt rewriter {self.benchmark}"


def _remedy(options: str, folder: str) -> str:
    command = f"bash utils/prefetch.sh {options}"
    return f"Run: {command} (without internet: run it elsewhere and copy {folder})"


def _file_problem(path: Path, asset: FileAsset, hashes: bool) -> str:
    size = path.stat().st_size
    if not path.is_file():
        return f"{asset.path} is no file"
    if asset.size not in (None, size):
        return f"{asset.path} has {size} bytes instead of {asset.size}"
    if hashes and (found := asset.digest_of(path)) != asset.digest:
        kind = "sha256" if asset.has_sha256 else "git blob"
        return f"{asset.path} has other content ({kind} {found[:12]}… instead of {asset.digest[:12]}…)"
    return ""


class TableRecord(NamedTuple):
    """``commit`` is that of the dataset; ``files`` are size in bytes and SHA-256 by path beside the rows, their own
    first."""

    commit: str
    files: Mapping[str, tuple[int, str]]


def table_record_of(rows: Path) -> Path:
    """The file of the record of a :class:`TableAsset` whose rows are in the file ``rows``."""
    return rows.with_name(f".{rows.name}.fetched.json")


def read_table_record(rows: Path) -> TableRecord | None:
    """What was fetched first; None where nothing was, or the record is damaged. Raises OSError: it cannot be read."""
    try:
        value = json.loads(table_record_of(rows).read_bytes())
        files = {str(name): (int(size), str(sha256)) for name, (size, sha256) in value["files"].items()}
        return TableRecord(str(value["commit"]), files) if rows.name in files else None
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _table_problem(rows: Path, hashes: bool) -> str:
    record = read_table_record(rows)
    if record is None:
        return (
            f"{rows.name} is missing" if not rows.exists() else f"{rows.name} lacks the record of its files"
        )
    wrong = []
    for name, (size, sha256) in record.files.items():
        path = rows.parent / name
        try:
            is_right = path.stat().st_size == size and (not hashes or sha256_file(path) == sha256)
        except FileNotFoundError:
            is_right = False
        wrong += [] if is_right else [name]
    more = f" and {len(wrong) - 1} more of its {len(record.files)} files" if len(wrong) > 1 else ""
    return f"{wrong[0]}{more} of {rows.name}: missing, or not as first fetched" if wrong else ""


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
