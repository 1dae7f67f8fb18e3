"""Whether files of a hub repository are whole in the cache, also where it was copied with links made files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from imageevalkit.asset_checks.checkpoint_index import index_problems
from imageevalkit.asset_checks.file_facts import FileFacts, is_there, read_json, wrong
from imageevalkit.asset_checks.finding import Finding, of_files
from imageevalkit.asset_checks.hub_cache import (
    cache_folder,
    commit_of,
    repo_folder,
    short_name,
    snapshot_folder,
)
from imageevalkit.asset_checks.hub_record import chosen, read_record
from imageevalkit.asset_checks.weight_files import lacking
from imageevalkit.asset_manifest import HubAsset

_TREE_FORMAT = 1


def check_hub(asset: HubAsset, hashes: bool) -> Finding:
    """Sizes always, content if ``hashes``.

    Where prefetch has filled the cache, or was killed at it, every file of ``asset`` is known. Elsewhere only those
    are looked at that are there or that a checkpoint cannot do without; a note says so.
    """
    name, commit = short_name(asset), commit_of(asset)
    absent = Finding([f"{name} is not in the cache {cache_folder()}"])
    if commit is None:
        return absent
    notes = [] if asset.revision == commit else [f"{name}: {asset.revision or 'main'} is commit {commit}"]
    folder = snapshot_folder(asset, commit)
    record = read_record(asset, commit)
    if record and record.covers(asset.patterns) and (paths := chosen(record.files, asset.patterns)):
        return Finding(_compared(name, folder, {path: record.files[path] for path in paths}, hashes), notes)
    if not folder.is_dir():
        return absent
    listed = _library_listing(asset, commit)
    here = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if not path.is_dir()]
    known = {path: listed[path] for path in here if path in listed}
    problems = _compared(name, folder, known, hashes)
    # a link to nothing is a file too
    problems += of_files(name, [p for p in here if p not in known and not is_there(folder / p)], [])
    problems += [f"{name}: {problem}" for problem in index_problems(folder, asset.patterns)]
    if asset.type == "model":
        problems += [f"{name}: {problem}" for problem in lacking(folder, asset.patterns, listed)]
    what = "sizes and contents" if hashes else "sizes"
    checked = f"{what} of {len(known)} files, and " * bool(known)
    note = f"{name} was not fetched by prefetch: checked {checked}that its parts have weights; others may be missing"
    return Finding(problems, [*notes, note], bool(known))


def _compared(name: str, folder: Path, files: Mapping[str, FileFacts], hashes: bool) -> list[str]:
    missing = [path for path in files if not is_there(folder / path)]
    found = (
        wrong(folder / path, path, facts, hashes) for path, facts in files.items() if path not in missing
    )
    return of_files(name, missing, [problem for problem in found if problem])


def _library_listing(asset: HubAsset, commit: str) -> dict[str, FileFacts]:
    """The repository's files as huggingface_hub 2 keeps them; none where another one has filled the cache."""
    value = read_json(repo_folder(asset) / "trees" / f"{commit}.json")
    try:
        if value["format_version"] != _TREE_FORMAT:
            return {}
        return {
            path: FileFacts(
                file.get("lfs_size") or file["size"], file.get("lfs_sha256") or "", file["blob_id"]
            )
            for path, file in value["files"].items()
        }
    except (TypeError, KeyError, AttributeError):
        return {}
