"""WISE and GenEval 2 through eval.sh with a real judge server: nothing lost or asked twice."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import make_checkout, needs_driver_env, run_command, run_eval, start_eval
from tests.support.image_server import random_faults
from tests.support.jobs import marked
from tests.support.judge_server import JudgeServer
from tests.support.mirror import shared_mirror
from tests.support.waiting import wait_for

pytestmark = needs_driver_env

BENCHMARKS = ("wise", "wise-verified", "geneval2")
NOISE = ("wise", "geneval2")
LIMIT = 24
JUDGES = "wise-verified=openai:qwen3.5-35b-a3b;geneval2=openai:qwen3-vl-8b"


@dataclass
class Judged:
    """Runs in one checkout whose judge is ``server``."""

    checkout: Path
    server: JudgeServer
    kwargs: str = "backoff=0.05,max_outage=2"
    environ: dict[str, str] = field(default_factory=lambda: {"API_KEY": "sk-judge-4711-key"})

    def words(self, *more: str, benchmarks: tuple[str, ...] = BENCHMARKS, limit: int = LIMIT) -> list[str]:
        base_url = f"base_url={self.server.base_url}"
        return [
            *["--model_names", "reference-typeset", "--ds_names", ";".join(benchmarks)],
            *["--custom_model_kwargses", "width=128,height=128", "--judges", JUDGES],
            *["--judge_kwargs", f"{base_url},{self.kwargs}", "--num_workers", "8", "--limit", str(limit)],
            *more,
        ]

    def run(self, *more: str, status: int | None = None, **scope: Any) -> subprocess.CompletedProcess[str]:
        return run_eval(self.checkout, *self.words(*more, **scope), status=status, **self.environ)

    def folder(self, benchmark: str) -> Path:
        return self.checkout / "output/reference-typeset" / benchmark

    def result(self, benchmark: str) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.folder(benchmark) / "result.json").read_text())
        return loaded

    def metrics(self) -> dict[str, Any]:
        return {name: self.result(name)["metrics"] for name in BENCHMARKS}

    def forget_judgements(self) -> None:
        for name in BENCHMARKS:
            for path in ("judgements.jsonl", "repeats.jsonl", "result.json", "scores.jsonl"):
                (self.folder(name) / path).unlink(missing_ok=True)
            shutil.rmtree(self.folder(name) / "evaluators", ignore_errors=True)
        shutil.rmtree(self.checkout / "output/judges", ignore_errors=True)
        self.server.requests.clear()

    def judgements(self, benchmark: str) -> list[dict[str, Any]]:
        path = self.folder(benchmark) / "judgements.jsonl"
        whole, _, _ = (path.read_text() if path.exists() else "").rpartition("\n")  # a run may be writing
        return [json.loads(line) for line in whole.splitlines()]

    def asked(self) -> int:
        """Returns the number of requests since the last call."""
        count = len(self.server.requests)
        self.server.requests.clear()
        return count

    def questions(self, benchmark: str) -> set[str]:
        """The request hashes of all questions that were ever answered."""
        return {record["request"] for record in self.judgements(benchmark)}

    def adds_up(self, benchmark: str) -> bool:
        coverage = self.result(benchmark)["coverage"]
        judged = coverage["judged"] + coverage["unparsed"] + coverage["judge_failed"]
        return bool(judged == coverage["generated"] == coverage["expected"] == LIMIT)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the benchmarks' data, and the images of the reference model made once."""
    checkout = make_checkout(tmp_path_factory.mktemp("judged") / "kit")
    words = ["--eval", "false", "--ds_names", ";".join(BENCHMARKS), "--mirror", str(shared_mirror())]
    run_command(["bash", "utils/prefetch.sh", *words], cwd=checkout, status=0)
    return checkout


@pytest.fixture
def judged(prepared: Path) -> Iterator[Judged]:
    with JudgeServer() as server:
        run = Judged(prepared, server)
        run.forget_judgements()
        yield run


@pytest.fixture(scope="module")
def undisturbed(prepared: Path) -> dict[str, Any]:
    """The metrics of a run without faults, by benchmark."""
    with JudgeServer() as server:
        run = Judged(prepared, server)
        run.forget_judgements()
        run.run(status=0)
        for name in BENCHMARKS:
            asked = Counter(record["request"] for record in run.judgements(name))
            assert set(asked.values()) == {1}
            assert run.adds_up(name)
            assert (run.folder(name) / "official").is_dir()
        return run.metrics()


