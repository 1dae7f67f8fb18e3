"""The data of T2I-CoReBench from the mirror, and a stand-in for the judge's instruction, which nobody keeps."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from benchmarks.t2icorebench.benchmark import CoReBench
from imageevalkit import assets
from imageevalkit.assets import PROMPTS, FileAsset
from tests.support.mirror import shared_mirror

KEY = "evaluate.py::TEMPLATE"
TEMPLATE = "\nLook at the image and answer the question with yes or no alone.\n"
_SHA256 = hashlib.sha256(TEMPLATE.encode()).hexdigest()


def use_data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the benchmark find its data below ``folder``, and the stand-in; skips the test without a mirror."""
    mirror = shared_mirror()
    monkeypatch.setattr(assets, "BENCHMARKS", folder)
    data, known = assets.data_folder(CoReBench.name), []
    for asset in CoReBench.assets:
        if isinstance(asset, FileAsset):
            target = data / asset.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(mirror / asset.source)
        known.append(asset if isinstance(asset, FileAsset) else asset._replace(texts={KEY: _SHA256}))
    monkeypatch.setattr(CoReBench, "assets", known)
    _write(data)


def write_template(folder: Path) -> None:
    """Writes the stand-in below ``folder`` of the benchmark, and its hash into the list of assets."""
    _write(folder / "data")
    listed = folder / "assets.txt"
    text, count = re.subn(
        rf"^\w+ {re.escape(KEY)}$", f"{_SHA256} {KEY}", listed.read_text(), flags=re.MULTILINE
    )
    assert count == 1
    listed.write_text(text, encoding="utf-8")


def _write(data: Path) -> None:
    path = data / PROMPTS
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({KEY: TEMPLATE}), encoding="utf-8")
