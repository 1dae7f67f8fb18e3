"""``utils/prefetch.sh`` with the options of a run: which assets models and evaluators need, and one message on all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.support.hub_server import COMMIT, HubServer, hub_server
from tests.support.tree import copy_tree, lend_driver_environment, run

FILES = {
    "model_index.json": b'{"unet": ["diffusers", "U"]}',
    "unet/weights.safetensors": b"w" * 5000,
    "readme.md": b"not wanted",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = copy_tree(tmp_path)
    lend_driver_environment(root)
    (root / "benchmarks").mkdir()
    return root


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server(FILES) as server:
        yield server


def register(root: Path, name: str, task: str = "t2i", **entry: Any) -> None:
    registry = root / "infer/custom_models/load_model.py"
    setting = {"module": ".model_utils.x", "class": "X", "model_path": "", **entry}
    registry.write_text(f"{registry.read_text()}\nMODEL_SETTINGS[{task!r}][{name!r}] = {setting!r}\n")


def prefetch(
    root: Path, *options: str | Path, status: int | None = None, **environ: str
) -> CompletedProcess[str]:
    environ = {"HF_HOME": str(root / "home"), **environ}
    return run("bash", root / "utils/prefetch.sh", *options, environ=environ, status=status)


def cached(root: Path, name: str = "tiny") -> set[str]:
    folder = root / "home/hub" / f"models--org--{name}" / "snapshots" / COMMIT
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_weights_of_all_tasks_are_fetched_once_then_checked_without_a_hub(root: Path, hub: HubServer) -> None:
    weights: dict[str, Any] = {
        "model_path": "org/tiny",
        "model_kwargs": {"revision": COMMIT},
        "patterns": ["*.json", "*.safetensors"],
    }
    register(root, "tiny", **weights)
    register(root, "tiny", "edit", **weights, assets=[{"hub": "org/adapter", "patterns": ["*.md"]}])
    fetched = prefetch(root, "--model_names", "tiny", HF_ENDPOINT=hub.url, status=0)
    assert cached(root) == {"model_index.json", "unet/weights.safetensors"}
    assert cached(root, "adapter") == {"readme.md"}
    assert "[1/2] org/tiny at 0123456 for model tiny: all right" in fetched.stdout
    assert f"note: org/adapter: main is commit {COMMIT}" in fetched.stdout
    assert len(hub.downloads()) == 3
    record = json.loads((root / f"home/hub/models--org--tiny/imageevalkit/{COMMIT}.json").read_text())
    assert record["files"].keys() == hub.files.keys(), "those of other patterns are known too"

    # on the node: no hub, and nobody may look for one
    check = ["--check", "--hashes", "--model_names", "tiny"]
    assert prefetch(root, *check, HF_HUB_OFFLINE="1").returncode == 0
    blob = root / "home/hub/models--org--tiny/snapshots" / COMMIT / "unet/weights.safetensors"
    blob.resolve().write_bytes(b"v" * 5000)
    assert prefetch(root, *check[:1], *check[2:]).returncode == 0
    altered = prefetch(root, *check)
    assert altered.returncode == 1 and "unet/weights.safetensors has other content" in altered.stderr
