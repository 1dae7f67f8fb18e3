"""Every test has its own output and log folders; none inherits the user's keys or endpoints."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageevalkit.store.cell import output_root
from tests.support.attention import use_plain_attention
from tests.support.image_server import KEY, ImageServer

# On models this small, threads only wait for each other, and for those of the tests beside.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts a command in the background with these ignored, and every process that a test starts would inherit it.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _usual)

# The files that take longest, first: the workers of pytest-xdist then end together.
_LONGEST = """
interruptions requeues slurm controller machines
every_benchmark watch eval_sh oneig_runs batches api_runs following_runs judged_runs perf
prompt_rewriters gate benchmark_discovery
replicas env_scripts served_judge llm2clip measurers transformers_judge foreign_benchmarks
offline native_models guest_code local_launcher kill_resume perceptual_encoder local_judge_runs power_cut keys
model_entries cell_folders ocr outside_text open_files adoption metric_zoo relations openai_judge
openai_images prefetch_models gpu_runs dataset_entries requirements api_routes following damaged_files evaluation
architecture guard gpus_of_work geneval gpu_plan guide_benchmarks contract authors_models_a
""".split()  # noqa: SIM905


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {f"test_{name}": place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGEEVALKIT_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("IMAGEEVALKIT_LOG", str(tmp_path / "log"))
    for name in ("API_KEY", "BASE_URL", "OPENAI_API_KEY", "OPENAI_BASE_URL", "HF_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def output() -> Path:
    """The output folder of the test."""
    return output_root()


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


@pytest.fixture(scope="session", autouse=True)
def plain_attention() -> None:
    """See :func:`use_plain_attention`."""
    use_plain_attention()
