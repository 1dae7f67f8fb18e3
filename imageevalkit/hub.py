"""Downloads from the Hugging Face Hub into ``HF_HOME/hub``, for prefetch and download_model_hf_home.sh.

huggingface_hub itself reads ``HF_ENDPOINT``, ``HF_HOME`` and ``HF_TOKEN`` from the environment: the token
goes from there into the request header and nowhere else.
"""

from __future__ import annotations

import errno
import signal
import sys
import time
from collections.abc import Sequence

from imageevalkit.arguments import Arguments
from imageevalkit.errors import CellFailure, ExitStatus, run_main
from imageevalkit.hub_resume import complete_large_files
from imageevalkit.secrets import one_line

TRIES = 5
# The library itself resumes a connection that drops; these waits are for a hub or a network that is away.
_FIRST_WAIT = 2.0


def snapshot(
    repo: str, revision: str | None, repo_type: str, patterns: Sequence[str], offline: bool = False
) -> str:
    """Bring a repository's files into the cache (``offline``: only look) and return their folder.

    Whole files already there are kept. A transient failure is tried :data:`TRIES` times, each announced on
    stderr; an unknown repository or revision, a refused access and a full disk are final at once.

    Raises:
        CellFailure: one line saying what the hub refused, or that files are missing when ``offline``.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        HTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if constants.HF_HUB_OFFLINE and not offline:
        raise CellFailure(f"{repo}: HF_HUB_OFFLINE is set in the environment; unset it to download")
    wait = _FIRST_WAIT
    for attempt in range(1, TRIES + 1):
        try:
            if not offline:
                complete_large_files(repo, revision, repo_type, patterns)
            return snapshot_download(
                repo,
                revision=revision,
                repo_type=repo_type,
                allow_patterns=list(patterns) or None,
                local_files_only=offline,
            )
        except GatedRepoError:
            raise CellFailure(
                f"{repo}: its owner must grant access; ask on the hub, then set HF_TOKEN"
            ) from None
        except RevisionNotFoundError:
            raise CellFailure(f"{repo}: the hub has no revision '{revision or 'main'}' of it") from None
        except RepositoryNotFoundError:
            raise CellFailure(
                f"{repo}: the hub has no such {repo_type}, or it is private and HF_TOKEN gives no access"
            ) from None
        except HFValidationError as error:
            raise CellFailure(f"{repo}: {_line(error)}") from None
        except (OSError, HTTPError) as error:
            if offline and isinstance(error, LocalEntryNotFoundError):
                raise CellFailure(f"{repo} at {revision} is not completely in the cache") from None
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise CellFailure(f"{repo}: disk full: {constants.HF_HUB_CACHE}") from None
            status = getattr(getattr(error, "response", None), "status_code", 0)
            if 400 <= status < 500 and status not in (408, 429):
                raise CellFailure(f"{repo}: {_line(error)}") from None
            if attempt == TRIES:
                raise CellFailure(
                    f"{repo}: {_line(error)} (after {TRIES} tries; the same command goes on from here)"
                ) from None
            print(f"{repo}: {_line(error)}; try {attempt + 1} of {TRIES} in {wait:g} s", file=sys.stderr)
        time.sleep(wait)
        wait *= 2
    raise AssertionError("the last try returns or raises")


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
            print(f"{repo}: {snapshot(repo, options.revision, options.repo_type, options.include)}")
        except CellFailure as failure:
            failures.append(str(failure))
    if failures:
        raise CellFailure(
            "\n  ".join([f"{len(failures)} of {len(options.repos)} not downloaded:", *failures])
        )
    return ExitStatus.COMPLETE


if __name__ == "__main__":
    run_main(main)
