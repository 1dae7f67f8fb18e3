"""Cells that share the server of a judge: one start, one stop, and what happens when it fails."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from imageevalkit.benchmark.question import JudgeUnusable
from imageevalkit.common.errors import UserError
from imageevalkit.extras.serve import judge_server
from imageevalkit.extras.serve.judge_server import JudgeServer
from imageevalkit.extras.serve.planning import serve_command
from imageevalkit.jobs.plan import ServeOrder
from imageevalkit.judges.server import ServerAddress, ServerSettings
from tests.support.checkout import (
    FAILING,
    add_model,
    make_checkout,
    needs_driver_env,
    run_eval,
    start_eval,
)
from tests.support.fake_vllm import install, starts
from tests.support.jobs import marked
from tests.support.served_benchmark import add_served_benchmark
from tests.support.waiting import LONGEST_WAIT, wait_for


class Tree:
    """A checkout with two served benchmarks, two models, one that fails, and a conda folder with vLLM."""

    def __init__(self, folder: Path) -> None:
        self.checkout = make_checkout(folder / "checkout")
        for name in ("alpha", "beta"):
            add_served_benchmark(self.checkout, name)
        add_model(self.checkout, "failing", "Failing", FAILING)
        self.marker = str(folder)
        self.starts_file = install(folder / "conda/envs/vllm")
        self.environ = {
            "CONDA_BASE": str(folder / "conda"),
            "TEST_MARKER": self.marker,
            # the judge is on this machine, whatever proxy the user has
            "http_proxy": "http://127.0.0.1:9",
            "VLLM_API_KEY": "the user's own",
            "CUDA_VISIBLE_DEVICES": "",
        }

    @property
    def starts(self) -> list[list[str]]:
        return starts(self.starts_file)

    def run(
        self,
        models: str,
        benchmarks: str,
        *words: str,
        fake: dict[str, object] | None = None,
        status: int | None = None,
        **env: str,
    ) -> subprocess.CompletedProcess[str]:
        words = ("--model_names", models, "--ds_names", benchmarks, *words)
        environment = {**self.environ, "FAKE_VLLM": json.dumps(fake or {}), **env}
        return run_eval(self.checkout, *words, status=status, **environment)

    def state(self, cell: str) -> str:
        return str(json.loads((self.checkout / "output" / cell / "result.json").read_text())["state"])


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@needs_driver_env
def test_all_cells_share_one_server_and_it_is_gone(tree: Tree) -> None:
    """Cells without images fail by themselves. With nothing left to ask, no server starts."""
    run = tree.run("reference-blank;failing;reference-noise", "alpha;beta", fake={"loads": 0.8}, status=1)
    for benchmark in ("alpha", "beta"):
        assert f"evaluate failing/{benchmark}: not started: its generate stage failed" in run.stderr
        for model in ("reference-blank", "reference-noise"):
            assert tree.state(f"{model}/{benchmark}") == "complete", run.stdout + run.stderr
            [log] = (tree.checkout / "log" / model).glob(f"{benchmark}_evaluate_*")
            assert "=== complete" in log.read_text()
    assert "illegal memory access" in run.stdout
    assert "Traceback" not in run.stdout + run.stderr
    [arguments] = tree.starts
    assert arguments[:4] == ["serve", "org/judge", "--host", "127.0.0.1"]
    assert not marked(tree.marker)
    [progress] = (tree.checkout / "log/runs").glob("*/progress/evaluate_*")
    notes = [json.loads(line)["note"] for line in progress.read_text().splitlines()]
    assert "loading judge vllm:org/judge … 0 s" in notes
    assert notes[-1] == ""

    tree.run("reference-blank", "alpha;beta", "--infer", "false", status=0)
    assert len(tree.starts) == 1


@needs_driver_env
def test_server_that_cannot_start_fails_each_cell_with_its_reason(tree: Tree) -> None:
    run = tree.run("reference-blank", "alpha;beta", fake={"fails": "memory"}, status=1)
    reason = (
        "judge vllm:org/judge could not start (exit status 1): torch.OutOfMemoryError: CUDA out of memory"
    )
    for benchmark in ("alpha", "beta"):
        [line] = [
            line for line in run.stderr.splitlines() if f"evaluate reference-blank/{benchmark}: " in line
        ]
        assert reason in line
        assert "log log/judge_vllm_org__judge_" in line
    assert len(tree.starts) == 1
    assert not marked(tree.marker)


@needs_driver_env
def test_server_that_dies_is_started_again_for_the_same_cell_and_the_next(tree: Tree) -> None:
    # each life answers two of the three questions of a cell: alpha needs two, and beta begins in the second
    quick = ("--judge_kwargs", "backoff=0.1")
    tree.run("reference-blank", "alpha;beta", *quick, fake={"dies_after": 2}, status=0)
    ports = [arguments[arguments.index("--port") + 1] for arguments in tree.starts]
    assert len(ports) == 3
    assert len(set(ports)) == 1


@needs_driver_env
def test_killed_run_leaves_no_server(tree: Tree) -> None:
    """Though it does not heed SIGTERM."""
    words = ["--model_names", "reference-blank", "--ds_names", "alpha"]
    told = json.dumps({"deaf": True, "loads": 600})
    run = start_eval(tree.checkout, *words, **tree.environ, FAKE_VLLM=told)
    wait_for(lambda: any("sleep(600)" in name for name in _commands(tree.marker)))
    run.kill()
    run.wait(LONGEST_WAIT)
    wait_for(lambda: not marked(tree.marker))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--hf_token=hf_hunter22", "HF_TOKEN"),
        ("--dtype half --api-k hunter22", "leave it out"),
        ("--dtype 'half --api-key hunter22", "No closing quotation"),
    ],
)
def test_secrets_among_the_flags_are_refused_without_repeating_them(flags: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        ServerSettings(serve_args=flags)
    assert says in str(caught.value)
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "decisive"),
    [
        (
            "--gpu-memory-utilization 0.8 --download-dir /big --max-num-seqs=64 --max_num_batched_tokens 8192",
            "",
        ),
        ("--data-parallel-size 2 --data-parallel-size-local 1 --compilation-config.level 3 -O3", ""),
        (
            "--load-format dummy -tp 2 --mm-processor-kwargs.max_pixels 9",
            "--load-format dummy --mm-processor-kwargs.max_pixels 9",
        ),
    ],
)
def test_flags_on_speed_memory_and_place_do_not_make_another_judge(flags: str, decisive: str) -> None:
    settings = ServerSettings(serve_args=flags)
    assert settings.decisive == ({"serve_args": decisive} if decisive else {})
    assert settings.further_flags() == shlex.split(flags), "all of them are given to the server"


def test_settings_become_flags() -> None:
    settings = ServerSettings(revision="abc", serve_args="--dtype 'float 16' --max-logprobs 5")
    command = serve_command(settings, Path("/env/bin/vllm"), "/models/judge", 2)
    assert command[:3] == ["/env/bin/vllm", "serve", "/models/judge"]
    given = dict(zip(command[3::2], command[4::2], strict=True))
    assert given == {
        "--host": "127.0.0.1",
        "--served-model-name": "/models/judge",
        "--generation-config": "auto",
        "--limit-mm-per-prompt": '{"video": 0}',
        "--uvicorn-log-level": "warning",
        "--tensor-parallel-size": "2",
        "--max-model-len": "auto",
        "--revision": "abc",
        "--dtype": "float 16",
        "--max-logprobs": "5",  # the user's is the last, and counts
    }
    assert "--max-model-len" not in serve_command(ServerSettings(), Path("vllm"), "org/judge", 0)


# ---- the server alone ----------------------------------------------------------------------------------------


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Callable[..., JudgeServer]]:
    lifeline, end = os.pipe()
    made = []

    def make(timeout: float = 20.0, **fake: object) -> JudgeServer:
        install(tmp_path / "env")
        command = serve_command(ServerSettings(), tmp_path / "env/bin/vllm", "org/judge", 0)
        environment = {**os.environ, "FAKE_VLLM": json.dumps(fake), "TEST_MARKER": str(tmp_path)}
        log, address = str(tmp_path / "judge.log"), str(tmp_path / "address")
        order = ServeOrder("judge", "org/judge", command, [], 0, timeout, log, address)
        made.append(JudgeServer(order, environment, lifeline))
        return made[-1]

    yield make
    for server in made:
        server.stop()
    os.close(end)
    os.close(lifeline)


def _address(folder: Path, server: JudgeServer) -> str:
    """Returns the address of ``server``, or the error that its readers get."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ServerAddress(folder / "address").wait)
        _tend(server, asked.done)
        return asked.result()


