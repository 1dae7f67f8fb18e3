"""``utils/prefetch.sh``: from a mirror folder, an HTTP server and a hub, and when one of them is wrong."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from imageevalkit.assets.data import fetch
from tests.support import manifest
from tests.support.hub_server import COMMIT, hub_server
from tests.support.tree import copy_tree, lend_driver_environment, run
from tests.support.web import web_server


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of the tree with one benchmark, ``tiny``, whose files are not there yet."""
    root = copy_tree(tmp_path)
    lend_driver_environment(root)
    manifest.write_benchmark(root / "benchmarks")
    return root


@pytest.fixture
def data(root: Path) -> Path:
    return root / "benchmarks" / "tiny" / "data"


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    return manifest.write_mirror(tmp_path / "mirror")


def prefetch(
    root: Path, *options: str | Path, status: int | None = None, **environ: str
) -> CompletedProcess[str]:
    return run("bash", root / "utils" / "prefetch.sh", *options, environ=environ, status=status)


def content(folder: Path) -> dict[str, bytes]:
    """Every file below ``folder``, left-over temporary files included."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_mirror_gives_the_files_and_a_second_run_changes_nothing(
    root: Path, data: Path, mirror: Path
) -> None:
    first = prefetch(root, "--mirror", mirror, status=0)
    assert content(data) == manifest.FILES
    assert modes(data) == {usual_mode(root)}
    assert first.stdout.startswith(
        "tiny: 0 files were right already, 2 fetched, 0 problems; licence: Apache-2.0\n"
    )
    times = {path: (data / path).stat().st_mtime_ns for path in manifest.FILES}
    second = prefetch(root, "--mirror", mirror, "--ds_names", " tiny ; tiny;")
    assert second.returncode == 0 and "2 files were right already" in second.stdout
    assert times == {path: (data / path).stat().st_mtime_ns for path in manifest.FILES}


def test_missing_tampered_and_truncated_are_named_together_then_mended(
    root: Path, data: Path, mirror: Path
) -> None:
    manifest.write_benchmark(root / "benchmarks", "other")
    manifest.write_files(data)
    (data / "prompts.jsonl").write_bytes(manifest.FILES["prompts.jsonl"][:-7])
    (data / "more/questions+1.json").write_bytes(b"[1, 2, 4]\n")
    report = prefetch(root, "--check", status=1)
    for named in (
        "tiny: prompts.jsonl has 993 bytes instead of 1000",
        "tiny: more/questions+1.json has other content",
        "other: prompts.jsonl is missing",
        "other: more/questions+1.json is missing",
    ):
        assert report.stderr.count(named) == 1, report.stderr
    assert report.stderr.count("error:") == 1

    assert prefetch(root, "--mirror", mirror).returncode == 0
    assert content(data) == manifest.FILES


def test_wrong_mirror_replaces_nothing(root: Path, data: Path, mirror: Path) -> None:
    source = mirror / "owner/name" / manifest.COMMIT / "upstream"
    (source / "prompts.jsonl").write_bytes(b"tampered")
    (source / "more/questions+1.json").unlink()
    data.mkdir()
    (data / "prompts.jsonl").write_bytes(b"old")
    result = prefetch(root, "--mirror", mirror, status=1)
    assert "2 assets are missing or wrong" in result.stderr
    assert "prompts.jsonl" in result.stderr and "pinned bytes" in result.stderr
    assert "questions+1.json: No such file" in result.stderr
    assert "Traceback" not in result.stderr
    assert content(data) == {"prompts.jsonl": b"old"}


def modes(folder: Path) -> set[int]:
    """The permissions of every file below ``folder``."""
    return {stat.S_IMODE(p.stat().st_mode) for p in folder.rglob("*") if p.is_file()}


def usual_mode(folder: Path) -> int:
    """The permissions that the umask gives a new file."""
    probe = folder / "probe"
    probe.touch()
    return stat.S_IMODE(probe.stat().st_mode)


def fetch_from(url: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the failures of a download from the server at ``url`` in place of GitHub."""
    monkeypatch.setattr("imageevalkit.assets.data.GITHUB", url)
    monkeypatch.setattr("imageevalkit.assets.BENCHMARKS", root / "benchmarks")
    return fetch(manifest.tiny_files(), mirror=None)


def test_download_from_a_server_laid_out_like_github(
    root: Path, data: Path, mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with web_server(mirror) as url:
        assert fetch_from(url, root, monkeypatch) == []
    assert content(data) == manifest.FILES
    assert modes(data) == {usual_mode(root)}


def test_hub_assets(root: Path, data: Path, tmp_path: Path) -> None:
    file = data.parent / "benchmark.py"
    hub = f'assets = (HubAsset("org/tiny", "{COMMIT}", "dataset", ("*.json",)),)'
    code = re.sub(r"assets = .*", hub, file.read_text().replace("import github", "import HubAsset"))
    file.write_text(code)
    home = tmp_path / "home"
    before = prefetch(root, "--check", HF_HOME=str(home))
    assert before.returncode == 1 and "org/tiny" in before.stderr and "cache" in before.stderr
    with hub_server({"a.json": b"{}", "weights.bin": b"not wanted"}) as server:
        prefetch(root, HF_HOME=str(home), HF_ENDPOINT=server.url, status=0)
    snapshot = home / "hub" / "datasets--org--tiny" / "snapshots" / COMMIT
    assert content(snapshot) == {"a.json": b"{}"}
    # the server is gone: what was fetched is enough
    assert prefetch(root, "--check", HF_HOME=str(home)).returncode == 0
    (snapshot / "a.json").unlink()
    assert prefetch(root, "--check", HF_HOME=str(home)).returncode == 1
