"""--judge_repeats through eval.sh on the data of WISE and GenEval 2: noise, a planted drift, a run that is killed."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from imageevalkit.judges.probes import PROBES
from tests.support.checkout import make_checkout, needs_driver_env, run_eval
from tests.support.image_server import Fault, Handler, Received
from tests.support.judge_replies import completion, judged
from tests.support.judge_server import JudgeServer
from tests.support.mirror import shared_mirror

pytestmark = needs_driver_env

BENCHMARKS = ("wise", "geneval2")
LIMIT, REPEATS = 60, 60


class Turning(JudgeServer):
    """A judge that turns one answer in ``one_in``, always the same ones; 0: none."""

    one_in = 0

    @property
    def faults(self) -> Mapping[str, Fault]:
        return {**super().faults, "ok": self._answer}

    def _answer(self, handler: Handler, request: Received) -> None:
        key = hashlib.sha256(f"{request.prompt}{request.images}".encode()).digest()
        reply = judged(request)
        if self.one_in and int.from_bytes(key[:4], "big") % self.one_in == 0:
            message, logprobs = reply["choices"][0]["message"], reply["choices"][0]["logprobs"]
            if logprobs:
                for entry in logprobs["content"][0]["top_logprobs"][:-1]:
                    entry["token"] = f"not {entry['token']}"
                    entry["bytes"] = list(entry["token"].encode())
                logprobs["content"][0] |= logprobs["content"][0]["top_logprobs"][0]
            else:
                said = message["content"].translate(str.maketrans("12345", "54321"))
                reply = completion(request, said.replace("3", "0"))
        handler.send_json(200, reply)


@dataclass
class Judged:
    """Runs in one checkout whose judge is ``server``."""

    checkout: Path
    server: Turning

    def words(
        self, *more: str, benchmarks: tuple[str, ...] = BENCHMARKS, limit: int = LIMIT, kwargs: str = ""
    ) -> list[str]:
        kwargs = f"base_url={self.server.base_url},backoff=0.05,max_outage=2{f',{kwargs}' if kwargs else ''}"
        return [
            *["--model_names", "reference-typeset", "--ds_names", ";".join(benchmarks)],
            *["--custom_model_kwargses", "width=64,height=64", "--judges", "geneval2=openai:qwen3-vl-8b"],
            *["--judge_kwargs", kwargs, "--num_workers", "8", "--limit", str(limit), *more],
        ]

    def run(self, *more: str, **scope: Any) -> subprocess.CompletedProcess[str]:
        return run_eval(self.checkout, *self.words(*more, **scope), API_KEY="sk-judge-4711-key")

    def folder(self, benchmark: str) -> Path:
        return self.checkout / "output/reference-typeset" / benchmark

    def result(self, benchmark: str) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.folder(benchmark) / "result.json").read_text())
        return loaded

    def repeats(self, benchmark: str) -> list[dict[str, Any]]:
        path = self.folder(benchmark) / "repeats.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def asked(self) -> int:
        count = len(self.server.requests)
        self.server.requests.clear()
        return count


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the benchmarks' data."""
    checkout = make_checkout(tmp_path_factory.mktemp("noise") / "kit")
    words = ["--eval", "false", "--ds_names", ";".join(BENCHMARKS), "--mirror", str(shared_mirror())]
    subprocess.run(["bash", "utils/prefetch.sh", *words], cwd=checkout, check=True, capture_output=True)
    return checkout


@pytest.fixture
def judged_runs(prepared: Path) -> Iterator[Judged]:
    """Runs in a checkout without results: answers of another test would not be asked for again."""
    shutil.rmtree(prepared / "output", ignore_errors=True)
    with Turning() as server:
        yield Judged(prepared, server)


def test_a_planted_drift_is_found_and_stands_beside_every_score(judged_runs: Judged) -> None:
    one = judged_runs
    plan = one.run("--judge_repeats", str(REPEATS), "--dry_run")
    assert plan.stdout.count(f"{REPEATS} asked again, and {len(PROBES)} probes") == len(BENCHMARKS)
    first = one.run("--judge_repeats", str(REPEATS))
    assert first.returncode == 0, first.stdout + first.stderr
    questions = sum(
        len((one.folder(name) / "judgements.jsonl").read_text().splitlines()) for name in BENCHMARKS
    )
    # two judges, each with 18 probes that are asked twice when nothing is known of it
    assert one.asked() == questions + len(BENCHMARKS) * (REPEATS + 2 * len(PROBES))
    for name in BENCHMARKS:
        noise = one.result(name)["noise"]
        assert (noise["repeated"], noise["changed"], noise["repeats"]) == (REPEATS, 0, None)
        assert set(noise["standard_errors"].values()) == {0.0}

    one.server.one_in = 10
    ended = one.run("--judge_repeats", str(REPEATS))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    page = (one.checkout / "output/report.html").read_text()
    for name in BENCHMARKS:
        drift = one.result(name)["noise"]["repeats"]
        assert drift["found"], (name, drift)
        assert 0 < len(drift["changed"]) < REPEATS / 3
        told = f"the judge has drifted: {len(drift['changed'])} of {REPEATS} questions"
        assert told in ended.stdout
        assert told in page


def test_money_is_for_what_counts_in_all_cells_first(judged_runs: Judged) -> None:
    """Two cells, whose repeats and probes would take more than is left."""
    one = judged_runs
    price = "price={'text_input':1.0,'text_output':0.0}"
    plain = one.run(limit=12, kwargs=price)
    assert plain.returncode == 0, plain.stdout + plain.stderr
    paid = sum(one.result(name)["provenance"]["judge_usd"] for name in BENCHMARKS)
    counted = one.asked()

    host = one.server.base_url.replace("127.0.0.1", "localhost")
    words = one.words("--dry_run", benchmarks=("wise",), limit=12, kwargs=price)
    elsewhere = [word.replace(one.server.base_url, host) for word in words]
    planned = run_eval(one.checkout, *elsewhere, API_KEY="sk-judge-4711-key")
    told = "12 answers reused from 127.0.0.1, and this run asks localhost: --judge_repeats 100 asks some of them again"
    assert told in planned.stdout, planned.stdout + planned.stderr

    for name in BENCHMARKS:
        for path in one.folder(name).glob("*.json*"):
            if path.stem in ("judgements", "result", "scores"):
                path.unlink()
    bound = ["--max_cost", f"{1.3 * paid:.6f}", "--num_workers", "2"]
    ended = one.run("--judge_repeats", "240", *bound, limit=12, kwargs=price)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert all(one.result(name)["coverage"]["judged"] == 12 for name in BENCHMARKS)
    asked = [request.prompt for request in one.server.requests]
    assert counted < len(asked) < 2 * counted
    log = "".join(path.read_text() for path in (one.checkout / "log").glob("*/*_repeat_*.log"))
    assert "not all was asked again: --max_cost" in log
    line = r"repeat:reference-typeset/\w+: \w+: .*judge noise: 0 of \d+ repeated answers changed, .* requests, \$"
    assert re.search(line, ended.stdout), ended.stdout
    spent = sum(one.result(name)["provenance"]["judge_usd"] for name in BENCHMARKS)
    assert paid < spent <= 1.3 * paid
