"""The kinds of assets that ``benchmarks/<ds>/assets.json`` lists, and how an entry is read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from imageevalkit.errors import CellFailure

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


class HubAsset(NamedTuple):
    """Files of a Hugging Face repository at a revision; without ``patterns`` all of them."""

    hub: str
    revision: str
    type: str
    patterns: tuple[str, ...]


LocalAsset = FileAsset | PromptsAsset
Asset = LocalAsset | HubAsset


def parse_manifest(text: str, where: str) -> list[Asset]:
    """The assets in ``text``, the content of the manifest called ``where``.

    Raises:
        CellFailure: the manifest is malformed; the message names the entry and the field.
    """
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise CellFailure(f"{where} is no JSON ({error})") from None
    if not isinstance(entries, list):
        raise CellFailure(f"{where} is no list of assets")
    return [_parse(entry, f"{where}, entry {n}") for n, entry in enumerate(entries)]


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
    source = field(entry, "source", _is_object)
    repo = field(source, "repo", _matches(_REPO))
    commit = field(source, "commit", _matches(_COMMIT))
    licence = field(entry, "licence", lambda v: isinstance(v, str) and v)
    if "prompts" in entry:
        texts = field(entry, "texts", lambda v: _is_object(v) and v and all(map(_is_text_key, v)))
        return PromptsAsset(
            path=field(entry, "prompts", _stays_below),
            repo=repo,
            commit=commit,
            texts={key: field(text, "sha256", _matches(_SHA256)) for key, text in texts.items()},
            licence=licence,
        )
    return FileAsset(
        path=field(entry, "path", _stays_below),
        repo=repo,
        commit=commit,
        source_path=field(source, "path", _stays_below),
        sha256=field(entry, "sha256", _matches(_SHA256)),
        size=field(entry, "size", lambda v: type(v) is int and v >= 0),
        licence=licence,
    )


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_text_key(value: str) -> bool:
    file, colons, _ = value.partition("::")
    return bool(colons) and _stays_below(file)


def _matches(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) and v for v in value)


def _stays_below(value: Any) -> bool:
    if not isinstance(value, str) or not value:
        return False
    path = PurePosixPath(value)
    return not path.is_absolute() and ".." not in path.parts
