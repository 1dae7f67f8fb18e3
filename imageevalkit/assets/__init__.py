"""Assets: what benchmarks, models and measurers need from outside the tree.

This file says what they are, where they lie, and how a file is compared with what it must be. ``check`` looks whether
those of models and measurers are here; ``hub``, ``git``, ``http`` and ``data`` get them. A benchmark's class lists its
assets as objects (:func:`github` and :func:`asset_list` make those of a repository's data and prompts). The
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

Model and benchmark environments import this: it needs the standard library only.
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

from imageevalkit.atomic import write_atomic
from imageevalkit.cell import REPO
from imageevalkit.errors import CellFailure
from imageevalkit.hashes import git_blob_of, sha256_file
from imageevalkit.text import some

CODE = "infer/custom_models/code"
"""Where the authors' repositories are; git ignores it, as it does the other places."""
PROMPTS = "prompts/judge_prompts.json"
"""The file of a benchmark's prompts below its data folder: ``{key: text}``. It has a folder of its own, because dataset
classes of other toolkits read every JSON file in the data folder itself."""
_PLACES = (CODE, "infer/custom_models/checkpoints", "eval_models/weights")


class FileFacts(NamedTuple):
    """``size`` in bytes, or None; ``digest``: SHA-256, or git's name for the content (40 hex digits)."""

    size: int | None
    digest: str

    @classmethod
    def of(cls, path: Path) -> FileFacts:
        """Those of the file at ``path``. Raises OSError."""
        return cls(path.stat().st_size, sha256_file(path))

    def problem(self, path: Path, name: str, hashes: bool) -> str:
        """``"<name> is missing"`` or what else is wrong with the file at ``path``; its content if ``hashes``."""
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
    """What was fetched, in a JSON file near it: ``files`` by path, and what else is ``known``."""

    known: Mapping[str, Any]
    files: Mapping[str, FileFacts]

    @classmethod
    def read(cls, path: Path) -> Record | None:
        """None where there is none, or a damaged one."""
        value, files = read_json(path), {}
        try:
            for name, facts in value["files"].items():
                files[str(name)] = FileFacts(int(facts["size"]), str(facts.get("sha256") or facts["blob"]))
        except (TypeError, KeyError, ValueError, AttributeError):
            return None
        return cls(value, files)

    def write(self, path: Path) -> None:
        """Keep it. Raises as :func:`write_atomic`."""
        files = {
            name: {"size": facts.size, "sha256" if len(facts.digest) == 64 else "blob": facts.digest}
            for name, facts in self.files.items()
        }
        text = json.dumps({**self.known, "files": files}, indent=1, ensure_ascii=False)
        write_atomic(path, text + "\n")


class Finding(NamedTuple):
    """``problems``: a line for each thing missing or wrong. ``notes``: what a reader should know besides.

    ``is_known``: files were compared with what they must be; else only looked for.
    """

    problems: Sequence[str] = ()
    notes: Sequence[str] = ()
    is_known: bool = True


def is_there(path: Path) -> bool:
    """Whether there is a file; a link counts by what it stands for."""
    try:
        return path.is_file()
    except OSError:  # no permission, or a link that points to itself
        return False


