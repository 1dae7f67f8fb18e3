"""How much faster check_empty_image is than a plain loop: ``python perf/check_images.py [COUNT]``.

Both decode the same files completely, in one run. The plain loop takes them one by one and counts pure white
pixels, so it misses every other colour. Decoding is nine tenths of the work: the gain is the number of cores.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from functools import reduce
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from PIL import Image, ImageChops, ImageDraw

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


def plain_loop(folder: Path) -> int:
    """Blank images found one after the other."""
    blank = 0
    for path in image_files(folder):
        with Image.open(path) as image:
            rgb = image.convert("RGB")
        white = reduce(ImageChops.darker, rgb.split()).histogram()[255]
        blank += white >= 0.98 * rgb.width * rgb.height
    return blank


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_images(folder, count)
        started = time.perf_counter()
        plain = plain_loop(folder)
        plain_seconds = time.perf_counter() - started
        for threads in sorted({1, len(os.sched_getaffinity(0))}):
            started = time.perf_counter()
            found = len(check_images(folder, threads=threads).blank)
            seconds = time.perf_counter() - started
            print(
                f"{count} images, {threads} threads: {seconds:.2f} s, plain loop {plain_seconds:.2f} s: "
                f"{plain_seconds / seconds:.2f} × as fast, {found} blank found, {plain} by the plain loop"
            )


if __name__ == "__main__":
    main()