def test_malformed_replies_and_a_short_outage_change_no_score(
    prepared: Path, undisturbed: dict[str, Any]
) -> None:
    """Nor do the editions of WISE ever share a column."""
    with JudgeServer(die_after=100, down_for=1.5) as server:
        # the outage may meet the last item, which alone is no witness of an outage: 12 attempts outlast it
        judged = Judged(prepared, server, "backoff=0.2,max_attempts=12,max_outage=60")
        judged.forget_judgements()
        server.choose = random_faults(
            [(0.04, "malformed"), (0.02, "garbage"), (0.02, "html"), (0.02, "empty")], [], 7
        )
        judged.run(status=0)
    assert judged.metrics() == undisturbed
    faults = Counter(request.fault for request in server.requests)
    assert sum(faults.values()) - faults["ok"] > 0.05 * faults["ok"], faults
    assert faults["reset"]
    metrics = undisturbed["geneval2"]
    assert 0 < metrics["outside_mass"]["value"] < metrics["outside_mass_max"]["value"] < 1
    [note] = judged.result("geneval2")["notes"]
    assert f"a mean {metrics['outside_mass']['value']:.2%} of the probability" in note
    rows = csv.DictReader((prepared / "output/leaderboard.csv").read_text().splitlines())
    names = {row["score_name"] for row in rows if row["headline"] == "true"}
    assert len(names) == len(BENCHMARKS), names
    assert any(name.startswith("wise-verified/overall@qwen3.5-35b-a3b/openai/") for name in names)


def test_kill_9_in_the_middle_loses_only_what_was_in_flight(
    judged: Judged, undisturbed: dict[str, Any]
) -> None:
    judged.server.latency = 0.02
    words, env = judged.words(benchmarks=("geneval2",)), judged.environ
    process = start_eval(judged.checkout, *words, TEST_MARKER=str(judged.checkout), **env)
    wait_for(lambda: len(judged.judgements("geneval2")) >= 50)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not marked(str(judged.checkout)))  # its guards end the rest
    kept = {record["request"] for record in judged.judgements("geneval2")}
    assert len(kept) >= 50
    with (
        JudgeServer() as server
    ):  # a server of its own: the first one may still count requests of the killed run
        Judged(judged.checkout, server).run(benchmarks=("geneval2",), status=0)
    assert judged.result("geneval2")["metrics"] == undisturbed["geneval2"]
    total = len(judged.questions("geneval2"))
    assert len(server.requests) == total - len(kept)
    assert len(judged.server.requests) - len(kept) <= 16, (
        "only what was in flight, or read and not written yet, was paid for in vain"
    )


def test_money_is_for_what_counts_in_all_cells_first(judged: Judged) -> None:
    """Two cells, whose repeats and probes would take more than is left."""
    judged.kwargs += ",price={'text_input':1.0,'text_output':0.0}"
    few: dict[str, Any] = {"limit": 12, "benchmarks": NOISE}
    judged.run(status=0, **few)
    paid = sum(judged.result(name)["provenance"]["judge_usd"] for name in NOISE)
    counted = judged.asked()

    host = judged.server.base_url.replace("127.0.0.1", "localhost")
    words = judged.words("--dry_run", benchmarks=("wise",), limit=12)
    elsewhere = [word.replace(judged.server.base_url, host) for word in words]
    planned = run_eval(judged.checkout, *elsewhere, status=0, **judged.environ)
    told = "12 answers reused from 127.0.0.1, and this run asks localhost: --judge_repeats 100 asks some of them again"
    assert told in planned.stdout, planned.stdout

    judged.forget_judgements()
    bound = ["--max_cost", f"{1.3 * paid:.6f}", "--num_workers", "2"]
    ended = judged.run("--judge_repeats", "240", *bound, status=0, **few)
    assert all(judged.result(name)["coverage"]["judged"] == 12 for name in NOISE)
    asked = [request.prompt for request in judged.server.requests]
    assert counted < len(asked) < 2 * counted
    log = "".join(path.read_text() for path in (judged.checkout / "log").glob("*/*_repeat_*.log"))
    assert "not all was asked again: --max_cost" in log
    line = r"repeat:reference-typeset/wise: complete: .*judge noise: .* \(\d+ requests, \$"
    assert re.search(line, ended.stdout), ended.stdout
    spent = sum(judged.result(name)["provenance"]["judge_usd"] for name in NOISE)
    assert paid < spent <= 1.3 * paid
