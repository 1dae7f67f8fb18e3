"""WISE and GenEval 2 through eval.sh with a real judge server that misbehaves: nothing lost, nothing asked twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import environ, make_checkout, needs_driver_env, run_eval
from tests.support.image_server import HALF, STEERING, random_faults
from tests.support.judge_server import JudgeServer
from tests.support.mirror import shared_mirror
from tests.support.waiting import LONGEST_WAIT

pytestmark = needs_driver_env

BENCHMARKS = ("wise", "wise-verified", "wise-rewrite", "geneval2")
LIMIT = 24
JUDGES = "wise-verified=openai:qwen3.5-35b-a3b;geneval2=openai:qwen3-vl-8b"


@dataclass
class Judged:
    """Runs in one checkout whose judge is ``server``; 24 items of each benchmark."""

    checkout: Path
    server: JudgeServer
    kwargs: str = "backoff=0.05,max_outage=2"
    environ: dict[str, str] = field(default_factory=lambda: {"API_KEY": "sk-judge-4711-key"})

    def words(self, *more: str, benchmarks: tuple[str, ...] = BENCHMARKS) -> list[str]:
        base_url = f"base_url={self.server.base_url}"
        return [
            *["--model_names", "reference-typeset", "--ds_names", ";".join(benchmarks)],
            *["--custom_model_kwargses", "width=128,height=128", "--judges", JUDGES],
            *["--judge_kwargs", f"{base_url},{self.kwargs}", "--num_workers", "8", "--limit", str(LIMIT)],
            *more,
        ]

    def run(self, *more: str, benchmarks: tuple[str, ...] = BENCHMARKS) -> subprocess.CompletedProcess[str]:
        return run_eval(self.checkout, *self.words(*more, benchmarks=benchmarks), **self.environ)

    def folder(self, benchmark: str) -> Path:
        return self.checkout / "output/reference-typeset" / benchmark

    def result(self, benchmark: str) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.folder(benchmark) / "result.json").read_text())
        return loaded

    def metrics(self) -> dict[str, Any]:
        return {name: self.result(name)["metrics"] for name in BENCHMARKS}

    def forget_judgements(self) -> None:
        for name in BENCHMARKS:
            for path in ("judgements.jsonl", "result.json", "scores.jsonl"):
                (self.folder(name) / path).unlink(missing_ok=True)
            shutil.rmtree(self.folder(name) / "evaluators", ignore_errors=True)
        self.server.requests.clear()

    def judgements(self, benchmark: str) -> list[dict[str, Any]]:
        path = self.folder(benchmark) / "judgements.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

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
    subprocess.run(
        [
            "bash",
            "utils/prefetch.sh",
            "--eval",
            "false",
            "--ds_names",
            ";".join(BENCHMARKS),
            "--mirror",
            str(shared_mirror()),
        ],
        cwd=checkout,
        check=True,
        capture_output=True,
    )
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
        ended = run.run()
        assert ended.returncode == 0, ended.stderr
        for name in BENCHMARKS:
            asked = Counter(record["request"] for record in run.judgements(name))
            assert set(asked.values()) == {1}
            assert run.adds_up(name)
            assert (run.folder(name) / "official").is_dir()
        return run.metrics()


def test_three_editions_of_wise_and_geneval2_never_share_a_column(
    judged: Judged, undisturbed: dict[str, Any]
) -> None:
    assert judged.run().returncode == 0
    lines = (judged.checkout / "output/leaderboard.csv").read_text().splitlines()
    header = lines[0].split(",")
    headlines = [dict(zip(header, line.split(","), strict=False)) for line in lines[1:]]
    names = {row["score_name"] for row in headlines if row["headline"] == "true"}
    assert len(names) == len(BENCHMARKS), names
    assert any(name.startswith("wise-verified/overall@qwen3.5-35b-a3b/openai/") for name in names)


def test_outside_mass_is_told_where_only_the_top_tokens_are_seen(
    judged: Judged, undisturbed: dict[str, Any]
) -> None:
    metrics = undisturbed["geneval2"]
    assert 0 < metrics["outside_mass"]["value"] < metrics["outside_mass_max"]["value"] < 1
    judged.run(benchmarks=("geneval2",))
    [note] = judged.result("geneval2")["notes"]
    assert f"a mean {metrics['outside_mass']['value']:.2%} of the probability" in note


def test_ten_percent_of_malformed_replies_change_no_score(
    judged: Judged, undisturbed: dict[str, Any]
) -> None:
    judged.server.choose = random_faults(
        [(0.04, "malformed"), (0.02, "garbage"), (0.02, "html"), (0.02, "empty")], [], 7
    )
    ended = judged.run()
    assert ended.returncode == 0, ended.stderr
    assert judged.metrics() == undisturbed
    faults = Counter(request.fault for request in judged.server.requests)
    assert sum(faults.values()) - faults["ok"] > 0.05 * faults["ok"], faults


def test_what_stays_empty_is_unparsed_and_withheld(judged: Judged) -> None:
    judged.server.choose = random_faults([], [(0.2, "empty")], 3)
    ended = judged.run(benchmarks=("wise",))
    assert ended.returncode == 3
    result = judged.result("wise")
    assert judged.adds_up("wise")
    unparsed = result["coverage"]["unparsed"]
    assert unparsed > 0
    assert result["headline"] == []
    assert result["metrics"]["overall_official"]["value"] is None
    tries = Counter(
        record["request"] for record in judged.judgements("wise") if record["status"] == "unparsed"
    )
    assert set(tries.values()) == {3}
    asked = len(judged.server.requests)
    assert judged.run("--rescore", benchmarks=("wise",)).returncode == 3
    assert judged.run(benchmarks=("wise",)).returncode == 3
    assert len(judged.server.requests) == asked, "three tries are what the official evaluator makes"
    judged.server.choose = random_faults([], [], 0)
    assert judged.run("--retry_unparsed", benchmarks=("wise",)).returncode == 0
    assert len(judged.server.requests) == asked + unparsed


def test_a_short_outage_costs_nothing(judged: Judged, undisturbed: dict[str, Any]) -> None:
    with JudgeServer(die_after=100, down_for=1.5) as server:
        judged.server = server
        judged.kwargs = "backoff=0.2,max_outage=60"
        ended = judged.run(benchmarks=("geneval2",))
    assert ended.returncode == 0, ended.stdout
    assert judged.result("geneval2")["metrics"] == undisturbed["geneval2"]


def test_kill_9_in_the_middle_loses_only_what_was_in_flight(
    judged: Judged, undisturbed: dict[str, Any]
) -> None:
    judged.server.latency = 0.02
    process = subprocess.Popen(
        ["bash", str(judged.checkout / "eval.sh"), *judged.words(benchmarks=("geneval2",))],
        env=environ(judged.checkout, **judged.environ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + LONGEST_WAIT
    while len(judged.judgements("geneval2")) < 50 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = -1
    while before != len(judged.server.requests):  # its guards end the rest
        before = len(judged.server.requests)
        time.sleep(0.5)
    kept = {record["request"] for record in judged.judgements("geneval2")}
    assert len(kept) >= 50
    ended = judged.run(benchmarks=("geneval2",))
    assert ended.returncode == 0, ended.stderr
    assert judged.result("geneval2")["metrics"] == undisturbed["geneval2"]
    total = len(judged.questions("geneval2"))
    assert len(judged.server.requests) - before == total - len(kept)
    assert before - len(kept) <= 16, (
        "only what was in flight, or read and not written yet, was paid for in vain"
    )


@pytest.mark.parametrize(
    ("fault", "says"),
    [("401", "the key is rejected"), ("404", "check the model id"), ("quota", "no quota left")],
)
def test_a_judge_that_cannot_be_used_is_one_line_and_no_score(judged: Judged, fault: str, says: str) -> None:
    judged.server.default = fault
    ended = judged.run(benchmarks=("wise",))
    assert ended.returncode == 1
    assert says in ended.stdout
    assert not (judged.folder("wise") / "result.json").exists(), "an error of the cell, not a score"
    # the eight that were out, and what their slots started before the first reply was told
    assert len(judged.server.requests) <= 16
    told = [path for path in (judged.checkout / "log").rglob("*.log") if "sk-judge" in path.read_text()]
    assert told == []


def test_a_question_beyond_the_context_is_an_error_of_its_item(judged: Judged) -> None:
    judged.server.choose = random_faults([], [(0.1, "too_long")], 5)
    ended = judged.run(benchmarks=("wise",))
    assert ended.returncode == 3
    assert judged.result("wise")["coverage"]["judge_failed"] > 0
    assert judged.adds_up("wise")


def test_another_judge_has_a_column_of_its_own(judged: Judged) -> None:
    assert judged.run(benchmarks=("wise",)).returncode == 0
    first = judged.result("wise")["evaluator"]["id"]
    assert judged.run("--judges", "wise=openai:gpt-5", benchmarks=("wise",)).returncode == 0
    assert judged.result("wise")["evaluator"]["id"] != first
    board = (judged.checkout / "output/leaderboard.md").read_text()
    assert "@gpt-5/openai/" in board
    assert f"@{first}" in board
    asked = len(judged.server.requests)
    assert judged.run(benchmarks=("wise",)).returncode == 0
    assert len(judged.server.requests) == asked, "the first judge's replies are still there"


def test_images_made_elsewhere_come_from_the_official_file(judged: Judged, tmp_path: Path) -> None:
    judged.run(benchmarks=("geneval2",))
    theirs = tmp_path / "theirs"
    shutil.copytree(judged.folder("geneval2") / "images", theirs)
    lines = (judged.checkout / "benchmarks/geneval2/data/geneval2_data.jsonl").read_text().splitlines()
    paths = {
        json.loads(line)["prompt"]: f"theirs/{n:03d}.png"
        for n, line in enumerate(lines)
        if (theirs / f"{n:03d}.png").exists()
    }
    listed = tmp_path / "image_paths.json"
    listed.write_text(json.dumps(paths))
    words = judged.words("--images", str(listed), benchmarks=("geneval2",))
    words[words.index("--model_names") + 1] = "theirs"
    del words[words.index("--custom_model_kwargses") : words.index("--custom_model_kwargses") + 2]
    ended = run_eval(judged.checkout, *words, **judged.environ)
    assert ended.returncode == 0, ended.stderr
    ours, same = (
        json.loads((judged.checkout / f"output/{model}/geneval2/result.json").read_text())["metrics"]
        for model in ("reference-typeset", "theirs")
    )
    assert ours == same


def test_half_an_emoji_and_escapes_in_replies_are_kept_and_never_paid_for_again(judged: Judged) -> None:
    judged.server.choose = random_faults([], [(0.3, "half"), (0.1, "steering")], 5)
    ended = judged.run(benchmarks=("wise-verified",))
    assert ended.returncode == 3, ended.stdout + ended.stderr
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(ended.stdout + ended.stderr)
    faults = Counter(request.fault for request in judged.server.requests)
    said = Counter(record["raw"] for record in judged.judgements("wise-verified"))
    assert said[f"Score: 1 {HALF}"] == faults["half"] > 0
    assert said[f"I will not say. {STEERING}"] == faults["steering"] > 0
    coverage = judged.result("wise-verified")["coverage"]
    assert (coverage["judge_failed"], coverage["unparsed"]) == (0, faults["steering"] / 3)
    official = (judged.folder("wise-verified") / "official").glob("*.json")
    replies = [reply["evaluation"] for path in official for reply in json.loads(path.read_bytes())]
    assert f"Score: 1 {HALF}" in replies
    asked = len(judged.server.requests)
    assert judged.run(benchmarks=("wise-verified",)).returncode == 3
    assert len(judged.server.requests) == asked
    report = (judged.checkout / "output/report.html").read_text()
    assert "Score: 1 a smile \\ud83d" in report
