"""Every test has its own output and log folders; none inherits the user's keys or endpoints."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.image_server import KEY, ImageServer

# A shell starts a command in the background with these ignored, and every process that a test starts would inherit it.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _usual)

# The files that take longest, first: the workers of pytest-xdist then end together.
_LONGEST = (
    *("test_oneig_runs", "test_eval_sh", "test_api_runs", "test_judged_runs", "test_foreign_benchmarks"),
    *(
        "test_served_judge",
        "test_api_end_to_end",
        "test_local_launcher",
        "test_keys",
        "test_benchmark_discovery",
    ),
    *("test_env_scripts", "test_guest_code", "test_requirements", "test_native_models", "test_cell_folders"),
    *("test_adoption", "test_openai_images", "test_power_cut", "test_open_files", "test_openai_judge"),
    *("test_shared_folders", "test_dataset_entries", "test_guard", "test_guide_benchmarks", "test_ocr"),
    *("test_perceptual_encoder", "test_model_entries", "test_local_judge_runs", "test_outside_text"),
    *("test_kill_resume", "test_offline", "test_replicas", "test_transformers_judge", "test_gpu_runs"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGEEVALKIT_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("IMAGEEVALKIT_LOG", str(tmp_path / "log"))
    for name in ("API_KEY", "BASE_URL", "HF_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageServer]:
    """A running API server that the environment names as the endpoint."""
    with ImageServer() as running:
        monkeypatch.setenv("API_KEY", KEY)
        monkeypatch.setenv("BASE_URL", running.base_url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield running


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Threads only wait for each other on models this small."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
