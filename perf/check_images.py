"""What the blank test of check_empty_image costs: ``python perf/check_images.py [COUNT]``.

The same files are decoded completely by as many threads in both runs; one of them only decodes.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from PIL import Image, ImageDraw

from imageevalkit.machine import available_cores
from utils.check_empty_image import check_images, image_files


def make_images(folder: Path, count: int) -> None:
    """``count`` PNG and JPEG images of 1024 × 1024 px: like photos, typeset pages, flat colours."""
    rng = random.Random(0)
    for n in range(count):
        if n % 10 == 0:
            image = Image.new("RGB", (1024, 1024), (rng.randrange(256), 40, 90))
        elif n % 3 == 0:
            image = Image.new("RGB", (1024, 1024), "white")
            draw = ImageDraw.Draw(image)
            for line in range(40):
                draw.text(
                    (40, 24 * line + 20), "The quick brown fox jumps over the lazy dog. " * 3, fill="black"
                )
        else:
            small = Image.frombytes("RGB", (128, 128), rng.randbytes(128 * 128 * 3))
            image = small.resize((1024, 1024), Image.Resampling.BICUBIC)
        image.save(folder / f"{n:05d}.{'jpg' if n % 2 else 'png'}")


def decode_all(folder: Path, threads: int) -> None:
    """Decode every image and look at none."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(_load, image_files(folder)))


def _load(path: Path) -> None:
    with Image.open(path) as image:
        image.load()


def seconds(run: Callable[[], object]) -> float:
    """The wall time of ``run``, the better of two: the first may wait for the disk."""
    times = []
    for _ in range(2):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_images(folder, count)
        for threads in sorted({1, available_cores()}):
            plain = seconds(partial(decode_all, folder, threads))
            checked = seconds(partial(check_images, folder, threads=threads))
            print(
                f"{count} images, {threads} threads: check {checked:.2f} s, decoding alone {plain:.2f} s: "
                f"the check costs {checked / plain - 1:+.0%}"
            )


if __name__ == "__main__":
    main()
