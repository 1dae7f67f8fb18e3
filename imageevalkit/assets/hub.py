"""Downloads from the Hugging Face Hub into ``HF_HOME/hub``, for prefetch and download_model_hf_home.sh.

huggingface_hub reads ``HF_ENDPOINT``, ``HF_HOME`` and ``HF_TOKEN`` from the environment. The token appears
only in the request header. If a process is killed, huggingface_hub starts unfinished files again. This module
therefore downloads large files itself, under a fixed name in the cache, so that the next process resumes.
"""

from __future__ import annotations

import errno
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from imageevalkit.assets import FileFacts, HubAsset, Record, compared, is_there
from imageevalkit.assets.check import chosen, record_of, repo_folder, snapshot_folder
from imageevalkit.assets.http import PassingFailure, check_reach, locked, until_it_passes
from imageevalkit.common.atomic import is_disk_full
from imageevalkit.common.errors import Arguments, CellFailure, ExitStatus, run_main, show
from imageevalkit.common.images import map_threads
from imageevalkit.common.redaction import one_line

if TYPE_CHECKING:
    from huggingface_hub import ResolvedRevision

# bytes; a smaller file is downloaded again faster than it is resumed
LARGE = 64 << 20
_THREADS = 4
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


def snapshot(asset: HubAsset, hashes: bool = False) -> Path:
    """Downloads the files of ``asset`` into the cache and returns their folder.

    Files in the cache are kept if their size is right and, with ``hashes``, their content too. A record of
    all files is written first (see :mod:`imageevalkit.assets.check`). Transient failures are retried. Raises
    CellFailure at once if the repository is unknown, access is refused, or the disk is full.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import logging

    if constants.HF_HUB_OFFLINE:
        raise CellFailure(f"{asset.hub}: HF_HUB_OFFLINE is set; set it to 0 to download")
    remedy = "set HF_ENDPOINT to a mirror of the hub, or run this where there is internet"
    check_reach(constants.ENDPOINT, remedy, asset.hub)
    logging.set_verbosity_error()  # until_it_passes already announces each retry
    return until_it_passes(asset.hub, lambda: _classified(asset, hashes))


def _classified(asset: HubAsset, hashes: bool) -> Path:
    """Calls :func:`_attempt`. Raises CellFailure for final failures, PassingFailure if a retry may help."""
    from huggingface_hub import constants, errors

    # by classes of huggingface_hub, subclasses first
    reasons = {
        errors.GatedRepoError: "its owner must grant access; ask on the hub, then set HF_TOKEN",
        errors.RevisionNotFoundError: f"the hub has no revision '{asset.revision or 'main'}' of it",
        errors.RepositoryNotFoundError: f"the hub has no such {asset.type}, or it is private and HF_TOKEN gives no "
        "access",
    }
    try:
        return _attempt(asset, hashes)
    except (OSError, errors.HTTPError, errors.HFValidationError, errors.RevisionResolutionError) as error:
        if reason := next((why for kind, why in reasons.items() if isinstance(error, kind)), ""):
            raise CellFailure(f"{asset.hub}: {reason}") from None
        if isinstance(error, OSError) and is_disk_full(error):
            raise CellFailure(f"{asset.hub}: disk full: {constants.HF_HUB_CACHE}") from None
        if isinstance(error, OSError) and error.errno in _FORBIDDEN:
            raise CellFailure(
                f"{asset.hub}: {error.filename}: {error.strerror}; set HF_HOME to a folder of yours"
            ) from None
        line = one_line(error.__cause__ or error, 300)  # huggingface_hub wraps the failure of a first request
        status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else 0
        is_refused = 400 <= status < 500 and status not in (408, 429)
        if is_refused or isinstance(error, errors.HFValidationError):
            raise CellFailure(f"{asset.hub}: {line}") from None
        raise PassingFailure(line) from None


def _attempt(asset: HubAsset, hashes: bool) -> Path:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.hf_api import RepoFile

    api = HfApi()
    # this also records in the cache to which commit a branch or tag points
    revision = api.resolve_revision(asset.hub, repo_type=asset.type, revision=asset.revision or "main")
    tree = api.list_repo_tree(asset.hub, recursive=True, revision=revision.resolved, repo_type=asset.type)
    listed: dict[str, FileFacts] = {}
    for file in tree:
        if isinstance(file, RepoFile):
            large = file.lfs
            listed[file.path] = FileFacts(file.size, large.sha256 if large else file.blob_id)
    wanted = {path: listed[path] for path in chosen(listed, asset.patterns)}
    if not wanted:
        shown = ", ".join(asset.patterns)
        raise CellFailure(f"{asset.hub}: none of its {len(listed)} files is one of {shown}")
    try:
        Record({}, listed).write(record_of(asset, revision.resolved))
    except OSError as error:
        if error.errno not in _FORBIDDEN:  # a complete read-only cache needs no record
            raise
    folder, blobs = snapshot_folder(asset, revision.resolved), repo_folder(asset) / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    for path, facts in wanted.items():
        # huggingface_hub would take a damaged file for a complete one, because of its name
        if is_there(folder / path) and facts.problem(folder / path, path, hashes):
            (folder / path).unlink()
            (blobs / facts.digest).unlink(missing_ok=True)
    missing = {path: facts for path, facts in wanted.items() if not is_there(folder / path)}
    check_room(asset.hub, blobs, missing)
    _complete_large_files(asset, revision, missing)
    patterns = list(asset.patterns) or None
    snapshot_download(asset.hub, revision=revision, repo_type=asset.type, allow_patterns=patterns)
    if lost := compared("the download is incomplete", folder, wanted, hashes=False):
        raise OSError(*lost)
    return folder


def _complete_large_files(
    asset: HubAsset, revision: ResolvedRevision, missing: Mapping[str, FileFacts]
) -> None:
    """Downloads the large files among the ``missing`` into the cache, each from where it stopped.

    It uses plain HTTP even for Xet storage, whose own protocol cannot resume. Files above 50 GB are left to
    the library: HTTP does not serve them. Raises OSError if the bytes have another hash than the hub states,
    and the OSError and httpx2.HTTPError of huggingface_hub.
    """
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    def complete(path: str) -> None:
        facts = missing[path]
        blob = repo_folder(asset) / "blobs" / facts.digest  # huggingface_hub looks for the file here
        part = blob.with_name(f"{blob.name}.resume")
        with locked(part) as file:
            if blob.exists():  # another process has downloaded the file meanwhile
                part.unlink()
                return
            here = file.seek(0, 2)
            if here > (facts.size or 0):
                here = file.truncate(0)
            # The URL of the hub itself: the hub redirects to a signed URL that expires. httpx2 does not send
            # the token to another host.
            url = hf_hub_url(asset.hub, path, repo_type=asset.type, revision=revision.resolved)
            http_get(url, file, resume_size=here, headers=build_hf_headers(), expected_size=facts.size)
            file.flush()
            if facts.problem(part, path, hashes=True):
                part.unlink()
                raise OSError(
                    f"{url}: the received bytes have another hash than on the hub; the download restarts"
                )
            part.replace(blob)

    sizes = range(LARGE, constants.MAX_HTTP_DOWNLOAD_SIZE + 1)
    large = [path for path, facts in missing.items() if facts.size in sizes]
    for _ in map_threads(complete, large, _THREADS):
        pass


def check_room(hub: str, blobs: Path, missing: Mapping[str, FileFacts]) -> None:
    """Raises CellFailure if the disk of ``blobs`` has not enough space for the rest of the files."""
    to_come = sum(
        max(0, (facts.size or 0) - _size(blobs / f"{facts.digest}.resume")) for facts in missing.values()
    )
    free = shutil.disk_usage(blobs).free
    if to_come > free:
        # huggingface_hub never resumes these files, so their space can be freed
        left = sum(map(_size, blobs.glob("*.incomplete")))
        killed = f" ({blobs}/*.incomplete are {left / 1e9:.1f} GB that killed downloads have left)"
        raise CellFailure(
            f"{hub}: {to_come / 1e9:.1f} GB are to be downloaded, but {blobs} has room for {free / 1e9:.1f} GB: free "
            f"some space{killed * bool(left)}, or set HF_HOME"
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # the download has not begun, or has just ended
        return 0


def main() -> ExitStatus:
    """Downloads each named repository. If a repository fails, the others are still downloaded."""
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
    # end at once on Ctrl-C: Python would wait for all downloads, and the next call resumes them anyway
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    failures = []
    for repo in options.repos:
        try:
            asset = HubAsset(repo, options.revision, options.repo_type, tuple(options.include))
            show(f"{repo}: {snapshot(asset)}")
        except CellFailure as failure:
            failures.append(str(failure))
    if failures:
        count = f"{len(failures)} of {len(options.repos)} not downloaded:"
        raise CellFailure("\n  ".join([count, *failures]))
    return ExitStatus.COMPLETE


if __name__ == "__main__":
    run_main(main)