def read_json(path: Path) -> Any:
    """What ``path`` holds, or None where it is not there or is no JSON."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def compared(name: str, folder: Path, files: Mapping[str, FileFacts | None], hashes: bool) -> list[str]:
    """One line, or none, about those of ``files`` (below ``folder``; None: any will do) that are missing or wrong."""
    gone = {path: None for path in files if not is_there(folder / path)}
    rest = ((path, facts) for path, facts in files.items() if facts and path not in gone)
    wrong = [problem for path, facts in rest if (problem := facts.problem(folder / path, path, hashes))]
    count = "1 file is" if len(gone) == 1 else f"{len(gone)} files are"
    parts = [f"{count} missing ({some(list(gone), ', ')})"] * bool(gone) + [some(wrong, ", ")] * bool(wrong)
    return [f"{name}: {'; '.join(parts)}"] if parts else []


def how_to_get(problems: Sequence[str], options: str, folders: str) -> str:
    """Returns one line: the first ``problems``, the command that mends them, and what to copy without internet."""
    named = some(problems, more=" (--check names them all)")
    command = f"bash utils/prefetch.sh {options}"
    return f"{named}. Run: {command} (without internet: run it elsewhere and copy {folders})"


class FileAsset(NamedTuple):
    """One file of a GitHub repository at a commit. ``path`` is relative to the benchmark's data folder.

    ``digest`` and ``size`` as in :class:`FileFacts`: where no SHA-256 is published, it is git's name for the file.
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
        """``owner/name/commit/path``: the same below GitHub's raw address and below a mirror folder."""
        return f"{self.repo}/{self.commit}/{self.source_path}"

    def problem(self, folder: Path, hashes: bool) -> str:
        """What is wrong with the copy in the data folder ``folder`` (``"prompts.jsonl is missing"``), or nothing."""
        return FileFacts(self.size, self.digest).problem(folder / self.path, self.path, hashes)

    def sha256(self, folder: Path) -> dict[str, str]:
        """That of the right copy in ``folder``, by path."""
        return {self.path: self.digest if len(self.digest) == 64 else sha256_file(folder / self.path)}


class PromptsAsset(NamedTuple):
    """Texts of a GitHub repository's program at a commit, kept in one JSON object ``path`` of the data folder.

    Earlier versions kept the file in the data folder itself; it counts there too (:meth:`place`).

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

    def place(self, folder: Path) -> Path:
        """The file of the texts in the data folder ``folder``."""
        new, old = folder / self.path, folder / PurePosixPath(self.path).name
        return old if is_there(old) and not is_there(new) else new

    def problem(self, folder: Path, hashes: bool = True) -> str:
        """As that of a file; the texts are few and short, and always compared."""
        place = self.place(folder)
        if not is_there(place):
            return f"{self.path} is missing"
        texts = read_json(place)
        if texts is None:
            return f"{self.path} is no JSON"
        if not isinstance(texts, Mapping) or not all(isinstance(text, str) for text in texts.values()):
            return f"{self.path} is no JSON object of texts"
        # a text too many would change the evaluator's name, which holds the hash of all of them
        wrong = [k for k in {**self.texts, **texts} if text_sha256(texts.get(k)) != self.texts.get(k)]
        return f"{self.path} has other content ({', '.join(wrong)})" if wrong else ""

    def sha256(self, folder: Path) -> dict[str, str]:
        """That of each text, by key."""
        return dict(self.texts)


def text_sha256(text: str | None) -> str:
    """Hex SHA-256 of ``text`` as UTF-8; empty for None."""
    return "" if text is None else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


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

    def record(self, folder: Path) -> Path:
        """The file of the record of the rows and images in ``folder``."""
        return folder / f".{self.path}.fetched.json"

    def problem(self, folder: Path, hashes: bool) -> str:
        """As that of a file, of the rows and their images."""
        record = Record.read(self.record(folder))
        if record is None or self.path not in record.files:
            return f"{self.path} {'lacks the record of its files' if (folder / self.path).exists() else 'is missing'}"
        wrong = [name for name, facts in record.files.items() if facts.problem(folder / name, name, hashes)]
        more = f" and {len(wrong) - 1} more of its {len(record.files)} files" if len(wrong) > 1 else ""
        return f"{wrong[0]}{more} of {self.path}: missing, or not as first fetched" if wrong else ""

    def sha256(self, folder: Path) -> dict[str, str]:
        """That of the rows, which name their images by theirs."""
        return {self.path: sha256_file(folder / self.path)}


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


class LocalFolder(NamedTuple):
    """A file or folder of the user's own, which nobody fetches."""

    path: str


LocalAsset = FileAsset | PromptsAsset | TableAsset
"""In the data folder of its benchmark."""
PlacedAsset = HubAsset | CodeAsset | UrlAsset
"""In a place of its own."""
Asset = LocalAsset | PlacedAsset
Needed = PlacedAsset | LocalFolder
"""What a model or an evaluator needs."""


