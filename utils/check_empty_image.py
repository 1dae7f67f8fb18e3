#!/usr/bin/env python3
"""Finds blank, corrupt and truncated images below a folder.

    python utils/check_empty_image.py DIR [--threshold 0.98] [--tolerance 8] [--json]

Exit status: 0 every image shows something, 1 some do not (or there is no image at all), 2 wrong usage.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import NamedTuple

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

try:
    from PIL import Image, ImageChops, ImageFilter
    from tqdm import tqdm
except ImportError as error:
    print(  # noqa: T201 - nothing of ours can be imported yet
        f"error: this Python has no {error.name}; use one that has it: {REPO}/.venv/bin/python {__file__} DIR",
        file=sys.stderr,
    )
    sys.exit(2)

from imageevalkit.common.errors import Arguments, ExitStatus, UserError, complain, run_main, show  # noqa: E402
from imageevalkit.common.images import IMAGE_SUFFIXES, CorruptImage, decode, map_threads  # noqa: E402
from imageevalkit.common.machine import available_cores  # noqa: E402

THRESHOLD = 0.98
# JPEG moves a flat colour by up to 5 of 255 (quality 20), film grain of sigma 2 by 8
TOLERANCE = 8
# Measured on 1024 px images, PNG and JPEG: specks keep at most 0.42 of their area. Anything drawn (a 1 px
# line, text of 10 px) keeps at least 1.1, because its neighbours fill in.
_DRAWN = 0.75


class Report(NamedTuple):
    """The images of a folder, by path relative to it; ``corrupt`` and ``unreadable`` give the reason too."""

    total: int
    blank: list[str]
    corrupt: dict[str, str]
    unreadable: dict[str, str]

    @property
    def passed(self) -> bool:
        """Whether there are images and every one of them shows something."""
        return self.total > 0 and not (self.blank or self.corrupt or self.unreadable)


def is_blank(image: Image.Image, threshold: float = THRESHOLD, tolerance: int = TOLERANCE) -> bool:
    """Whether ``image`` is one colour apart from isolated specks.

    At least ``threshold`` of its pixels lie within ``tolerance`` (of 255, in every channel) of one colour,
    and the others are scattered single pixels: a white page with one small word is no blank image. Full
    transparency is blank, with any pixels under it.
    """
    if image.mode not in ("L", "RGB", "RGBA"):
        image = image.convert("RGBA")
    if image.mode == "RGBA" and image.getchannel("A").getextrema()[1] == 0:
        return True
    pixels = image.width * image.height
    histogram = image.histogram()
    colour = []
    everything = True
    for start in range(0, len(histogram), 256):
        share, value = _densest(histogram[start : start + 256], tolerance)
        if share < threshold * pixels:
            return False  # the usual case: one pass over the image settles it
        colour.append(value)
        everything = everything and share == pixels
    if everything:
        return True
    flat = Image.new(image.mode, image.size, tuple(colour) if len(colour) > 1 else colour[0])
    distance = reduce(ImageChops.lighter, ImageChops.difference(image, flat).split())
    others = distance.point([255 * (level > tolerance) for level in range(256)])
    count = others.histogram()[255]
    # of nine neighbours at least three: single pixels vanish, strokes grow
    drawn = others.filter(ImageFilter.RankFilter(3, 6)).histogram()[255]
    return count <= (1 - threshold) * pixels and drawn <= _DRAWN * count


def _densest(histogram: list[int], tolerance: int) -> tuple[int, int]:
    """The fullest window of ±``tolerance`` levels: how many pixels it holds, and its fullest level."""
    below = [0]
    for count in histogram:
        below.append(below[-1] + count)
    share, _, level = max(
        (below[min(256, level + tolerance + 1)] - below[max(0, level - tolerance)], histogram[level], level)
        for level in range(256)
    )
    return share, level


def image_files(folder: Path) -> Iterator[Path]:
    """Every image file below ``folder``, in order, but for hidden ones: half-written files, folders of small copies."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and Path(name).suffix.lower() in IMAGE_SUFFIXES:
                yield Path(parent, name)


def check_images(
    folder: Path, threshold: float = THRESHOLD, tolerance: int = TOLERANCE, threads: int | None = None
) -> Report:
    """Decode every image below ``folder`` completely and collect the blank and unreadable ones.

    ``threads`` defaults to the cores this process may use. A progress bar is shown on a terminal.
    """

    def verdict(path: Path) -> tuple[str, str]:
        try:
            return ("blank" if is_blank(decode(path.read_bytes()), threshold, tolerance) else ""), ""
        except CorruptImage as error:
            return "corrupt", str(error)
        except OSError as error:
            return "unreadable", error.strerror or str(error)

    paths = list(image_files(folder))
    found: dict[str, dict[str, str]] = {"": {}, "blank": {}, "corrupt": {}, "unreadable": {}}
    verdicts = tqdm(
        map_threads(verdict, paths, threads or available_cores()), total=len(paths), unit="img", disable=None
    )
    for path, (kind, reason) in zip(paths, verdicts, strict=True):
        found[kind][path.relative_to(folder).as_posix()] = reason
    return Report(len(paths), list(found["blank"]), found["corrupt"], found["unreadable"])


def main() -> ExitStatus:
    """The command."""
    parser = Arguments("python utils/check_empty_image.py", "Find blank, corrupt and truncated images.")
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--threshold", type=float, default=THRESHOLD, help="share of one colour (0.98)")
    parser.add_argument("--tolerance", type=int, default=TOLERANCE, help="within one colour, of 255 (8)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args()
    if not options.folder.is_dir():
        raise UserError(f"there is no folder {options.folder}")
    if not 0 < options.threshold <= 1:
        raise UserError(f"--threshold {options.threshold} is not above 0 and at most 1")
    if not 0 <= options.tolerance <= 255:
        raise UserError(f"--tolerance {options.tolerance} is not within 0 to 255")

    report = check_images(options.folder, options.threshold, options.tolerance)
    show(json.dumps(report._asdict(), ensure_ascii=False, indent=1) if options.json else _text(report))
    if not report.total:
        complain(f"there is no image below {options.folder}")
    return ExitStatus.COMPLETE if report.passed else ExitStatus.FAILED


def _text(report: Report) -> str:
    lines = [f"blank: {name}" for name in report.blank]
    lines += [f"corrupt: {name} ({reason})" for name, reason in report.corrupt.items()]
    lines += [f"unreadable: {name} ({reason})" for name, reason in report.unreadable.items()]
    counts = f"{len(report.blank)} blank, {len(report.corrupt)} corrupt, {len(report.unreadable)} unreadable"
    return "\n".join([*lines, f"{report.total} images: {counts}"])


if __name__ == "__main__":
    run_main(main)