def _tend(server: JudgeServer, until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONGEST_WAIT
    while not until():
        assert time.monotonic() < deadline
        server.tend()
        time.sleep(0.05)


def test_a_taken_port_is_replaced(tmp_path: Path, make_server: Callable[..., JudgeServer]) -> None:
    server = make_server(fails="port", fails_times=2)
    address = _address(tmp_path, server)
    ports = starts_ports(tmp_path)
    assert len(set(ports)) == 3
    assert address == f"http://127.0.0.1:{ports[-1]}/v1"
    server.stop()
    assert not marked(str(tmp_path))


class _Stranger(BaseHTTPRequestHandler):
    """Says yes to whatever it is asked, and serves another model."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "org/other"}]}' if self.path == "/v1/models" else b"fine")

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_somebody_elses_server_on_our_port_is_not_believed(
    tmp_path: Path,
    make_server: Callable[..., JudgeServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stranger = ThreadingHTTPServer(("127.0.0.1", 0), _Stranger)
    threading.Thread(target=stranger.serve_forever, args=(0.01,), daemon=True).start()
    free = judge_server._free_port()
    ports = [stranger.server_port, free]
    monkeypatch.setattr(judge_server, "_free_port", lambda: ports.pop(0))
    # ours takes its time before it sees that the port is taken
    server = make_server(loads=0.5, binds_late=1.5)
    try:
        assert _address(tmp_path, server) == f"http://127.0.0.1:{free}/v1"
    finally:
        stranger.shutdown()
        stranger.server_close()
    server.stop()
    assert not marked(str(tmp_path))


def test_nobody_on_our_port_sends_us_elsewhere() -> None:
    paths: list[str] = []

    class Redirecting(_Stranger):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(302)
            self.send_header("Location", "file:///etc/hostname")
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Redirecting) as stranger:
        threading.Thread(target=stranger.serve_forever, args=(0.01,), daemon=True).start()
        assert judge_server._answers(stranger.server_port, "org/judge") is None
        stranger.shutdown()
    assert paths == ["/health"]


def starts_ports(folder: Path) -> list[str]:
    return [words[words.index("--port") + 1] for words in starts(folder / "env/bin/starts.jsonl")]


def test_loading_has_a_bound(tmp_path: Path, make_server: Callable[..., JudgeServer]) -> None:
    server = make_server(timeout=0.6, loads=600, deaf=True)
    with pytest.raises(JudgeUnusable, match=r"was not ready after 0\.6 s \(start_timeout\)"):
        _address(tmp_path, server)
    server.next_cell(makes_room=False)
    ServerAddress(tmp_path / "address").begin_cell()
    with pytest.raises(JudgeUnusable, match="was not ready"):
        _address(tmp_path, server)
    # a busy machine may end the process before it has written that it started
    assert (tmp_path / "judge.log").read_text().count("server of judge judge: ") == 1
    assert not marked(str(tmp_path))


def test_a_server_that_keeps_dying_is_given_up_for_its_cell(
    tmp_path: Path, make_server: Callable[..., JudgeServer]
) -> None:
    server, address = make_server(dies_after=0), tmp_path / "address"
    for lives in (1, 2):
        url = _address(tmp_path, server)
        assert len(starts(tmp_path / "env/bin/starts.jsonl")) == lives
        with pytest.raises(OSError):
            urllib.request.urlopen(f"{url}/chat/completions", b'{"model": "org/judge"}')
        _tend(server, lambda: not address.exists() or address.read_text().startswith("died"))
    assert ServerAddress(address).problem(url) == (
        "the server of judge judge died 2 times (exit status 1): RuntimeError: CUDA error: an illegal memory access; "
        f"log {tmp_path / 'judge.log'}"
    )
    server.next_cell(makes_room=False)
    assert server.tend() == "" and ServerAddress(address).given_up, "the cell that killed it gets no other"
    ServerAddress(address).begin_cell()
    _address(tmp_path, server)
    assert len(starts(tmp_path / "env/bin/starts.jsonl")) == 3


def test_a_server_makes_room_for_a_cell_with_models_of_its_own(
    tmp_path: Path, make_server: Callable[..., JudgeServer]
) -> None:
    server, address = make_server(), tmp_path / "address"
    _address(tmp_path, server)
    server.next_cell(makes_room=False)
    assert len(marked(str(tmp_path))) > 0, "another cell without any goes on with it"
    server.next_cell(makes_room=True)
    assert not marked(str(tmp_path))
    assert server.tend() == "", "it does not start before somebody asks"
    assert not address.exists()
    assert not marked(str(tmp_path))
    _address(tmp_path, server)
    assert len(starts(tmp_path / "env/bin/starts.jsonl")) == 2


def _commands(marker: str) -> list[str]:
    found = []
    for pid in marked(marker):
        with contextlib.suppress(OSError):
            found.append((Path("/proc") / str(pid) / "cmdline").read_text())
    return found
