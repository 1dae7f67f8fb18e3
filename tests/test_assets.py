"""The asset manifest: what is malformed, missing or wrong is named, and only the pinned bytes pass."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from imageevalkit import assets
from imageevalkit.asset_manifest import CodeAsset, HubAsset, UrlAsset
from imageevalkit.cell import REPO
from imageevalkit.errors import CellFailure
from tests.support import manifest
from tests.support.tree import run


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The complete data folder of the benchmark ``tiny``."""
    monkeypatch.setattr(assets, "BENCHMARKS", tmp_path)
    folder = manifest.write_benchmark(tmp_path)
    manifest.write_files(folder)
    return folder


def test_right_files_have_no_problems_and_their_hashes(data: Path) -> None:
    assert assets.check("tiny", hashes=True) == []
    hashes = assets.data_sha256("tiny")
    assert hashes == {path: manifest.entry(path, raw)["sha256"] for path, raw in manifest.FILES.items()}


def test_benchmark_without_manifest_needs_nothing(data: Path) -> None:
    assert assets.load_manifest("quicktext") == []
    assert assets.check("quicktext", hashes=True) == []
    assert assets.data_sha256("quicktext") == {}


def test_same_size_other_content_is_found_by_hash_only(data: Path) -> None:
    raw = bytearray((data / "prompts.jsonl").read_bytes())
    raw[3] ^= 1
    (data / "prompts.jsonl").write_bytes(raw)
    assert assets.check("tiny") == []
    (problem,) = assets.check("tiny", hashes=True)
    assert "prompts.jsonl has other content" in problem


def test_one_line_names_every_wrong_file_and_the_command(data: Path) -> None:
    (data / "more" / "questions+1.json").unlink()
    (data / "prompts.jsonl").write_bytes(b"torn")
    with pytest.raises(CellFailure) as caught:
        assets.data_sha256("tiny")
    message = str(caught.value)
    assert "\n" not in message
    assert "prompts.jsonl has 4 bytes instead of 1000" in message
    assert "more/questions+1.json is missing" in message
    assert "bash utils/prefetch.sh --ds_names tiny" in message


def test_folder_in_the_place_of_a_file(data: Path) -> None:
    (data / "prompts.jsonl").unlink()
    (data / "prompts.jsonl").mkdir()
    assert assets.check("tiny") == ["prompts.jsonl is no file"]


def test_hundreds_of_problems_stay_readable(data: Path) -> None:
    message = assets.explain([f"{n}.png is missing" for n in range(500)], "tiny")
    assert "0.png" in message and "and 480 more" in message and len(message) < 1000
    assert "more (" not in assets.explain(["a is missing"], "tiny")


GOOD = manifest.entry("prompts.jsonl", b"x")
HUB = {"hub": "org/name", "revision": "c" * 40, "type": "model", "patterns": ["*.json"]}


CODE = {"code": "owner/name", "commit": "c" * 40, "tree": "d" * 40, "to": "bagel", "licence": "MIT"}
URL = {"url": "https://x.example/w.pt", "path": "eval_models/weights/w.pt", "licence": "MIT"}


def test_all_kinds_of_assets_are_read(data: Path) -> None:
    entries = [GOOD, HUB, {"hub": "org/all"}, CODE, {**URL, "sha256": "e" * 64, "size": 7}]
    (data.parent / "assets.json").write_text(json.dumps(entries))
    file, *placed = assets.load_manifest("tiny")
    assert isinstance(file, assets.FileAsset)
    assert file.source == f"owner/name/{manifest.COMMIT}/upstream/prompts.jsonl"
    assert placed == [
        HubAsset("org/name", "c" * 40, "model", ("*.json",)),
        HubAsset("org/all", None, "model", ()),
        CodeAsset("owner/name", "c" * 40, "d" * 40, "infer/custom_models/code/bagel", "MIT"),
        UrlAsset("https://x.example/w.pt", "eval_models/weights/w.pt", "MIT", "e" * 64, 7),
    ]
    assert assets.local_assets("tiny") == [file] and assets.placed_assets("tiny") == placed


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({**GOOD, "path": "../escape"}, "'path'"),
        ({**GOOD, "path": "/etc/passwd"}, "'path'"),
        ({**GOOD, "sha256": "abc"}, "'sha256'"),
        ({**GOOD, "size": "12"}, "'size'"),
        ({**GOOD, "size": True}, "'size'"),
        ({key: value for key, value in GOOD.items() if key != "licence"}, "'licence'"),
        ({**GOOD, "source": {"repo": "owner/name", "commit": "main", "path": "x"}}, "'commit'"),
        ({**HUB, "revision": "main"}, "'revision'"),
        ({**HUB, "type": "space"}, "'type'"),
        ("just text", "'licence'"),
        ({**CODE, "tree": "main"}, "'tree'"),
        ({**CODE, "to": "../../infer"}, "'to'"),
        ({**URL, "path": "config.sh"}, "'path'"),
        ({**URL, "path": "eval_models/weights/../../config.sh"}, "'path'"),
        ({**URL, "url": "file:///etc/passwd"}, "'url'"),
        ({**URL, "unpack": ["../a"]}, "'unpack'"),
    ],
)
def test_malformed_entry_is_named(data: Path, wrong: Any, named: str) -> None:
    (data.parent / "assets.json").write_text(json.dumps([GOOD, wrong]))
    with pytest.raises(CellFailure, match="entry 1") as caught:
        assets.load_manifest("tiny")
    assert named in str(caught.value)


def test_manifest_that_is_no_json(data: Path) -> None:
    (data.parent / "assets.json").write_text("[")
    with pytest.raises(CellFailure, match="no JSON"):
        assets.load_manifest("tiny")


def test_sizes_are_checked_without_pillow() -> None:
    code = "import sys; sys.modules['PIL'] = None; from imageevalkit import assets; assets.check('longtext')"
    assert run(sys.executable, "-c", code, cwd=REPO).returncode == 0


def test_manifests_in_the_tree_are_well_formed() -> None:
    manifests = sorted(assets.BENCHMARKS.glob("*/assets.json"))
    assert manifests
    for path in manifests:
        assert assets.load_manifest(path.parent.name)
