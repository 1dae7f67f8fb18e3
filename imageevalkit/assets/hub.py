"""Downloads from the Hugging Face Hub into ``HF_HOME/hub``, for prefetch and download_model_hf_home.sh.

huggingface_hub reads ``HF_ENDPOINT``, ``HF_HOME`` and ``HF_TOKEN`` from the environment: the token goes from there into
the request header and nowhere else. Between processes it resumes whole files only: a new process starts an unfinished
one anew under a name of its own. So it is given a fixed name for each large file, beside its place in the cache.
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
from imageevalkit.atomic import is_disk_full
from imageevalkit.errors import Arguments, CellFailure, ExitStatus, run_main, show
from imageevalkit.images import map_threads
from imageevalkit.secrets import one_line

if TYPE_CHECKING:
    from huggingface_hub import ResolvedRevision

# below this, fetching the file again costs less than asking about it
LARGE = 64 << 20
_THREADS = 4
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


def snapshot(asset: HubAsset, hashes: bool = False) -> Path:
    """Bring the files of ``asset`` into the cache and return their folder.

    Whole files already there are kept: those of the right size, and of the right content if ``hashes``. What there is
    is first written down beside it (see :mod:`imageevalkit.assets.check`). A transient failure is tried again; an
    unknown repository or revision, a refused access and a full disk are final at once. Raises CellFailure: one line
    saying what the hub refused, or that the disk has no room.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import logging

    if constants.HF_HUB_OFFLINE:
        raise CellFailure(f"{asset.hub}: HF_HUB_OFFLINE is set; set it to 0 to download")
    remedy = "set HF_ENDPOINT to a mirror of the hub, or run this where there is internet"
    check_reach(constants.ENDPOINT, remedy, asset.hub)
    logging.set_verbosity_error()  # what is tried again is told once, by us
    return until_it_passes(asset.hub, lambda: _told(asset, hashes))


def _told(asset: HubAsset, hashes: bool) -> Path:
    """:func:`_attempt`, whose failures become a CellFailure where they are final, else a PassingFailure."""
    from huggingface_hub import constants, errors

    # by classes of huggingface_hub, the narrower first
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
    # it leaves a note in the cache on what a branch or tag stands for
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
        if error.errno not in _FORBIDDEN:  # who must write more meets it again
            raise
    folder, blobs = snapshot_folder(asset, revision.resolved), repo_folder(asset) / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    for path, facts in wanted.items():
        # what would pass for a whole file because it has its name
        if is_there(folder / path) and facts.problem(folder / path, path, hashes):
            (folder / path).unlink()
            (blobs / facts.digest).unlink(missing_ok=True)
    missing = {path: facts for path, facts in wanted.items() if not is_there(folder / path)}
    check_room(asset.hub, blobs, missing)
    _complete_large_files(asset, revision, missing)
    patterns = list(asset.patterns) or None
    snapshot_download(asset.hub, revision=revision, repo_type=asset.type, allow_patterns=patterns)
    if lost := compared("it did not arrive whole", folder, wanted, hashes=False):
        raise OSError(*lost)
    return folder


def _complete_large_files(
    asset: HubAsset, revision: ResolvedRevision, missing: Mapping[str, FileFacts]
) -> None:
    """Put the large files among the ``missing`` into the cache, each from where it stopped.

    Over plain HTTP, in Xet storage too: its own protocol starts a file anew. What HTTP cannot give (above 50 GB) is
    left to the library. Raises OSError, httpx2.HTTPError: as huggingface_hub raises them, or the bytes are not those
    the hub names.
    """
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    def complete(path: str) -> None:
        facts = missing[path]
        blob = repo_folder(asset) / "blobs" / facts.digest  # the library finds it there
        part = blob.with_name(f"{blob.name}.resume")
        with locked(part) as file:
            if blob.exists():  # somebody else was faster
                part.unlink()
                return
            here = file.seek(0, 2)
            if here > (facts.size or 0):
                here = file.truncate(0)
            # the hub's own address: that of its content network, to which it redirects, is signed and expires.
            # httpx2 does not send the token to another host.
            url = hf_hub_url(asset.hub, path, repo_type=asset.type, revision=revision.resolved)
            http_get(url, file, resume_size=here, headers=build_hf_headers(), expected_size=facts.size)
            file.flush()
            if facts.problem(part, path, hashes=True):
                part.unlink()
                raise OSError(f"{url}: the bytes received are not those the hub names; starting it anew")
            part.replace(blob)

    sizes = range(LARGE, constants.MAX_HTTP_DOWNLOAD_SIZE + 1)
    large = [path for path, facts in missing.items() if facts.size in sizes]
    for _ in map_threads(complete, large, _THREADS):
        pass


def check_room(hub: str, blobs: Path, missing: Mapping[str, FileFacts]) -> None:
    """Raises CellFailure where the disk of the folder ``blobs`` has no room for what is left of the files."""
    to_come = sum(
        max(0, (facts.size or 0) - _size(blobs / f"{facts.digest}.resume")) for facts in missing.values()
    )
    free = shutil.disk_usage(blobs).free
    if to_come > free:
        # the library goes on with none of these: they save nothing, and may be the space that is missing
        left = sum(map(_size, blobs.glob("*.incomplete")))
        killed = f" ({blobs}/*.incomplete are {left / 1e9:.1f} GB that killed downloads have left)"
        raise CellFailure(
            f"{hub}: {to_come / 1e9:.1f} GB are to be downloaded, but {blobs} has room for {free / 1e9:.1f} GB: free "
            f"some space{killed * bool(left)}, or set HF_HOME"
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # not begun, or it has just arrived
        return 0


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
        count = f"{len(failures)} of {len(options.repos)} not downloaded:"
        raise CellFailure("\n  ".join([count, *failures]))
    return ExitStatus.COMPLETE


if __name__ == "__main__":
    run_main(main)
