"""The bounds of a run over all its processes: real processes, some of which are killed."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from imageevalkit.api.limiter import Limiter
from imageevalkit.api.money import Budget, BudgetSpent
from imageevalkit.api.shared import Slots
from tests.support.checkout import REPO, make_checkout, needs_driver_env, run_eval
from tests.support.judge_server import JudgeServer
from tests.support.simulated_clock import run_simulated
from tests.support.waiting import LONGEST_WAIT

# once told to begin, asks for a slot COUNT times, WORKERS at a time; each request takes HELD seconds, and a line of
# Request on stdout
ASKS = """
import asyncio, sys, time
from pathlib import Path
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.api.limiter import Traffic

folder, count, workers, held, per_minute = sys.argv[1:]

async def main():
    traffic = Traffic(int(workers), float(per_minute) if per_minute else None, folder=Path(folder))
    limiter = traffic.limiter(Endpoint("http://host/v1", "key"), 60.0)
    async def ask():
        async with limiter.slot() as sent:
            started = time.monotonic()
            await asyncio.sleep(float(held))
            print(sent.at, started, time.monotonic(), flush=True)
            limiter.served(sent)
    await asyncio.gather(*(ask() for _ in range(int(count))))

print("ready", flush=True)
sys.stdin.readline()
asyncio.run(main())
"""
# buys COUNT things for PRICE, WORKERS at a time, each HELD seconds under way; prints a line for each that was sent
BUYS = """
import asyncio, sys
from pathlib import Path
from imageevalkit.api.money import Budget, BudgetSpent

file, bound, price, count, held = sys.argv[1], *map(float, sys.argv[2:6])

async def main():
    budget = Budget(bound, Path(file))
    async def buy():
        try:
            await budget.hold(price)
        except BudgetSpent:
            return
        print("sent", flush=True)
        await asyncio.sleep(held)
        budget.settle(price, price)
    await asyncio.gather(*(buy() for _ in range(int(count))))
    print(f"spent {budget.spent:.4f}", flush=True)

asyncio.run(main())
"""


def start(program: str, *words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, words)]
    return subprocess.Popen(command, cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def asking(*words: object, count: int = 1) -> list[subprocess.Popen[str]]:
    """Starts ASKS so many times; all begin at once, however long each takes to start."""
    processes = [start(ASKS, *words) for _ in range(count)]
    for process in processes:
        assert process.stdout and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("begin\n")
        process.stdin.flush()
    return processes


class Request(NamedTuple):
    """When its turn came, when it had its slot, and when it was over."""

    sent: float
    started: float
    ended: float


def requests_of(process: subprocess.Popen[str]) -> list[Request]:
    out, _ = process.communicate(timeout=LONGEST_WAIT)
    assert process.returncode == 0
    return [Request(*map(float, line.split())) for line in out.splitlines()]


def most_at_once(requests: list[Request]) -> int:
    moments = sorted([(one.started, 1) for one in requests] + [(one.ended, -1) for one in requests])
    most = now = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most


def test_processes_have_the_slots_of_a_run_together_and_each_its_share(tmp_path: Path) -> None:
    processes = asking(tmp_path, 60, 8, 0.05, "", count=3)
    each = [requests_of(process) for process in processes]
    assert [len(requests) for requests in each] == [60, 60, 60]
    assert most_at_once([one for requests in each for one in requests]) <= 8
    begun = max(requests[0].started for requests in each)
    ended = min(requests[-1].ended for requests in each)
    assert begun < ended, "nobody waits until another has all it wants"


def test_starts_of_all_processes_are_spaced(tmp_path: Path) -> None:
    processes = asking(tmp_path, 10, 8, 0.01, "600", count=2)
    starts = sorted(one.sent for process in processes for one in requests_of(process))
    assert starts[-1] - starts[0] >= 19 * 0.1 - 1e-6


# takes what it can of 4 slots, prints how many, and has them until its input ends
TAKES = """
import itertools, sys, time
from pathlib import Path
from imageevalkit.api.shared import Slots

