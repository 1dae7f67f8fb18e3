"""What prefetch leaves beside a repository's files: which of them are needed, their sizes and hashes.

It is written before they are fetched, so that a look after a killed download knows what is short. It lies in the
repository's own folder, and so travels with a copy of it. huggingface_hub neither reads nor minds it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from imageevalkit.asset_checks.file_facts import FileFacts, read_json
from imageevalkit.asset_checks.hub_cache import repo_folder
from imageevalkit.asset_manifest import HubAsset
from imageevalkit.atomic import write_atomic


class HubRecord(NamedTuple):
    """``wanted``: each set of patterns (empty: everything) that was asked for. ``files``, all of these, by path."""

    wanted: Sequence[Sequence[str]]
    files: Mapping[str, FileFacts]

    def covers(self, patterns: Sequence[str]) -> bool:
        """Whether all files of ``patterns`` are known."""
        return sorted(patterns) in [sorted(known) for known in self.wanted] or () in map(tuple, self.wanted)


def chosen(paths: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Those of ``paths`` that match one of ``patterns`` as huggingface_hub matches them; all without patterns."""
    wanted = list(map(_in_full, patterns))
    return [path for path in paths if not wanted or any(fnmatch(path, pattern) for pattern in wanted)]


def may_choose_below(pattern: str, folder: str) -> bool:
    """Whether ``pattern`` may match a file in or below ``folder`` (empty: the repository itself)."""
    pattern, below = _in_full(pattern), f"{folder}/" if folder else ""
    fixed = re.split(r"[*?[]", pattern)[0]
    return fixed.startswith(below) or (below.startswith(fixed) and fixed != pattern)


def _in_full(pattern: str) -> str:
    return f"{pattern}*" if pattern.endswith("/") else pattern


def read_record(asset: HubAsset, commit: str) -> HubRecord | None:
    """None where prefetch was never asked for ``commit``, or its record is damaged."""
    value = read_json(_path(asset, commit))
    try:
        files = {str(path): FileFacts.of(facts) for path, facts in value["files"].items()}
        return HubRecord([tuple(map(str, patterns)) for patterns in value["wanted"]], files)
    except (TypeError, KeyError, ValueError, AttributeError):
        return None


def add_to_record(asset: HubAsset, commit: str, listed: Mapping[str, FileFacts]) -> None:
    """Write down which files ``asset`` needs, out of all that its repository has (``listed``)."""
    known = read_record(asset, commit) or HubRecord([], {})
    wanted = [*known.wanted, *([] if known.covers(asset.patterns) else [asset.patterns])]
    files = {**known.files, **{path: listed[path] for path in chosen(listed, asset.patterns)}}
    value = {
        "wanted": [list(patterns) for patterns in wanted],
        "files": {path: facts.as_json() for path, facts in sorted(files.items())},
    }
    write_atomic(_path(asset, commit), json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def _path(asset: HubAsset, commit: str) -> Path:
    return repo_folder(asset) / "imageevalkit" / f"{commit}.json"
