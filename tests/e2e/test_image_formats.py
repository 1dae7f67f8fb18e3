"""Images are opened by the name of their format: of the others, EPS makes Pillow run Ghostscript on what it is sent."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import EpsImagePlugin, Image

from custom_models.model_utils.openai_images import OpenAIImagesT2I
from imageevalkit.benchmark.image_files import Place
from imageevalkit.benchmark.question import Encoding, Picture
from imageevalkit.common.grids import Grid
from imageevalkit.common.images import FORMATS, REPLY_FORMATS, CorruptImage, decode, facts, opened
from imageevalkit.extras.adopt.copies import adopt_cell
from imageevalkit.extras.adopt.sources import find_images
from imageevalkit.generate.model import ItemFailed
from imageevalkit.generate.worker import ImageFile, incoming, outgoing
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.judges.api import open_picture, sent_picture
from imageevalkit.store.cell import REPO, Cell
from imageevalkit.store.pictures import THUMBNAILS
from imageevalkit.store.states import survey_images
from tests.support.generation import FakeDataset, items
from tests.support.image_replies import EPS
from tests.support.image_server import ImageServer

CELL = Cell("m", "fake")
TAKEN = "PNG, JPEG, WEBP, BMP, GIF, TIFF"
SAID = f"its format is EPS: only {TAKEN} are opened"


@pytest.fixture
def unrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The mark that a fake ``gs``, first in PATH, leaves when it draws; Pillow by itself would run it, as is seen."""
    folder, mark = tmp_path / "bin", tmp_path / "gs-was-run"
    folder.mkdir()
    (folder / "gs").write_text(f"#!/bin/sh\n[ \"$1\" = --version ] && exit 0\n: > '{mark}'\nexit 1\n")
    (folder / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # it looks for one once per process
    with Image.open(io.BytesIO(EPS)) as image, pytest.raises(subprocess.CalledProcessError):
        image.load()
    mark.unlink()
    return mark


def encoded(format: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16), "red").save(buffer, format)
    return buffer.getvalue()


def test_an_eps_is_named_and_never_drawn(tmp_path: Path, unrun: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(EPS)
    looks: list[Callable[[], object]] = [
        lambda: decode(EPS),
        lambda: opened(EPS),
        lambda: opened(path),
        lambda: sent_picture(Picture(path, "0")),
        lambda: sent_picture(Picture(path, "0", encoding=Encoding("JPEG"))),
        lambda: open_picture(Picture(path, "0")),
        lambda: incoming([ImageFile(str(path)), "make it red"]),
    ]
    for look in looks:
        with pytest.raises(CorruptImage, match=SAID):
            look()
    with pytest.raises(CorruptImage, match="its format is EPS: only PNG, JPEG, WEBP are opened"):
        facts(EPS, REPLY_FORMATS)
    assert not unrun.exists()


def test_a_server_that_answers_with_one_costs_that_item(server: ImageServer, unrun: Path) -> None:
    server.default = "eps"
    with pytest.raises(
        ItemFailed, match="does not decode: its format is EPS: only PNG, JPEG, WEBP are opened"
    ):
        OpenAIImagesT2I("some-model", max_attempts=1).generate("a cat")
    assert not unrun.exists()


def test_one_among_images_made_elsewhere_is_corrupt_and_has_no_thumbnail(tmp_path: Path, unrun: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "00000.png").write_bytes(EPS)
    (theirs / "00001.png").write_bytes(encoded("PNG"))
    dataset = FakeDataset(2)
    wanted = items(dataset)
    adopt_cell(CELL, wanted, theirs, find_images(theirs, wanted, dataset.data), ProgressWriter())
    states = survey_images(CELL, wanted).states
    assert [state.status for state in states.values()] == ["corrupt", "generated"]
    assert states["images/00000"].reason == f"{theirs / '00000.png'} does not decode ({SAID})"
    [thumbnail] = (CELL.folder / THUMBNAILS).iterdir()
    assert thumbnail.stem == states["images/00001"].sha256
    assert not unrun.exists()


def test_one_in_the_place_of_a_grid(tmp_path: Path, unrun: Path) -> None:
    (tmp_path / "all.webp").write_bytes(EPS)
    wanted = items(FakeDataset(2))
    found = {item.id: Place(tmp_path / "all.webp", Grid(1, 2), n) for n, item in enumerate(wanted)}
    outcome = adopt_cell(CELL, wanted, tmp_path, found, ProgressWriter())
    assert f"all.webp does not decode ({SAID})" in outcome.message
    assert not unrun.exists()


def test_the_search_for_blank_images_tells_of_one(tmp_path: Path, unrun: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(EPS)
    command = [sys.executable, str(REPO / "utils" / "check_empty_image.py"), str(tmp_path / "images")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith(f"corrupt: a.png ({SAID})\n")
    assert not unrun.exists()


@pytest.mark.parametrize("format", FORMATS)
def test_what_a_cell_may_hold_and_what_a_server_may_answer(format: str) -> None:
    data = encoded(format)
    assert decode(data).format == format
    if format in REPLY_FORMATS:
        facts(data, REPLY_FORMATS)
    else:
        with pytest.raises(CorruptImage, match=f"its format is {format}: only PNG, JPEG, WEBP are opened"):
            facts(data, REPLY_FORMATS)


@pytest.mark.parametrize("format", ["PPM", "ICO", "SGI", "PCX", "DDS", "XBM"])
def test_every_other_format_is_named(format: str) -> None:
    buffer = io.BytesIO()
    Image.new("1" if format == "XBM" else "RGB", (16, 16)).save(buffer, format)
    with pytest.raises(CorruptImage, match=f"its format is {format}: only {TAKEN} are opened"):
        decode(buffer.getvalue())


@pytest.mark.parametrize("data", [b"", b"\1", b"no image", b"<html>", bytes(16), b"\x89PNG\r\n\x1a\n"])
def test_what_is_no_image_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(CorruptImage, match=r"^no image of a known format$"):
        decode(data)


def test_a_file_that_is_not_there_is_no_damaged_image(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        opened(tmp_path / "gone.png")


def test_a_dataset_that_opens_another_format_shows_its_pixels(tmp_path: Path) -> None:
    for name in ("a.png", "a.ppm"):
        Image.new("RGB", (4, 4), "red").save(tmp_path / name)
    with Image.open(tmp_path / "a.png") as png, Image.open(tmp_path / "a.ppm") as ppm:
        sent = outgoing([png, ppm, "make it blue"])
    assert sent[0] == ImageFile(str(tmp_path / "a.png"))
    assert [part.getpixel((0, 0)) for part in incoming(sent)[:2]] == [(255, 0, 0)] * 2


def test_nothing_but_images_py_opens_an_image() -> None:
    opening = []
    for folder in ("imageevalkit", "eval_models", "benchmarks", "infer", "utils"):
        for path in sorted((REPO / folder).rglob("*.py")):
            if "code" in path.relative_to(REPO).parts:
                continue  # authors' own, which prefetch puts there
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Attribute)
                    and node.attr == "open"
                    and "Image" in ast.unparse(node.value)
                ):
                    opening.append(str(path.relative_to(REPO)))
                if isinstance(node, ast.ImportFrom) and node.module == "PIL.Image":
                    opening += [str(path.relative_to(REPO)) for name in node.names if name.name == "open"]
    assert opening == ["imageevalkit/common/images.py"]
