"""Assets: files from outside the tree that benchmarks, models and metric models need.

This module defines the kinds of assets, their places, and the comparison of a file with its expected size and
hash. ``check`` checks the assets of models and metric models; ``hub``, ``git``, ``http`` and ``data``
download assets. A benchmark's class lists its assets as objects (:func:`github` and :func:`asset_list` make
them for the data and prompts of a repository). A model's entry lists its ``assets`` as dicts::

    {"hub": "org/name",                                     in HF_HOME
     "revision": "<40 hex>", "type": "model", "patterns": ["*.safetensors"]}
                                        without a revision: main; without a type: model; without patterns: all files

    {"code": "owner/name", "commit": "<40 hex>",            a repository of GitHub, as one folder
     "tree": "<40 hex>",                                    git's own hash of all its files
     "to": "bagel", "licence": "Apache-2.0"}                infer/custom_models/code/bagel/; or "path" as below

    {"url": "https://…", "path": "eval_models/weights/x.pt",  relative to the tree's root
     "sha256": "<64 hex>", "size": 203974,                  left out if nobody has published them
     "sha256_start": "<8 hex>",                             if only the first 8 digits are published
     "unpack": ["a.pth", "b/c.json"],                       a ZIP file, unpacked below "path"; some files
     "by_hand": true,                                       a program cannot download it
     "licence": "MIT"}

Model and benchmark environments import this module, so it uses only the standard library.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple

from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.hashes import git_blob_of, sha256_file
from imageevalkit.common.text import some
from imageevalkit.store.cell import REPO

CODE = "infer/custom_models/code"
"""The folder of the authors' repositories; git ignores it, like the other folders of assets."""
PROMPTS = "prompts/judge_prompts.json"
"""The file of a benchmark's judge prompts below its data folder: ``{key: text}``. It is in a subfolder
because dataset classes of other toolkits read every JSON file directly in the data folder."""
_PLACES = (CODE, "infer/custom_models/checkpoints", "eval_models/weights")


class FileFacts(NamedTuple):
    """The ``size`` of a file in bytes, or None; ``digest``: its SHA-256 or git blob hash (40 hex digits)."""

    size: int | None
    digest: str

    @classmethod
    def of(cls, path: Path) -> FileFacts:
        """Returns the facts of the file at ``path``. Raises OSError."""
        return cls(path.stat().st_size, sha256_file(path))

    def problem(self, path: Path, name: str, hashes: bool) -> str:
        """Returns "" if the file at ``path`` has these facts, or else a text like ``"<name> is missing"``.

        The content is compared only if ``hashes``."""
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                return f"{name} is no file"
            if self.size not in (None, status.st_size):
                return f"{name} has {status.st_size} bytes instead of {self.size}"
            digest_of = sha256_file if len(self.digest) == 64 else git_blob_of
            is_wrong = hashes and digest_of(path) != self.digest
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        return f"{name} has other content" if is_wrong else ""


class Record(NamedTuple):
    """The list of downloaded ``files`` by path, and other ``known`` facts, in a JSON file near the files."""

    known: Mapping[str, Any]
    files: Mapping[str, FileFacts]

    @classmethod
    def read(cls, path: Path) -> Record | None:
        """Returns the record at ``path``, or None if it is missing or damaged."""
        value, files = read_json(path), {}
        try:
            for name, facts in value["files"].items():
                files[str(name)] = FileFacts(int(facts["size"]), str(facts.get("sha256") or facts["blob"]))
        except (TypeError, KeyError, ValueError, AttributeError):
            return None
        return cls(value, files)

    def write(self, path: Path) -> None:
        """Writes the record to ``path``. Raises the errors of :func:`write_atomic`."""
        files = {
            name: {"size": facts.size, "sha256" if len(facts.digest) == 64 else "blob": facts.digest}
            for name, facts in self.files.items()
        }
        text = json.dumps({**self.known, "files": files}, indent=1, ensure_ascii=False)
        write_atomic(path, text + "\n")


class Finding(NamedTuple):
    """The result of a check. ``problems`` has a line for each missing or wrong file.

    ``is_known``: the files were compared with expected facts. Otherwise only their existence was checked.
    """

    problems: Sequence[str] = ()
    notes: Sequence[str] = ()
    is_known: bool = True


