"""The English reader of PaddleOCR, with a stand-in for its package: settings, weights, and images."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image

from eval_models.paddle_ocr import PaddleOCR
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.images import CorruptImage


def test_it_reads_with_the_official_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[dict[str, Any]]()

    class Engine:
        def __init__(self, **settings: Any) -> None:
            made.append(settings)

        def ocr(self, data: bytes, cls: bool) -> list[Any]:
            assert cls
            return [[[[0, 0], ("OPEN 24", 0.9)], [[0, 9], ("sale", 0.6)]], None]

    package = ModuleType("paddleocr")
    vars(package)["PaddleOCR"] = Engine
    monkeypatch.setitem(sys.modules, "paddleocr", package)
    path, folder = tmp_path / "a.png", tmp_path / "weights"
    Image.new("RGB", (8, 8)).save(path)
    reader = PaddleOCR({"paddleocr_en": str(folder)})
    files = [
        folder / part / f"inference.{end}"
        for part in ("det", "rec", "cls")
        for end in ("pdmodel", "pdiparams")
    ]
    for file in files[:-1]:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"w")
    with pytest.raises(CellFailure, match=r"lacks cls/inference\.pdiparams; docs"):
        reader.read(path.read_bytes())
    assert not made, "the package would download it"
    files[-1].write_bytes(b"w")
    assert reader.read(path.read_bytes()) == "OPEN 24\nsale"
    folders = {f"{part}_model_dir": str(folder / part) for part in ("det", "rec", "cls")}
    assert made == [{"lang": "en", "use_angle_cls": True, "use_gpu": False, "show_log": False, **folders}]
    with pytest.raises(CorruptImage):
        reader.read(path.read_bytes()[:60])
