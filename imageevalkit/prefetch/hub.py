"""Downloads from the Hugging Face Hub into ``HF_HOME/hub``, for prefetch and download_model_hf_home.sh.

huggingface_hub itself reads ``HF_ENDPOINT``, ``HF_HOME`` and ``HF_TOKEN`` from the environment: the token
goes from there into the request header and nowhere else. It resumes within one process only: each new process starts
an unfinished file anew. Here a large file grows under a fixed name beside its place in the cache, and is handed to the
library when whole.
"""

from __future__ import annotations

import errno
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from imageevalkit.asset_checks.files import FileFacts, chosen, is_there, wrong
from imageevalkit.asset_checks.hub import add_to_record, is_commit, repo_folder, snapshot_folder
from imageevalkit.assets import HubAsset
from imageevalkit.errors import Arguments, CellFailure, ExitStatus, run_main, say, show
from imageevalkit.images import map_threads
from imageevalkit.locks import take_lock
from imageevalkit.prefetch.http import why_unreachable
from imageevalkit.secrets import one_line

# below this, fetching the file again costs less than asking about it
LARGE = 64 << 20
_THREADS = 4


def _complete_large_files(asset: HubAsset, commit: str, wanted: Mapping[str, FileFacts]) -> None:
    """Put the large files of ``wanted`` that the cache lacks into it, each from where it stopped.

    Over plain HTTP, in Xet storage too: its own protocol starts a file anew. What HTTP cannot give (above 50 GB) is
    left to the library.

    Raises:
        OSError, httpx2.HTTPError: as huggingface_hub raises them, or the bytes are not those the hub names.
    """
    from huggingface_hub import constants

    sizes = range(LARGE, constants.MAX_HTTP_DOWNLOAD_SIZE + 1)
    here = snapshot_folder(asset, commit)
    large = [path for path, facts in wanted.items() if facts.size in sizes and not is_there(here / path)]
    for _ in map_threads(lambda path: _complete(asset, commit, path, wanted[path]), large, _THREADS):
        pass


def _complete(asset: HubAsset, commit: str, path: str, facts: FileFacts) -> None:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    # the library finds it there
    blob = repo_folder(asset) / "blobs" / (facts.sha256 or facts.blob)
    part = blob.with_name(f"{blob.name}.resume")
    with part.open("ab") as file:
        take_lock(file.fileno(), part, wait=True)
        if blob.exists():
            part.unlink(missing_ok=True)
            return
        here = file.seek(0, 2)
        if here > facts.size:
            here = file.truncate(0)
        # the hub's own address: that of its content network, to which it redirects, is signed and expires.
        # httpx does not send the token to another host.
        url = hf_hub_url(asset.hub, path, repo_type=asset.type, revision=commit)
        http_get(url, file, resume_size=here, headers=build_hf_headers(), expected_size=facts.size)
        file.flush()
        if wrong(part, path, facts, hashes=True):
            part.unlink()
            raise OSError(f"{url}: the bytes received are not those the hub names; starting it anew")
        part.replace(blob)


TRIES = 5
# The library itself resumes a connection that drops; these waits are for a hub or a network that is away.
_FIRST_WAIT = 2.0


