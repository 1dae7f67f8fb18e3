"""``--export NAME[:TARGET]`` sends metrics and a table of sample images to the user's experiment tracker.

Each model is a run of the tracker. A checkpoint ``name@1000`` is step 1000 of the run ``name``. Withheld
results are not sent.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from imageevalkit.common.errors import CellFailure, UserError
from imageevalkit.common.images import CorruptImage, decode
from imageevalkit.common.redaction import one_line
from imageevalkit.common.text import counted, plain
from imageevalkit.report.collect import CellReport, collect
from imageevalkit.report.leaderboard import board_of
from imageevalkit.report.sharing import public
from imageevalkit.store.cell import Cell, output_root
from imageevalkit.store.jsonl import Tell
from imageevalkit.store.results import Result

PACKAGES = {"wandb": "wandb", "trackio": "trackio", "tensorboard": "tensorboardX"}
"""The package of each tracker, which is also the name of its module."""
SAMPLES = 16
"""The largest number of sample images of a cell, evenly spaced over its items."""
_SIDE = 512  # pixels
_PROJECT = "imageevalkit"


def check_tracker(tracker: str) -> None:
    """Raise UserError if the package of ``tracker`` is not installed."""
    package = PACKAGES[tracker]
    if importlib.util.find_spec(package) is None:
        raise UserError(f"--export {tracker} needs a package: .venv/bin/pip install {package}")


class Sample(NamedTuple):
    """An item of a cell, for the table of samples."""

    item: str
    prompt: str
    image: Image.Image
    values: str


@dataclass
class Run:
    """The data of one model. By step, ``metrics`` has values by name and ``samples`` has samples by board."""

    name: str
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    samples: dict[int, dict[str, list[Sample]]] = field(default_factory=dict)


def send(tracker: str, place: str, tell: Tell) -> None:
    """Send all results of the output folder to the project ``place`` of ``tracker``.

    For TensorBoard, ``place`` is a folder. If it is empty, a default is used. Raises UserError if there is no
    result or the package is missing, and CellFailure if the tracker raises an error.
    """
    check_tracker(tracker)
    cells = [cell for cell in collect(tell) if cell.result]
    if not cells:
        raise UserError("--export: there is no result to send")
    runs = _runs(cells)
    try:
        where = _SENDERS[tracker](runs, place)
    except Exception as error:  # third-party code: any network or disk error
        raise CellFailure(f"--export {tracker}: {one_line(error)}") from error
    withheld = sum(not cell.result.headline for cell in cells if cell.result)
    without = f"; {counted(withheld, 'withheld result')} not sent" if withheld else ""
    for cell in cells:
        if cell.result and cell.result.headline and cell.result.drift:
            tell(f"{cell.key}: {public(cell.result.drift)}")
    tell(f"sent to {tracker}: {counted(len(runs), 'run')} ({where}){without}")


# ---- what is sent


def _runs(cells: Sequence[CellReport]) -> list[Run]:
    runs: dict[str, Run] = {}
    for cell in cells:
        assert cell.result
        if not cell.result.headline:
            continue
        raw = Cell(cell.result.model, cell.result.benchmark).raw
        # the label of a board names the rewriter, so results with rewritten prompts can share the run
        name, step = raw.checkpoint or (raw.model, 0)
        run = runs.setdefault(name, Run(name))
        run.metrics.setdefault(step, {}).update(_metrics(cell.result))
        if samples := list(_samples(cell)):
            run.samples.setdefault(step, {})[_label(cell.result)] = samples
    return list(runs.values())


def _label(result: Result) -> str:
    return public(plain(board_of(result).label("", with_version=False)))


def _metrics(result: Result) -> Iterator[tuple[str, float]]:
    """Yield each metric's label and value; for a headline metric also the ends of its interval."""
    board = board_of(result)
    for name, metric in result.metrics.items():
        if metric.value is not None:
            label = public(plain(board.label(name, with_version=False)))
            yield label, metric.value
            if metric.interval and name in result.headline:
                yield f"{label} low", metric.interval[0]
                yield f"{label} high", metric.interval[1]


def _samples(cell: CellReport) -> Iterator[Sample]:
    there = [item for item in cell.items() if item.outcome == "generated" and item.path]
    for item in there[:: max(1, -(-len(there) // SAMPLES))]:
        try:
            image = decode((cell.cell.folder / item.path).read_bytes()).convert("RGB")
        except (OSError, CorruptImage):  # the report shows unreadable images
            continue
        image.thumbnail((_SIDE, _SIDE))
        values = ", ".join(f"{name} {value:g}" for name, value in item.values.items())
        yield Sample(item.id, public(plain(item.prompt)), image, values)


# ---- the trackers


def _to_wandb(runs: Sequence[Run], place: str) -> str:
    import wandb

    for run in runs:
        with wandb.init(project=place or _PROJECT, name=run.name, reinit="finish_previous") as there:
            for step, metrics in sorted(run.metrics.items()):
                tables = {
                    f"samples {label}": wandb.Table(
                        ["item", "prompt", "image", "scores"],
                        [[one.item, one.prompt, wandb.Image(one.image), one.values] for one in samples],
                    )
                    for label, samples in run.samples.get(step, {}).items()
                }
                there.log({**metrics, **tables}, step=step)
    return f"project {place or _PROJECT}"


def _to_trackio(runs: Sequence[Run], place: str) -> str:
    import pandas as pd
    import trackio

    for run in runs:
        trackio.init(project=place or _PROJECT, name=run.name, embed=False)
        for step, metrics in sorted(run.metrics.items()):
            tables = {}
            for label, samples in run.samples.get(step, {}).items():
                rows = [(one.item, one.prompt, trackio.Image(one.image), one.values) for one in samples]
                frame = pd.DataFrame(rows, columns=["item", "prompt", "image", "scores"])
                tables[f"samples {label}"] = trackio.Table(dataframe=frame)
            trackio.log({**metrics, **tables}, step=step)
        trackio.finish()
    return f"project {place or _PROJECT}; to look at it: trackio show --project {place or _PROJECT}"


def _to_tensorboard(runs: Sequence[Run], place: str) -> str:
    import numpy as np
    from tensorboardX import SummaryWriter

    folder = Path(place).expanduser() if place else output_root() / "tensorboard"
    for run in runs:
        with SummaryWriter(str(folder / run.name)) as writer:
            for step, metrics in sorted(run.metrics.items()):
                for name, value in metrics.items():
                    writer.add_scalar(name, value, step)
                for label, samples in run.samples.get(step, {}).items():
                    writer.add_text(f"samples {label}", _markdown(samples), step)
                    for one in samples:
                        pixels = np.asarray(one.image)
                        writer.add_image(f"{label}/{one.item}", pixels, step, dataformats="HWC")
    return f"to look at it: tensorboard --logdir {folder}"


def _markdown(samples: Sequence[Sample]) -> str:
    escaped = str.maketrans({char: f"\\{char}" for char in "\\`*_|<>[]#~"})
    rows = ([one.item, one.prompt, one.values] for one in samples)
    lines = (f"| {' | '.join(text.translate(escaped) for text in row)} |" for row in rows)
    return "\n".join(["| item | prompt | scores |", "| --- | --- | --- |", *lines])


_SENDERS: Mapping[str, Any] = {"wandb": _to_wandb, "trackio": _to_trackio, "tensorboard": _to_tensorboard}