def is_there(path: Path) -> bool:
    """Whether ``path`` is a file or a link to a file."""
    try:
        return path.is_file()
    except OSError:  # no permission, or a link that points to itself
        return False


def read_json(path: Path) -> Any:
    """Returns the JSON value in ``path``, or None if the file is missing or is no JSON."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def compared(name: str, folder: Path, files: Mapping[str, FileFacts | None], hashes: bool) -> list[str]:
    """Returns at most one line on missing and wrong ``files`` below ``folder``. Facts of None match any file."""
    gone = {path: None for path in files if not is_there(folder / path)}
    rest = ((path, facts) for path, facts in files.items() if facts and path not in gone)
    wrong = [problem for path, facts in rest if (problem := facts.problem(folder / path, path, hashes))]
    count = "1 file is" if len(gone) == 1 else f"{len(gone)} files are"
    parts = [f"{count} missing ({some(list(gone), ', ')})"] * bool(gone) + [some(wrong, ", ")] * bool(wrong)
    return [f"{name}: {'; '.join(parts)}"] if parts else []


def how_to_get(problems: Sequence[str], options: str, folders: str) -> str:
    """Returns one line: the first ``problems``, the command to fix them, the folders to copy if offline."""
    named = some(problems, more=" (--check names them all)")
    command = f"bash eval.sh prefetch {options}"
    return f"{named}. Run: {command} (without internet: run it elsewhere and copy {folders})"


class FileAsset(NamedTuple):
    """One file of a GitHub repository at a commit. ``path`` is relative to the benchmark's data folder.

    If no SHA-256 is published, ``digest`` is the git blob hash, as in :class:`FileFacts`.
    """

    path: str
    repo: str
    commit: str
    source_path: str
    digest: str
    size: int | None
    licence: str

    @property
    def source(self) -> str:
        """``owner/name/commit/path``: the path below GitHub's raw address and below a mirror folder."""
        return f"{self.repo}/{self.commit}/{self.source_path}"

    def problem(self, folder: Path, hashes: bool) -> str:
        """Returns the problem of the copy in ``folder`` (``"prompts.jsonl is missing"``), or ""."""
        return FileFacts(self.size, self.digest).problem(folder / self.path, self.path, hashes)

    def sha256(self, folder: Path) -> dict[str, str]:
        """Returns the SHA-256 by path. The copy in ``folder`` must be verified already."""
        return {self.path: self.digest if len(self.digest) == 64 else sha256_file(folder / self.path)}


class PromptsAsset(NamedTuple):
    """Texts from a repository's program at a commit, stored in the JSON file ``path`` of the data folder.

    ``texts`` has the SHA-256 of each text (as UTF-8) by its key ``file::where``. ``file`` is the path in the
    repository. ``where`` names the function and role for human readers.
    """

    path: str
    repo: str
    commit: str
    texts: Mapping[str, str]
    licence: str

    @property
    def source(self) -> str:
        """``owner/name/commit``: the path below GitHub's raw address and below a mirror folder."""
        return f"{self.repo}/{self.commit}"

    def place(self, folder: Path) -> Path:
        """Returns the file with the texts. Older versions stored it directly in ``folder``."""
        new, old = folder / self.path, folder / PurePosixPath(self.path).name
        return old if is_there(old) and not is_there(new) else new

    def problem(self, folder: Path, hashes: bool = True) -> str:
        """Returns the problem of the texts in ``folder``, or "". The short texts are always compared."""
        place = self.place(folder)
        if not is_there(place):
            return f"{self.path} is missing"
        texts = read_json(place)
        if texts is None:
            return f"{self.path} is no JSON"
        if not isinstance(texts, Mapping) or not all(isinstance(text, str) for text in texts.values()):
            return f"{self.path} is no JSON object of texts"
        # an extra text is wrong too: the evaluator's name has a hash of all texts
        wrong = [k for k in {**self.texts, **texts} if text_sha256(texts.get(k)) != self.texts.get(k)]
        return f"{self.path} has other content ({', '.join(wrong)})" if wrong else ""

    def sha256(self, folder: Path) -> dict[str, str]:
        """Returns the SHA-256 of each text by key."""
        return dict(self.texts)