slots = Slots(Path(sys.argv[1]))
print(next(n for n in itertools.count() if slots.take(time.monotonic(), 4)), flush=True)
sys.stdin.read()
"""


def taken(file: Path) -> tuple[str, subprocess.Popen[str]]:
    command = [sys.executable, "-c", TAKES, str(file)]
    process = subprocess.Popen(command, cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    return process.stdout.readline().strip(), process


def test_the_slots_of_a_killed_process_are_free_again(tmp_path: Path) -> None:
    had, killed = taken(tmp_path / "slots")
    assert had == "4"
    had, without = taken(tmp_path / "slots")
    without.communicate()
    assert had == "0"
    killed.kill()
    killed.communicate()
    had, after = taken(tmp_path / "slots")
    after.communicate()
    assert had == "4"


async def one_request(limiter: Limiter) -> None:
    async with limiter.slot() as sent:
        await asyncio.sleep(0.3)
        limiter.served(sent)


def stale(*words: Any) -> None:
    raise OSError(errno.ESTALE, "Stale file handle")


def test_requests_go_on_where_the_shared_file_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def ask() -> None:
        limiter = Limiter(2, per_minute=60, slots=Slots(tmp_path / "slots"))
        requests = [asyncio.create_task(one_request(limiter)) for _ in range(4)]
        await asyncio.sleep(0.1)
        monkeypatch.setattr(fcntl, "lockf", stale)
        await asyncio.wait_for(asyncio.gather(*requests), 60)
        assert asyncio.get_running_loop().time() >= 3, "each process keeps the bounds by itself"

    run_simulated(ask())
    said = capsys.readouterr()
    assert (said.out + said.err).count("Stale file handle") == 1


def test_what_was_paid_for_is_not_lost_where_the_shared_file_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def buy() -> float:
        budget = Budget(1.0, tmp_path / "money")
        await budget.hold(0.5)
        with monkeypatch.context() as failing:
            failing.setattr(fcntl, "lockf", stale)
            budget.settle(0.5, 0.7)
            with pytest.raises(BudgetSpent, match=r"is unknown: .*Stale file handle"):
                await budget.hold(0.1)
        await budget.hold(0.3)
        budget.settle(0.3, 0.2)
        return budget.spent

    assert run_simulated(buy()) == pytest.approx(0.9)


def outputs(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, _ = process.communicate(timeout=LONGEST_WAIT)
    return out.count("sent"), out.splitlines()[-1]


def test_processes_spend_the_money_of_a_run_together(tmp_path: Path) -> None:
    money = tmp_path / "money"
    bought = [outputs(p) for p in [start(BUYS, money, 1.0, 0.1, 20, 0.02) for _ in range(3)]]
    assert sum(sent for sent, _ in bought) == 10
    assert outputs(start(BUYS, money, 1.2, 0.1, 20, 0.01)) == (2, "spent 1.2000"), (
        "what was spent is known to later ones"
    )


def test_what_a_killed_process_had_in_flight_counts_as_spent_and_blocks_nobody(tmp_path: Path) -> None:
    money = tmp_path / "money"
    killed = start(BUYS, money, 1.0, 0.1, 4, 600)
    assert killed.stdout
    for _ in range(4):
        assert killed.stdout.readline() == "sent\n"
    waiting = start(BUYS, money, 1.0, 0.1, 20, 0.01)
    assert waiting.stdout
    for _ in range(6):
        assert waiting.stdout.readline() == "sent\n"
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert outputs(waiting) == (0, "spent 1.0000")


JUDGE_PRICE = 'price={"text_input":0,"text_output":1000}'  # one token is 0.001 USD, a reply may have 8
LENGTHS = """
from imageevalkit.benchmark.contract import Benchmark, Sample
from imageevalkit.benchmark.question import ask
from imageevalkit.store.results import Metric, Score


class Lengths(Benchmark):
    name, version, judge, headline, prompts = "lengths", "1", "openai:m-1", ("length",), {}

    def samples(self):
        return [Sample(f"images/{i}.png", f"prompt {i}", i) for i in range(12)]

    def questions(self, item, image, answers):
        return [ask("said", item.prompt, image, max_tokens=8)]

    def parse(self, question, answer):
        return len(answer.text)

    def score(self, item, answers):
        return Score({"length": answers["said"].value})

    def metrics(self, scores):
        return {"length": Metric(1.0, len(scores))}
"""


@needs_driver_env
def test_money_bounds_judges_too_and_an_evaluation_without_it_is_on_hold(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "kit")
    (checkout / "benchmarks/lengths").mkdir()
    (checkout / "benchmarks/lengths/benchmark.py").write_text(LENGTHS)
    (checkout / "eval/lengths.sh").symlink_to("quicktext.sh")
    with JudgeServer() as server:
        words = ["--model_names", "reference-noise", "--ds_names", "lengths", "--num_workers", "2"]
        words += ["--custom_model_kwargses", "width=64,height=64"]
        env = {"API_KEY": "sk-judge-4711-key", "BASE_URL": server.base_url}
        first = run_eval(
            checkout, *words, "--judge_kwargs", JUDGE_PRICE, "--max_cost", "0.0125", status=3, **env
        )
        assert "--max_cost 0.0125 is used up" in first.stdout
        assert 0 < len(server.requests) < 12

        run_eval(checkout, *words, "--judge_kwargs", JUDGE_PRICE, "--max_cost", "9", status=0, **env)
        assert len(server.requests) == 12, "nothing is asked, and paid for, twice"
    result = json.loads((checkout / "output/reference-noise/lengths/result.json").read_text())
    assert result["coverage"]["judged"] == 12
