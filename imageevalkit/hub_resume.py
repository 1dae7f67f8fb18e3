"""Large hub files that go on where a killed or cut-off download stopped.

huggingface_hub resumes within one process only: each new process starts an unfinished file anew. Here such a
file grows under a fixed name beside its place in the cache, and is handed to the library when whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from imageevalkit.hashes import git_blob_of, sha256_file
from imageevalkit.hub_bar import Silent
from imageevalkit.images import map_threads
from imageevalkit.locks import take_lock

# below this, fetching the file again costs less than asking about it
LARGE = 64 << 20
_THREADS = 4


def complete_large_files(repo: str, revision: str | None, repo_type: str, patterns: Sequence[str]) -> None:
    """Put the repository's large files that the cache lacks into it, each from where it stopped.

    Over plain HTTP, in Xet storage too: its own protocol starts a file anew. What HTTP cannot give (above 50 GB) is
    left to the library.

    Raises:
        OSError, httpx2.HTTPError: as huggingface_hub raises them, or the bytes are not those the hub names.
    """
    from huggingface_hub import hf_hub_url, snapshot_download
    from huggingface_hub.errors import DryRunError

    try:
        wanted: Sequence[Any] = snapshot_download(
            repo,
            revision=revision,
            repo_type=repo_type,
            allow_patterns=list(patterns) or None,
            tqdm_class=Silent,
            dry_run=True,
        )
    except DryRunError as error:
        raise error.__cause__ or error from None

    def complete(info: Any) -> None:
        # the cache keeps <repo>/snapshots/<commit>/<filename> as links to <repo>/blobs/<etag>
        blobs = Path(info.local_path.removesuffix(info.filename)).parent.parent / "blobs"
        _complete(hf_hub_url(repo, info.filename, repo_type=repo_type, revision=info.commit_hash), blobs)

    large = [info for info in wanted if info.will_download and (info.file_size or 0) >= LARGE]
    for _ in map_threads(complete, large, _THREADS):
        pass


def _complete(url: str, blobs: Path) -> None:
    from huggingface_hub import constants, get_hf_file_metadata
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    metadata = get_hf_file_metadata(url)
    if not metadata.etag or not metadata.size or metadata.size > constants.MAX_HTTP_DOWNLOAD_SIZE:
        return
    blobs.mkdir(parents=True, exist_ok=True)
    part = blobs / f"{metadata.etag}.resume"
    with part.open("ab") as file:
        take_lock(file.fileno(), part, wait=True)
        if (blobs / metadata.etag).exists():
            part.unlink(missing_ok=True)
            return
        here = file.seek(0, 2)
        if here > metadata.size:
            here = file.truncate(0)
        # the hub's own address: that of its content network, to which it redirects, is signed and expires.
        # httpx does not send the token to another host.
        http_get(
            url,
            file,
            resume_size=here,
            headers=build_hf_headers(),
            expected_size=metadata.size,
            tqdm_class=Silent,
        )
        file.flush()
        if not _is_blob(part, metadata.etag):
            part.unlink()
            raise OSError(f"{url}: the bytes received are not those the hub names; starting it anew")
        part.replace(blobs / metadata.etag)


def _is_blob(path: Path, etag: str) -> bool:
    """Whether the content has the name the hub gave it: a SHA-256, or git's SHA-1 for small-file storage."""
    if re.fullmatch(r"[0-9a-f]{64}", etag):
        return sha256_file(path) == etag
    return not re.fullmatch(r"[0-9a-f]{40}", etag) or git_blob_of(path) == etag