def text_sha256(text: str | None) -> str:
    """Returns the SHA-256 of ``text`` as UTF-8 in hex digits, or "" for None."""
    return "" if text is None else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class TableAsset(NamedTuple):
    """Rows of a Hugging Face dataset, stored as JSON Lines in ``path`` of the data folder.

    ``patterns`` select the Parquet and Arrow files; the rows are in the order of the file names. An image in
    a row becomes a file below ``images/`` beside ``path``, named by its SHA-256; the row has its path. The
    rows have no published hash: the first download is trusted and recorded. ``revision`` is as in
    :class:`HubAsset`. ``columns`` are the columns to store; all if there are none.
    """

    path: str
    repo: str
    patterns: tuple[str, ...]
    licence: str
    revision: str | None = None
    columns: tuple[str, ...] = ()

    @property
    def hub(self) -> HubAsset:
        """The Parquet or Arrow files. Only prefetch needs them."""
        return HubAsset(self.repo, self.revision, "dataset", self.patterns)

    def record(self, folder: Path) -> Path:
        """Returns the path of the record of the rows and images in ``folder``."""
        return folder / f".{self.path}.fetched.json"

    def problem(self, folder: Path, hashes: bool) -> str:
        """Returns the first problem of the rows and their images in ``folder``, or ""."""
        record = Record.read(self.record(folder))
        if record is None or self.path not in record.files:
            return f"{self.path} {'lacks the record of its files' if (folder / self.path).exists() else 'is missing'}"
        wrong = [name for name, facts in record.files.items() if facts.problem(folder / name, name, hashes)]
        more = f" and {len(wrong) - 1} more of its {len(record.files)} files" if len(wrong) > 1 else ""
        return f"{wrong[0]}{more} of {self.path}: missing, or not as first fetched" if wrong else ""

    def sha256(self, folder: Path) -> dict[str, str]:
        """Returns the SHA-256 of the rows, which contain the hashes of their images."""
        return {self.path: sha256_file(folder / self.path)}