class Needs(NamedTuple):
    """``remark`` tells a user why ``assets`` are none where that may surprise."""

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
    """Data files and judge prompts of the GitHub repository ``repo`` (``owner/name``) at ``commit``.

    ``files``: by the path below the benchmark's data folder, the :data:`SourceFacts`. ``prompts``: the SHA-256 of texts
    of the repository's program, by ``file::where`` (see :class:`PromptsAsset`).

    Raises ValueError: one of them is not of its kind; the message names it.
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
"""Of a file: its path in the repository, its digest and its size in bytes, as in :class:`FileAsset`."""


def asset_list(path: Path) -> tuple[FileAsset | PromptsAsset, ...]:
    """What :func:`github` makes of the text file at ``path``.

    Of the lines ``repository OWNER/NAME COMMIT`` and ``licence …`` are all that follow, up to the next repository, and
    in ``folder PATH/`` there are the files that follow. A file is digest, size ("-": not known) and path, which may
    hold blanks; a text of a program is SHA-256 and key.
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
    """The assets in a list of dicts, the content of the entry called ``where``.

    Raises CellFailure: one is malformed; the message names it and the field.
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
    for field in reversed(kind._fields):  # the licence before what it is of
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
"""By the key that tells them, the types of entries."""
_IS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("repo", "hub", "code"), _matches(r"[\w.-]+/[\w.-]+")),
    **dict.fromkeys(("commit", "revision", "tree"), _matches("[0-9a-f]{40}")),
    "sha256": _matches("[0-9a-f]{64}"),
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
"""What a field must be."""


BENCHMARKS = REPO / "benchmarks"
REWRITERS = REPO / "infer" / "custom_rewriters"


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
    def local(self) -> list[LocalAsset]:
        """Those in its data folder."""
        return [asset for asset in self.assets if isinstance(asset, LocalAsset)]

    @property
    def placed(self) -> list[PlacedAsset]:
        """The other ones, which benchmarks and models may share."""
        return [asset for asset in self.assets if not isinstance(asset, LocalAsset)]

    def problems(self, hashes: bool = False) -> list[str]:
        """What is missing or wrong among the :attr:`local` ones: sizes always, SHA-256 if ``hashes``."""
        return [problem for asset in self.local if (problem := asset.problem(self.folder, hashes))]

    def explain(self, problems: Sequence[str]) -> str:
        """One line that names the missing or wrong files and the command that mends them."""
        folder = f"benchmarks/{self.folder.relative_to(BENCHMARKS)}"
        how = how_to_get(problems, f"--ds_names {self.benchmark}", folder)
        return f"benchmark {self.benchmark}: {how}"

    def sha256(self) -> dict[str, str]:
        """The SHA-256 of the data files by path, and of the prompts by key, after verifying every byte.

        Raises CellFailure: a file is missing or is not the pinned one; one message names the first five.
        """
        if problems := self.problems(hashes=True):
            raise CellFailure(self.explain(problems))
        return {name: sha256 for asset in self.local for name, sha256 in asset.sha256(self.folder).items()}

    def prompts(self) -> dict[str, str]:
        """The official judge prompts by ``file::where`` of the official code, every byte verified.

        Raises CellFailure: they are not there or not the pinned ones; the message says how to get them.
        """
        found = [asset for asset in self.local if isinstance(asset, PromptsAsset)]
        if problems := [problem for asset in found if (problem := asset.problem(self.folder))]:
            raise CellFailure(self.explain(problems))
        return {key: text for asset in found for key, text in read_json(asset.place(self.folder)).items()}


class RewriterFiles(BenchmarkFiles):
    """The official texts of the prompt rewriter called ``benchmark``."""

    @property
    def folder(self) -> Path:
        return REWRITERS / "data" / self.benchmark

    def explain(self, problems: Sequence[str]) -> str:
        how = how_to_get(problems, f"--prompt_rewriter {self.benchmark}", "infer/custom_rewriters/data")
        return f"prompt rewriter {self.benchmark}: {how}"
