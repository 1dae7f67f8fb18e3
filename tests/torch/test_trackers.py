"""--export: what is sent to a tracker, read back from TensorBoard's event files; and a package that is not there."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tensorboardX.proto.event_pb2 import Event

from imageevalkit.common.errors import UserError
from imageevalkit.extras.export.trackers import PACKAGES, SAMPLES, send
from imageevalkit.store.cell import output_root
from imageevalkit.store.results import Metric
from tests.support.cells import Made, paint, write_cell

ITEMS = [Made(f"p/{n:02}", f"a *red* cat {n}", value=n / 40) for n in range(40)]
BOARD = "text_ppocr-v4"  # tags have no @


def score(value: float) -> dict[str, Metric]:
    return {"accuracy": Metric(value, 40, (value - 0.1, value + 0.1)), "accuracy/sign": Metric(0.5, 9)}


def events(folder: Path) -> Iterator[Any]:
    """Returns the events of the one file in ``folder``: each has its length, two checksums and its content."""
    [path] = folder.glob("events.out.tfevents.*")
    data = io.BytesIO(path.read_bytes())
    while length := data.read(8):
        data.read(4)
        yield Event.FromString(data.read(int.from_bytes(length, "little")))
        data.read(4)


def values(folder: Path) -> dict[tuple[str, int], Any]:
    return {(one.tag, event.step): one for event in events(folder) for one in event.summary.value}


def test_tensorboard_has_metrics_by_step_and_samples_with_images() -> None:
    write_cell("flux", "text", ITEMS, score(0.475))
    for step in (1000, 2000):
        write_cell(f"run@{step}", "text", ITEMS, score(step / 4000))
    refused = [*ITEMS[:5], Made("x", "y", "refused")]
    write_cell("short", "text", refused, score(0.2))
    told: list[str] = []
    send("tensorboard", "", told.append)
    folder = output_root() / "tensorboard"
    assert sorted(path.name for path in folder.iterdir()) == ["flux", "run"]  # of a withheld one nothing
    assert told[-1].startswith("sent to tensorboard: 2 runs (")
    assert told[-1].endswith("; 1 withheld result not sent")
    curve = values(folder / "run")
    name = "text/accuracy_ppocr-v4"
    assert [curve[name, step].simple_value for step in (1000, 2000)] == pytest.approx([0.25, 0.5])
    flux = values(folder / "flux")
    assert flux[name, 0].simple_value == pytest.approx(0.475)
    assert flux[f"{name}_low", 0].simple_value == pytest.approx(0.375)
    assert flux["text/accuracy/sign_ppocr-v4", 0].simple_value == 0.5
    images = {tag: one.image for (tag, _), one in flux.items() if one.WhichOneof("value") == "image"}
    assert 10 < len(images) <= SAMPLES
    picture = Image.open(io.BytesIO(images[f"{BOARD}/p/00"].encoded_image_string))
    assert picture.tobytes() == paint(ITEMS[0]).tobytes()
    [table] = [one for (tag, _), one in flux.items() if tag.startswith("samples text@ppocr-v4")]
    assert rb"| p/00 | a \*red\* cat 0 | accuracy 0 |" in table.tensor.string_val[0]


def test_a_limited_result_has_a_name_of_its_own() -> None:
    write_cell("flux", "text", ITEMS, score(0.475), limit=40)
    send("tensorboard", "", print)
    assert ("text/accuracy_ppocr-v4__first_40_items_", 0) in values(output_root() / "tensorboard/flux")


def test_a_package_that_is_not_there_is_one_line_that_says_how_to_get_it() -> None:
    if importlib.util.find_spec(PACKAGES["wandb"]):
        pytest.skip("wandb is installed here")
    write_cell("flux", "text", ITEMS, score(0.475))
    with pytest.raises(UserError, match=r"--export wandb needs a package: .*pip install wandb$"):
        send("wandb", "", print)
