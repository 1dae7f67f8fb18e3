"""Messages name malformed, missing and wrong assets, and only the pinned bytes are accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from imageevalkit import assets, registry
from imageevalkit.assets import (
    BenchmarkFiles,
    CodeAsset,
    FileAsset,
    HubAsset,
    UrlAsset,
    github,
    parse_entries,
)
from imageevalkit.common.errors import CellFailure
from tests.support import manifest

TINY = manifest.tiny_files()


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The complete data folder of the benchmark ``tiny``."""
    monkeypatch.setattr(assets, "BENCHMARKS", tmp_path)
    folder = tmp_path / "tiny" / "data"
    manifest.write_files(folder)
    return folder


def test_right_files_have_no_problems_and_their_hashes(data: Path) -> None:
    assert TINY.problems(hashes=True) == []
    assert TINY.sha256() == {path: sha256 for path, (_, sha256, _) in manifest.FACTS.items()}


def test_benchmark_without_assets_needs_nothing(data: Path) -> None:
    files = registry.benchmark_files("quicktext")
    assert (files.assets, files.problems(hashes=True), files.sha256()) == ((), [], {})
    assert registry.benchmark_files("somebody-s-own") == BenchmarkFiles("somebody-s-own", ())


def test_same_size_other_content_is_found_by_hash_only(data: Path) -> None:
    raw = bytearray((data / "prompts.jsonl").read_bytes())
    raw[3] ^= 1
    (data / "prompts.jsonl").write_bytes(raw)
    assert TINY.problems() == []
    (problem,) = TINY.problems(hashes=True)
    assert "prompts.jsonl has other content" in problem


def test_one_line_names_every_wrong_file_and_the_command(data: Path) -> None:
    (data / "more" / "questions+1.json").unlink()
    (data / "prompts.jsonl").write_bytes(b"torn")
    with pytest.raises(CellFailure) as caught:
        TINY.sha256()
    message = str(caught.value)
    assert "\n" not in message
    assert "prompts.jsonl has 4 bytes instead of 1000" in message
    assert "more/questions+1.json is missing" in message
    assert "bash eval.sh prefetch --ds_names tiny" in message


def test_hundreds_of_problems_stay_readable(data: Path) -> None:
    message = TINY.explain([f"{n}.png is missing" for n in range(500)])
    assert "4.png is missing; and 495 more (--check names them all)" in message and "5.png" not in message


def test_files_of_a_repository_at_a_commit() -> None:
    file, _ = TINY.local
    assert isinstance(file, FileAsset)
    assert file.source == f"owner/name/{manifest.COMMIT}/upstream/prompts.jsonl"
    assert BenchmarkFiles("tiny", (file, HubAsset("org/all"))).placed == [HubAsset("org/all")]


@pytest.mark.parametrize(
    ("commit", "files", "prompts", "named"),
    [
        ("main", {}, {}, "commit"),
        ("a" * 40, {"../escape": ("x", "0" * 64, 1)}, {}, "path is '../escape'"),
        ("a" * 40, {}, {"no file": "0" * 64}, "prompt is 'no file'"),
    ],
)
def test_a_malformed_pin_is_named(commit: str, files: Any, prompts: Any, named: str) -> None:
    with pytest.raises(ValueError, match=f"owner/name.*{named}"):
        github("owner/name", commit, files, prompts, licence="MIT")


HUB = {"hub": "org/name", "revision": "c" * 40, "type": "model", "patterns": ["*.json"]}


CODE = {"code": "owner/name", "commit": "c" * 40, "tree": "d" * 40, "to": "bagel", "licence": "MIT"}
URL = {"url": "https://x.example/w.pt", "path": "eval_models/weights/w.pt", "licence": "MIT"}


def test_all_kinds_of_entries_are_read() -> None:
    entries = [HUB, {"hub": "org/all"}, CODE, {**URL, "sha256": "e" * 64, "size": 7}]
    assert parse_entries(entries, "the assets of model x") == [
        HubAsset("org/name", "c" * 40, "model", ("*.json",)),
        HubAsset("org/all", None, "model", ()),
        CodeAsset("owner/name", "c" * 40, "d" * 40, "infer/custom_models/code/bagel", "MIT"),
        UrlAsset("https://x.example/w.pt", "eval_models/weights/w.pt", "MIT", "e" * 64, 7),
    ]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({**HUB, "revision": "main"}, "'revision'"),
        ("just text", "'licence'"),
        ({**CODE, "to": "../../infer"}, "'to'"),
        ({**URL, "path": "eval_models/weights/../../config.sh"}, "'path'"),
        ({key: value for key, value in URL.items() if key != "licence"}, "'licence'"),
        ({**URL, "url": "file:///etc/passwd"}, "'url'"),
    ],
)
def test_malformed_entry_is_named(wrong: Any, named: str) -> None:
    with pytest.raises(CellFailure, match="of model x, entry 1") as caught:
        parse_entries([HUB, wrong], "the assets of model x")
    assert named in str(caught.value)
