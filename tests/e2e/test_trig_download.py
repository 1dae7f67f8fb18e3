"""TRIG's dataset is downloaded from the hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from imageevalkit.assets import TableAsset
from imageevalkit.store.cell import REPO
from tests.support import trig_data
from tests.support.hub_server import COMMIT as HUB_COMMIT
from tests.support.hub_server import hub_server

DOWNLOAD = """
import sys
from pathlib import Path
from imageevalkit.assets import TableAsset
from imageevalkit.assets.data import fetch_table
asset = TableAsset("rows.jsonl", "org/trig", ("*image_editing*.parquet",), "MIT")
fetch_table(asset, Path(sys.argv[1]), download_allowed=True)
"""


def test_the_dataset_is_downloaded_from_the_hub(tmp_path: Path) -> None:
    """In a process of its own: the hub's library reads its address when it is imported."""
    pytest.importorskip("pyarrow", reason="no pyarrow, which reads Parquet: requirements/parquet.txt")
    for task in ("p2p", "s2p"):
        trig_data.write_hub_cache(tmp_path / "there", task, 1)
    folder = next((tmp_path / "there").rglob("snapshots")) / trig_data.COMMIT
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.parquet")}
    with hub_server(files) as hub:
        paths = os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": paths}
        command = [sys.executable, "-c", DOWNLOAD, str(tmp_path / "data")]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert len(hub.downloads()) == 2, "of its split alone"
    assert len((tmp_path / "data/rows.jsonl").read_text().splitlines()) == 45
    record = json.loads(TableAsset("rows.jsonl", "org/trig", (), "MIT").record(tmp_path / "data").read_text())
    assert record["commit"] == HUB_COMMIT and f"org/trig at {HUB_COMMIT[:7]}" in done.stdout
