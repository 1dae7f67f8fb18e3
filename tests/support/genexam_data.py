"""The data of GenExam from the mirror, with drawn images in place of the references that nobody keeps."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.genexam.benchmark import GenExam
from imageevalkit import assets
from imageevalkit.assets import FileAsset, asset_list
from tests.support.mirror import shared_mirror, use_official_data

_LISTED = Path(__file__).parents[2] / "benchmarks/genexam/assets.txt"


def write(folder: Path) -> None:
    """Writes the drawn images below ``folder`` of the benchmark, and a list of assets with their hashes."""
    mirror, buffer = shared_mirror(), io.BytesIO()
    Image.new("RGB", (900, 333), "teal").save(buffer, "PNG")
    drawn, text = buffer.getvalue(), _LISTED.read_text(encoding="utf-8")
    line = f"{hashlib.sha256(drawn).hexdigest()} {len(drawn)}"
    for asset in asset_list(_LISTED):
        if isinstance(asset, FileAsset) and not (mirror / asset.source).exists():
            target = folder / "data" / asset.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(drawn)
            text = text.replace(f"{asset.digest} {asset.size} {asset.path}\n", f"{line} {asset.path}\n")
    (folder / "assets.txt").write_text(text, encoding="utf-8")


def use_data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the benchmark find its data below ``folder``; skips the test without a mirror."""
    monkeypatch.setattr(assets, "BENCHMARKS", folder)
    write(folder / "genexam")
    monkeypatch.setattr(GenExam, "assets", asset_list(folder / "genexam/assets.txt"))
    use_official_data("genexam", folder, monkeypatch)
