"""What prefetch leaves beside a repository's files: which of them it fetched, their sizes and hashes.

It lies in the repository's own folder, and so travels with a copy of it. huggingface_hub neither reads nor minds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from imageevalkit.asset_checks.file_facts import FileFacts, read_json
from imageevalkit.asset_checks.hub_cache import repo_folder
from imageevalkit.asset_manifest import HubAsset
from imageevalkit.atomic import write_atomic


class HubRecord(NamedTuple):
    """``fetched``: each set of patterns (empty: everything) that was fetched whole. ``files`` by path."""

    fetched: Sequence[Sequence[str]]
    files: Mapping[str, FileFacts]

    def covers(self, patterns: Sequence[str]) -> bool:
        """Whether all files of ``patterns`` are known."""
        return sorted(patterns) in [sorted(known) for known in self.fetched] or () in map(tuple, self.fetched)


def chosen(paths: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Those of ``paths`` that match one of ``patterns`` as huggingface_hub matches them; all without patterns."""
    wanted = [f"{pattern}*" if pattern.endswith("/") else pattern for pattern in patterns]
    return [path for path in paths if not wanted or any(fnmatch(path, pattern) for pattern in wanted)]


def read_record(asset: HubAsset, commit: str) -> HubRecord | None:
    """None where prefetch has fetched nothing of ``commit``, or its record is damaged."""
    value = read_json(_path(asset, commit))
    try:
        files = {str(path): FileFacts.of(facts) for path, facts in value["files"].items()}
        return HubRecord([tuple(map(str, patterns)) for patterns in value["fetched"]], files)
    except (TypeError, KeyError, ValueError, AttributeError):
        return None


def add_to_record(asset: HubAsset, commit: str, listed: Mapping[str, FileFacts]) -> None:
    """Write down that the files of ``asset`` are here, out of all that its repository has (``listed``)."""
    known = read_record(asset, commit) or HubRecord([], {})
    fetched = [*known.fetched, *([] if known.covers(asset.patterns) else [asset.patterns])]
    files = {**known.files, **{path: listed[path] for path in chosen(listed, asset.patterns)}}
    value = {
        "fetched": [list(patterns) for patterns in fetched],
        "files": {path: facts.as_json() for path, facts in sorted(files.items())},
    }
    write_atomic(_path(asset, commit), json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def _path(asset: HubAsset, commit: str) -> Path:
    return repo_folder(asset) / "imageevalkit" / f"{commit}.json"