class HubAsset(NamedTuple):
    """Files of a Hugging Face repository that match ``patterns``; all files if there are none.

    In a manifest ``revision`` is a commit; a user may also give a branch or tag. If it is None, the branch is
    main.
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
        """``owner/name/commit``: the path below a mirror folder."""
        return f"{self.code}/{self.commit}"


class UrlAsset(NamedTuple):
    """A file from any URL, stored at ``path`` (relative to the tree's root).

    ``sha256`` and ``size`` are None if nobody has published them: the first download is trusted and recorded,
    if its SHA-256 begins with ``sha256_start``. ``unpack`` names some files of a ZIP archive that is unpacked
    into the folder ``path``; empty: no archive.
    """

    url: str
    path: str
    licence: str
    sha256: str | None = None
    size: int | None = None
    unpack: tuple[str, ...] = ()
    by_hand: bool = False
    sha256_start: str = ""

    def is_other(self, sha256: str) -> bool:
        """Whether a download with this SHA-256 is not the published file."""
        return self.sha256 not in (None, sha256) or not sha256.startswith(self.sha256_start)


class LocalFolder(NamedTuple):
    """A local file or folder of the user; prefetch does not download it."""

    path: str


LocalAsset = FileAsset | PromptsAsset | TableAsset
"""An asset in the data folder of its benchmark."""
PlacedAsset = HubAsset | CodeAsset | UrlAsset
"""An asset outside of data folders, which several models and benchmarks may share."""
Asset = LocalAsset | PlacedAsset
Needed = PlacedAsset | LocalFolder
"""An asset of a model or an evaluator."""


class Needs(NamedTuple):
    """The ``assets`` of a model. If there are none and this may surprise a user, ``remark`` explains it."""

    assets: tuple[Needed, ...] = ()
    remark: str = ""


def github(
    repo: str,
    commit: str,
    files: Mapping[str, SourceFacts] = MappingProxyType({}),
    prompts: Mapping[str, str] = MappingProxyType({}),
    *,
    licence: str,
) -> tuple[FileAsset | PromptsAsset, ...]:
    """Returns the assets for data files and judge prompts of the GitHub repository ``repo`` (``owner/name``).

    Args:
        commit: The commit of the repository, 40 hex digits.
        files: The :data:`SourceFacts` of each file, by its path below the benchmark's data folder.
        prompts: The SHA-256 of each text by its key ``file::where`` (see :class:`PromptsAsset`).

    Raises ValueError if a value is malformed; the message names the value.
    """
    pins: list[tuple[str, Any, str]] = [("repo", repo, "repo"), ("commit", commit, "commit")]
    for path, (source, digest, size) in files.items():
        pins += [("path", path, "below"), (f"path of {path}", source, "below")]
        pins += [(f"digest of {path}", digest, "digest")]
        pins += [(f"size of {path}", size, "size")] * (size is not None or len(digest) == 64)
    for key, sha256 in prompts.items():
        pins += [("prompt", key, "text key"), (f"sha256 of {key}", sha256, "sha256")]
    for what, value, kind in pins:
        if not _IS[kind](value):
            raise ValueError(f"github('{repo}'): the {what} is {value!r}")
    found = [FileAsset(path, repo, commit, *facts, licence=licence) for path, facts in files.items()]
    return (*found, *([PromptsAsset(PROMPTS, repo, commit, prompts, licence)] if prompts else []))


SourceFacts = tuple[str, str, int | None]
"""The path of a file in the repository, its digest and its size in bytes, as in :class:`FileAsset`."""


def asset_list(path: Path) -> tuple[FileAsset | PromptsAsset, ...]:
    """Returns the assets that the text file at ``path`` lists, as :func:`github` makes them.

    The lines ``repository OWNER/NAME COMMIT`` and ``licence …`` apply to all lines up to the next repository.
    The line ``folder PATH/`` applies to the files that follow. The line of a file has digest, size ("-":
    unknown) and path, which may contain spaces. The line of a text has SHA-256 and key.
    """
    repositories: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        word, _, rest = line.partition(" ")
        size, _, file = rest.partition(" ")
        if word == "repository":
            repo, commit = rest.split()
            files: dict[str, SourceFacts] = {}
            prompts: dict[str, str] = {}
            repositories.append({"repo": repo, "commit": commit, "files": files, "prompts": prompts})
            folder = ""
        elif word == "licence":
            repositories[-1]["licence"] = rest
        elif word == "folder":
            folder = rest
        elif size == "-" or size.isdecimal():
            files[file] = (f"{folder}{file}", word, None if size == "-" else int(size))
        else:
            prompts[rest] = word
    return tuple(asset for repository in repositories for asset in github(**repository))


def parse_entries(entries: Any, where: str) -> list[PlacedAsset]:
    """Returns the assets in ``entries``, a list of dicts. ``where`` names the list in error messages.

    Raises CellFailure if an entry is malformed; the message names the entry and the field.
    """
    if not isinstance(entries, list):
        raise CellFailure(f"{where} is no list of assets")
    return [_parse(entry, f"{where}, entry {n}") for n, entry in enumerate(entries)]


def _parse(entry: Any, where: str) -> PlacedAsset:
    given = dict(entry) if isinstance(entry, dict) else {}
    kind = _KINDS[next((key for key in _KINDS if key in given), "url")]
    if "to" in given:
        given["path"] = f"{CODE}/{given['to']}" if _matches(r"[\w-][\w.-]*")(given["to"]) else None
    values = {}
    for field in reversed(kind._fields):  # a missing licence is reported first
        if field in given and not _IS[field](given[field]):
            named = "to" if field == "path" and "to" in given else field
            raise CellFailure(f"{where}: '{named}' is {entry[named]!r}")
        if field in given:
            values[field] = tuple(given[field]) if isinstance(given[field], list) else given[field]
        elif field not in kind._field_defaults:
            raise CellFailure(f"{where}: lacks '{field}'")
    return kind(**values)


def _matches(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _stays_below(value: Any) -> bool:
    path = PurePosixPath(value if isinstance(value, str) and value else "/")
    return not path.is_absolute() and ".." not in path.parts


def _is_place(value: Any) -> bool:
    return _stays_below(value) and value.startswith(tuple(f"{place}/" for place in _PLACES))


def _is_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) and v for v in value)


_KINDS: dict[str, Any] = {"hub": HubAsset, "code": CodeAsset, "url": UrlAsset}
"""The types of entries by the key that only entries of this type have."""
_IS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("repo", "hub", "code"), _matches(r"[\w.-]+/[\w.-]+")),
    **dict.fromkeys(("commit", "revision", "tree"), _matches("[0-9a-f]{40}")),
    "sha256": _matches("[0-9a-f]{64}"),
    "sha256_start": _matches("[0-9a-f]{8}"),
    "digest": _matches("[0-9a-f]{64}|[0-9a-f]{40}"),
    "size": lambda value: type(value) is int and value >= 0,
    "type": _matches("model|dataset"),
    "patterns": _is_strings,
    "licence": lambda value: isinstance(value, str) and value,
    "url": _matches(r"https?://\S+"),
    "path": _is_place,
    "below": _stays_below,
    "text key": lambda value: "::" in value and _stays_below(value.partition("::")[0]),
    "unpack": lambda value: _is_strings(value) and all(map(_stays_below, value)),
    "by_hand": lambda value: isinstance(value, bool),
}
"""The check of each field's value."""


BENCHMARKS = REPO / "benchmarks"
REWRITERS = REPO / "infer" / "custom_rewriters"


def data_folder(benchmark: str) -> Path:
    """Returns the folder of a benchmark's downloaded files: ``_`` replaces ``-``, as in packages."""
    return BENCHMARKS / benchmark.replace("-", "_") / "data"


class BenchmarkFiles(NamedTuple):
    """The ``assets`` of ``benchmark``; empty for a foreign benchmark."""

    benchmark: str
    assets: Sequence[Asset] = ()

    @property
    def folder(self) -> Path:
        """The folder of the :attr:`local` assets."""
        return data_folder(self.benchmark)

    @property
    def local(self) -> list[LocalAsset]:
        """The assets in the data folder."""
        return [asset for asset in self.assets if isinstance(asset, LocalAsset)]

    @property
    def placed(self) -> list[PlacedAsset]:
        """The other assets, which benchmarks and models may share."""
        return [asset for asset in self.assets if not isinstance(asset, LocalAsset)]

    def problems(self, hashes: bool = False) -> list[str]:
        """Returns a line for each missing or wrong :attr:`local` asset. ``hashes``: also of other content."""
        return [problem for asset in self.local if (problem := asset.problem(self.folder, hashes))]

    def explain(self, problems: Sequence[str]) -> str:
        """Returns one line with the missing or wrong files and the command to download them."""
        folder = f"benchmarks/{self.folder.relative_to(BENCHMARKS)}"
        how = how_to_get(problems, f"--ds_names {self.benchmark}", folder)
        return f"benchmark {self.benchmark}: {how}"

    def sha256(self) -> dict[str, str]:
        """Verifies all files and returns the SHA-256 of the data files by path and of the prompts by key.

        Raises CellFailure if files are missing or wrong; the message names the first five.
        """
        if problems := self.problems(hashes=True):
            raise CellFailure(self.explain(problems))
        return {name: sha256 for asset in self.local for name, sha256 in asset.sha256(self.folder).items()}

    def prompts(self) -> dict[str, str]:
        """Verifies and returns the official judge prompts by their key ``file::where``.

        Raises CellFailure if prompts are missing or wrong; the message has the download command.
        """
        found = [asset for asset in self.local if isinstance(asset, PromptsAsset)]
        if problems := [problem for asset in found if (problem := asset.problem(self.folder))]:
            raise CellFailure(self.explain(problems))
        return {key: text for asset in found for key, text in read_json(asset.place(self.folder)).items()}


class RewriterFiles(BenchmarkFiles):
    """The official texts of a prompt rewriter. The field ``benchmark`` is the name of the rewriter."""

    @property
    def folder(self) -> Path:
        return REWRITERS / "data" / self.benchmark

    def explain(self, problems: Sequence[str]) -> str:
        how = how_to_get(problems, f"--prompt_rewriter {self.benchmark}", "infer/custom_rewriters/data")
        return f"prompt rewriter {self.benchmark}: {how}"
