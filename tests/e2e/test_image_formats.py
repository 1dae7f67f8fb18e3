"""Images are opened by the name of their format: of the others, EPS makes Pillow run Ghostscript on what it is sent."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import EpsImagePlugin, Image

from custom_models.model_utils.openai_images import OpenAIImagesT2I
from imageevalkit.benchmark.question import Encoding, Picture
from imageevalkit.common.images import FORMATS, REPLY_FORMATS, CorruptImage, decode, facts, opened
from imageevalkit.generate.model import ItemFailed
from imageevalkit.generate.worker import ImageFile, incoming
from imageevalkit.judges.api import open_picture, sent_picture
from tests.support.image_replies import EPS
from tests.support.image_server import ImageServer

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


def test_formats_that_a_cell_may_hold_that_a_server_may_answer_and_that_nobody_opens() -> None:
    for format in FORMATS:
        assert decode(encoded(format)).format == format
    facts(encoded("WEBP"), REPLY_FORMATS)
    with pytest.raises(CorruptImage, match="its format is GIF: only PNG, JPEG, WEBP are opened"):
        facts(encoded("GIF"), REPLY_FORMATS)
    with pytest.raises(CorruptImage, match=f"its format is PPM: only {TAKEN} are opened"):
        decode(encoded("PPM"))
    for data in (b"", b"<html>", b"\x89PNG\r\n\x1a\n"):
        with pytest.raises(CorruptImage, match=r"^no image of a known format$"):
            decode(data)
