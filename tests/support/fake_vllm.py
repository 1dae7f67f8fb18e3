"""A stand-in for ``vllm``, which needs a GPU: its command line, its log, its endpoints and its bad habits.

:func:`install` writes this file as ``bin/vllm`` of an environment. What it shall do comes from FAKE_VLLM, a JSON
object in the environment: ``loads`` (seconds until healthy), ``binds_late`` (seconds until it listens), ``fails``
("memory" or "port": how it dies before that), ``fails_times`` (only the first so many starts), ``dies_after``
(completions; -1: never), ``deaf`` (to SIGTERM) and ``template`` (how its chat template ends a prompt). Each start
leaves its arguments in ``starts.jsonl`` beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_MEMORY = """\
(EngineCore_DP0 pid=7) INFO 11-21 10:00:00 [gpu_model_runner.py:2602] Starting to load model org/judge...
(EngineCore_DP0 pid=7) ERROR 11-21 10:00:09 [core.py:708] EngineCore failed to start.
(EngineCore_DP0 pid=7) ERROR 11-21 10:00:09 [core.py:708] Traceback (most recent call last):
(EngineCore_DP0 pid=7) ERROR 11-21 10:00:09 [core.py:708] torch.OutOfMemoryError: CUDA out of memory.
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
_PORT = "(APIServer pid=1) OSError: [Errno 98] Address already in use\n"


def install(environment: Path) -> Path:
    """Make ``environment`` one with vLLM in it, and return its list of starts (which is not there yet)."""
    program = environment / "bin" / "vllm"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!{sys.executable}\n{Path(__file__).read_text()}")
    program.chmod(0o755)
    return program.with_name("starts.jsonl")


def starts(file: Path) -> list[list[str]]:
    """The arguments of each start so far."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vllm serve")
    parser.add_argument("serve", choices=["serve"])
    parser.add_argument("model")
    for name in ("host", "served-model-name", "generation-config", "uvicorn-log-level", "max-model-len"):
        parser.add_argument(f"--{name}")
    for name in ("revision", "dtype"):
        parser.add_argument(f"--{name}")
    for name in ("port", "max-logprobs", "tensor-parallel-size"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--limit-mm-per-prompt", type=json.loads)
    return parser


class _Endpoint(BaseHTTPRequestHandler):
    healthy_at = 0.0
    model = ""
    dies_after = -1
    answered = 0
    template = ""
    turn = threading.Lock()

    def do_GET(self) -> None:
        healthy = time.monotonic() >= self.healthy_at
        if self.path == "/v1/models":
            self._reply(200, {"data": [{"id": self.model}]})
        else:
            self._reply(200 if self.path == "/health" and healthy else 503, {})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if os.environ.get("VLLM_API_KEY"):
            self._reply(401, {"error": "Unauthorized"})
        elif asked["model"] != self.model:
            self._reply(404, {"error": f"The model `{asked['model']}` does not exist."})
        elif self.path == "/tokenize":
            self._reply(200, {"tokens": [1, 2], "count": 2, "max_model_len": 4096})
        elif self.path == "/detokenize":
            self._reply(200, {"prompt": self.template})
        else:
            with self.turn:
                self._answer(asked)

    def _answer(self, asked: dict[str, Any]) -> None:
        if _Endpoint.answered == self.dies_after:
            sys.stderr.write("(EngineCore_DP0 pid=7) RuntimeError: CUDA error: an illegal memory access\n")
            os._exit(1)
        _Endpoint.answered += 1
        content = f"Score: {len(str(asked['messages'])) % 2}"
        choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        self._reply(200, {"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 3}})

    def _reply(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def main() -> None:
    """``vllm serve MODEL …``"""
    told = json.loads(os.environ.get("FAKE_VLLM", "{}"))
    with Path(__file__).with_name("starts.jsonl").open("a+") as file:
        file.write(json.dumps(sys.argv[1:]) + "\n")
        file.seek(0)
        nth = len(file.readlines())
    args = _parser().parse_args()
    if "fails" in told and nth <= told.get("fails_times", nth):
        sys.exit({"memory": _MEMORY, "port": _PORT}[told["fails"]])
    if told.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # the engine: vLLM's survives a server that is killed
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    _Endpoint.healthy_at = time.monotonic() + told.get("loads", 0.0)
    _Endpoint.model = args.served_model_name
    _Endpoint.template = told.get("template", "")
    _Endpoint.dies_after = told.get("dies_after", -1)
    time.sleep(told.get("binds_late", 0.0))
    ThreadingHTTPServer((args.host, args.port), _Endpoint).serve_forever()


if __name__ == "__main__":
    main()
