"""A cluster for the tests of each file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.runs import make_cluster_checkout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes of two fake GPUs each."""
    folder = tmp_path_factory.mktemp("slurm")
    for above in folder.parents[:3]:
        above.chmod(above.stat().st_mode | 0o055)
    cluster = Cluster(folder)
    yield cluster
    cluster.stop()


@pytest.fixture(autouse=True)
def of_this_cluster(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in cluster.environ.items():
        monkeypatch.setenv(name, value)
    yield
    cluster.empty()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_cluster_checkout(tmp_path / "kit")
