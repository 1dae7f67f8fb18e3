"""Small WebP copies of images, cached below ``output/.thumbnails`` by the hash of the original."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from tqdm import tqdm

from imageevalkit.atomic import write_atomic
from imageevalkit.cell import output_root
from imageevalkit.images import CorruptImage, map_threads, reduced
from imageevalkit.machine import available_cores

# Longest side in pixels: sharp at 96 px on a high-density screen, about 4 KB as WebP.
SIDE = 192
_QUALITY = 62


def cached(sha256: str) -> Path:
    """Where the thumbnail of the image with this hash is kept."""
    return output_root() / ".thumbnails" / f"{sha256}.webp"


def make(originals: Mapping[str, Sequence[Path]]) -> dict[str, bytes]:
    """Thumbnails (WebP bytes) by the SHA-256 of the image; ``originals`` are the files of each hash.

    An image that is missing, does not decode, or is no longer the one that was recorded has none.
    """
    shas = list(originals)
    threads = available_cores()
    missing = sum(not cached(sha).is_file() for sha in shas)
    thumbs = map_threads(lambda sha: _thumbnail(sha, originals[sha]), shas, threads)
    quiet = None if missing > 200 else True  # None: shown on a terminal only
    bar = tqdm(thumbs, total=len(shas), desc="thumbnails", unit="image", disable=quiet)
    return {sha: data for sha, data in zip(shas, bar, strict=True) if data}


def _thumbnail(sha256: str, originals: Sequence[Path]) -> bytes | None:
    path = cached(sha256)
    if path.is_file():
        return path.read_bytes()
    for original in originals:
        try:
            source = original.read_bytes()
            if hashlib.sha256(source).hexdigest() != sha256:
                continue
            data = reduced(source, SIDE, _QUALITY)
        except (OSError, CorruptImage):
            continue
        write_atomic(path, data)
        return data
    return None
