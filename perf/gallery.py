"""The gallery of models × prompts in a headless Chromium: its first paint, and frames while it scrolls.

A frame is the time from one animation frame to the next, of which the slowest counts: scrolled by a reader's wheel, and
as fast as a bar is dragged. The browser paints without a GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from perf.harness import Cost, Row, Table, at_most, run_program
from perf.report import write_matrix
from perf.toolkit import Toolkit
from tests.support.browser import Browser, browser

_PAINT_MS, _FRAME_MS = at_most(1000), at_most(50)
_SPEEDS = {"wheel, 2,400 px/s": 40, "dragged, 24,000 px/s": 400}
_FRAMES = 240
_SCROLL = """
const [step, frames, done] = arguments;
const box = document.querySelector(".g-scroll");
const times = [];
let last = 0;
const frame = (now) => {
  if (last) times.push(now - last);
  last = now;
  box.scrollTop += step;
  if (times.length < frames) requestAnimationFrame(frame);
  else done(times.sort((a, b) => b - a));
};
requestAnimationFrame(frame);
"""
_PAINT = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"


def rows(kit: Toolkit, models: int, prompts: int) -> list[Row]:
    """The gallery of such a report, opened from its file."""
    kit.forget()
    os.environ["IMAGEEVALKIT_OUTPUT"] = str(kit.output)
    write_matrix(models, 1, prompts)
    subprocess.run([sys.executable, "-m", "imageevalkit.report"], check=True, stdout=subprocess.DEVNULL)
    label = f"the gallery of {models} × {prompts:,}"
    with browser(kit.output.parent / "browser", kit.output / "report/index.html") as page:
        with Cost() as cost:
            page.open("#/gallery/benchmark-00")
            page.wait(lambda: page.all(".g-row img"))
        paint = float(page.driver.execute_script(_PAINT))
        found = [Row(f"{label}, first paint", paint, _PAINT_MS, others=cost.others, unit=" ms")]
        for name, step in _SPEEDS.items():
            with Cost() as cost:
                slowest, median = _scroll(page, step)
            figures = {"median ms": f"{median:.1f}"}
            found.append(Row(f"  slowest frame, {name}", slowest, _FRAME_MS, figures, (), cost.others, " ms"))
    return found


def _scroll(page: Browser, step: int) -> tuple[float, float]:
    page.driver.execute_script("document.querySelector('.g-scroll').scrollTop = 0")
    page.driver.set_script_timeout(120)
    times: list[Any] = page.driver.execute_async_script(_SCROLL, step, _FRAMES)
    return float(times[0]), float(times[len(times) // 2])


def main(options: argparse.Namespace, folder: Path) -> Table:
    table = Table("milliseconds", "median ms", tries=options.tries)
    table.measure(rows, Toolkit(folder, []), options.models, options.prompts)
    return table


if __name__ == "__main__":
    run_program(__doc__, main, models=(10, "beside each other"), prompts=(1000, "of the benchmark"))