def snapshot(asset: HubAsset, hashes: bool = False) -> str:
    """Bring the files of ``asset`` into the cache and return their folder.

    Whole files already there are kept: those of the right size, and of the right content if ``hashes``. What is
    needed is first written down beside it (see :mod:`imageevalkit.asset_checks.hub`). A transient failure is
    tried :data:`TRIES` times, each announced on stderr; an unknown repository or revision, a refused access and a
    full disk are final at once.

    Raises:
        CellFailure: one line saying what the hub refused, or that the disk has no room.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        HTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )
    from huggingface_hub.utils import logging

    repo = asset.hub
    if constants.HF_HUB_OFFLINE:
        raise CellFailure(f"{repo}: HF_HUB_OFFLINE is set; set it to 0 to download")
    if why := why_unreachable(constants.ENDPOINT):
        raise CellFailure(
            f"{repo}: {why}; set HF_ENDPOINT to a mirror of the hub, or run this where there is internet"
        )
    logging.set_verbosity_error()  # what is tried again is told below, once
    wait = _FIRST_WAIT
    for attempt in range(1, TRIES + 1):
        try:
            return _attempt(asset, hashes)
        except GatedRepoError:
            raise CellFailure(
                f"{repo}: its owner must grant access; ask on the hub, then set HF_TOKEN"
            ) from None
        except RevisionNotFoundError:
            raise CellFailure(f"{repo}: the hub has no revision '{asset.revision or 'main'}' of it") from None
        except RepositoryNotFoundError:
            raise CellFailure(
                f"{repo}: the hub has no such {asset.type}, or it is private and HF_TOKEN gives no access"
            ) from None
        except HFValidationError as error:
            raise CellFailure(f"{repo}: {_line(error)}") from None
        except (OSError, HTTPError) as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise CellFailure(f"{repo}: disk full: {constants.HF_HUB_CACHE}") from None
            status = error.response.status_code if isinstance(error, HfHubHTTPError) else 0
            if 400 <= status < 500 and status not in (408, 429):
                raise CellFailure(f"{repo}: {_line(error)}") from None
            if attempt == TRIES:
                raise CellFailure(
                    f"{repo}: {_line(error)} (after {TRIES} tries; the same command goes on from here)"
                ) from None
            say(f"{repo}: {_line(error)}; try {attempt + 1} of {TRIES} in {wait:g} s", sys.stderr)
        time.sleep(wait)
        wait *= 2
    raise AssertionError("the last try returns or raises")


def _attempt(asset: HubAsset, hashes: bool) -> str:
    from huggingface_hub import snapshot_download

    commit = _commit(asset)
    listed = _listed(asset, commit)
    wanted = {path: listed[path] for path in chosen(listed, asset.patterns)}
    if not wanted:
        raise CellFailure(
            f"{asset.hub}: none of its {len(listed)} files is one of {', '.join(asset.patterns)}"
        )
    add_to_record(asset, commit, listed)
    _remove_wrong(asset, commit, wanted, hashes)
    _check_room(asset, commit, wanted)
    _complete_large_files(asset, commit, wanted)
    folder = snapshot_download(
        asset.hub,
        revision=asset.revision or "main",  # which leaves a note on what that stands for
        repo_type=asset.type,
        allow_patterns=list(asset.patterns) or None,
    )
    if Path(folder).name != commit:
        raise OSError(f"{asset.revision or 'main'} has become another commit meanwhile")
    lost = [path for path, facts in wanted.items() if _is_wrong(Path(folder), path, facts, hashes=False)]
    if lost:
        raise OSError(f"{lost[0]} did not arrive whole")
    return folder


def _commit(asset: HubAsset) -> str:
    from huggingface_hub import HfApi

    revision = asset.revision or "main"
    if is_commit(revision):
        return revision
    return str(HfApi().repo_info(asset.hub, repo_type=asset.type, revision=revision).sha)


def _listed(asset: HubAsset, commit: str) -> dict[str, FileFacts]:
    """All files that the hub has at ``commit``."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    tree = HfApi().list_repo_tree(asset.hub, recursive=True, revision=commit, repo_type=asset.type)
    return {
        file.path: FileFacts(file.lfs.size, file.lfs.sha256)
        if file.lfs
        else FileFacts(file.size, "", file.blob_id)
        for file in tree
        if isinstance(file, RepoFile)
    }


def _is_wrong(folder: Path, path: str, facts: FileFacts, hashes: bool) -> bool:
    return not is_there(folder / path) or bool(wrong(folder / path, path, facts, hashes))


def _remove_wrong(asset: HubAsset, commit: str, wanted: Mapping[str, FileFacts], hashes: bool) -> None:
    """Take out what would pass for a whole file because it has its name."""
    folder, blobs = snapshot_folder(asset, commit), repo_folder(asset) / "blobs"
    for path, facts in wanted.items():
        if is_there(folder / path) and _is_wrong(folder, path, facts, hashes):
            (folder / path).unlink()
            (blobs / (facts.sha256 or facts.blob)).unlink(missing_ok=True)


def _check_room(asset: HubAsset, commit: str, wanted: Mapping[str, FileFacts]) -> None:
    folder, blobs = snapshot_folder(asset, commit), repo_folder(asset) / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    missing = [facts for path, facts in wanted.items() if not is_there(folder / path)]
    to_come = sum(max(0, f.size - _size(blobs / f"{f.sha256 or f.blob}.resume")) for f in missing)
    free = shutil.disk_usage(blobs).free
    if to_come > free:
        # the library goes on with none of these: they save nothing, and may be the space that is missing
        left = sum(map(_size, blobs.glob("*.incomplete")))
        killed = f" ({blobs}/*.incomplete are {left / 1e9:.1f} GB that killed downloads have left)" * bool(
            left
        )
        raise CellFailure(
            f"{asset.hub}: {to_come / 1e9:.1f} GB are to be downloaded, but {blobs} has room for "
            f"{free / 1e9:.1f} GB: free some space{killed}, or set HF_HOME"
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # not begun, or it has just arrived
        return 0


def _line(error: Exception) -> str:
    # huggingface_hub wraps the failure of a first request
    return one_line(error.__cause__ or error, 300)


def main() -> ExitStatus:
    """Download each named repository; one that fails does not stop the others."""
    parser = Arguments(
        "bash utils/download_model_hf_home.sh",
        "Download Hugging Face repositories into HF_HOME/hub. HF_ENDPOINT may name a mirror.",
    )
    parser.add_argument("repos", nargs="+", metavar="REPO", help="org/name")
    parser.add_argument("--repo-type", choices=["model", "dataset"], default="model")
    parser.add_argument("--revision", help="branch, tag or commit (default: main)")
    parser.add_argument(
        "--include", action="append", default=[], metavar="PATTERN", help="only these files; repeatable"
    )
    options = parser.parse_args()
    # Python would wait for the files being downloaded; they go on from where they are next time
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    failures = []
    for repo in options.repos:
        try:
            asset = HubAsset(repo, options.revision, options.repo_type, tuple(options.include))
            show(f"{repo}: {snapshot(asset)}")
        except CellFailure as failure:
            failures.append(str(failure))
    if failures:
        raise CellFailure(
            "\n  ".join([f"{len(failures)} of {len(options.repos)} not downloaded:", *failures])
        )
    return ExitStatus.COMPLETE


if __name__ == "__main__":
    run_main(main)
