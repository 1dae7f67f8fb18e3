"""The limiter, the outage and the retries on a simulated clock: hours of waiting take milliseconds."""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from imageevalkit.api.channel import Attempt, retry
from imageevalkit.api.failures import Failure, Kind
from imageevalkit.api.limiter import Limiter
from imageevalkit.api.settings import RequestSettings
from tests.support.simulated_clock import run_simulated

REFUSAL_TIME = 0.02


@dataclass
class Server:
    """A server on the simulated clock. ``answer(item, attempt, now)`` says what becomes of a request at once.

    It gives "ok", "429", "500" or "unreachable". An image takes ``latency()`` seconds, everything else
    ``refusal_time()``.
    """

    answer: Callable[[int, int, float], str] = lambda item, attempt, now: "ok"
    latency: Callable[[], float] = lambda: 0.5
    retry_after: float | None = None
    arrivals: list[tuple[float, int, str]] = field(default_factory=list)
    attempts: dict[int, int] = field(default_factory=dict)
    refusal_time: Callable[[], float] = lambda: REFUSAL_TIME
    in_flight: int = 0
    peak: int = 0

    async def ask(self, item: int) -> str | Failure:
        now = asyncio.get_running_loop().time()
        self.attempts[item] = self.attempts.get(item, 0) + 1
        said = self.answer(item, self.attempts[item], now)
        self.arrivals.append((now, item, said))
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        await asyncio.sleep(self.latency() if said == "ok" else self.refusal_time())
        self.in_flight -= 1
        if said == "ok":
            return "image"
        kind = {"429": Kind.RATE_LIMIT, "500": Kind.TRANSIENT, "unreachable": Kind.UNREACHABLE}[said]
        return Failure(kind, said, self.retry_after if said == "429" else None)

    def count(self, said: str) -> int:
        return sum(word == said for _, _, word in self.arrivals)


@dataclass
class Run:
    seconds: float
    tried: list[Attempt[str]]

    @property
    def ok(self) -> int:
        return sum(tried.result == "image" for tried in self.tried)


def is_down(tried: Attempt[str]) -> bool:
    return isinstance(tried.result, Failure) and tried.result.kind is Kind.DOWN


def serve(server: Server, limiter: Limiter, items: int) -> Run:
    """Ask for every item, twice as many at a time as the limiter's ceiling."""

    async def main() -> Run:
        queue, tried = iter(range(items)), {}

        async def work() -> None:
            for item in queue:
                tried[item] = await retry(functools.partial(server.ask, item), RequestSettings(), limiter)

        await asyncio.gather(*(work() for _ in range(max(4, 2 * limiter.ceiling))))
        return Run(asyncio.get_running_loop().time(), [tried[item] for item in sorted(tried)])

    return run_simulated(main())


def token_bucket(rate: float, capacity: float) -> Callable[[int, int, float], str]:
    """Answers 429 beyond ``rate`` requests per second, with bursts of ``capacity``."""
    state = {"tokens": capacity, "time": 0.0}

    def answer(item: int, attempt: int, now: float) -> str:
        state["tokens"] = min(capacity, state["tokens"] + (now - state["time"]) * rate)
        state["time"] = now
        if state["tokens"] < 1:
            return "429"
        state["tokens"] -= 1
        return "ok"

    return answer


def lognormal(seed: int, median: float = 0.3) -> Callable[[], float]:
    rng = random.Random(seed)
    return lambda: rng.lognormvariate(math.log(median), 0.99)


def test_the_ceiling_is_used_from_the_start_and_never_passed() -> None:
    server = Server()
    run = serve(server, Limiter(16), 160)
    assert (run.ok, server.peak) == (160, 16)
    assert run.seconds < 10 * 0.5 + 0.4, "as good as ten full rounds"


def test_an_episode_cuts_once_however_many_429s_it_has() -> None:
    limiter = Limiter(64)
    server = Server(lambda item, attempt, now: "429" if now < 0.3 else "ok", retry_after=1.0)
    assert serve(server, limiter, 400).ok == 400
    assert server.count("429") > 5
    assert limiter.cuts == 1


def test_retry_after_holds_back_its_own_request_and_a_limited_account_all() -> None:
    server = Server(lambda item, attempt, now: "429" if 5 < now < 20 else "ok", retry_after=30.0)
    run = serve(server, Limiter(8), 200)
    assert run.ok == 200
    refused = [(now, item) for now, item, said in server.arrivals if said == "429"]
    known = refused[4][0] + REFUSAL_TIME
    assert all(now <= known for now, _ in refused), "five in a row are no chance"
    again = {item: now for now, item, said in server.arrivals if said == "ok"}
    assert all(again[item] >= now + 30.0 for now, item in refused)
    pause = (refused[-1][0], refused[-1][0] + 30.0)
    assert not [now for now, _, _ in server.arrivals if pause[0] < now < pause[1]]


@pytest.mark.parametrize("retry_after", [None, 1.0])
@pytest.mark.parametrize(("capacity", "median", "use"), [(5.0, 0.5, 0.7), (60.0, 0.5, 0.9)])
def test_a_limited_rate_is_used_up_and_hardly_ever_passed(
    retry_after: float | None, capacity: float, median: float, use: float
) -> None:
    server = Server(token_bucket(20, capacity), lognormal(3, median), retry_after=retry_after)
    run = serve(server, Limiter(64), 1000)
    assert run.ok == 1000
    assert server.count("429") < 0.05 * 1000
    assert 1000 / run.seconds >= use * 20


def test_requests_per_minute_are_a_bound_for_every_minute() -> None:
    server = Server()
    run = serve(server, Limiter(64, per_minute=120), 300)
    starts = sorted(now for now, _, _ in server.arrivals)
    assert all(later - earlier >= 60.0 - 1e-6 for earlier, later in zip(starts, starts[120:], strict=False))
    assert min(later - earlier for earlier, later in itertools.pairwise(starts)) >= 0.5 - 1e-6
    assert run.seconds == pytest.approx(300 * 0.5, rel=0.02), "and it is used"


@pytest.mark.parametrize(("fault", "workers"), [("500", 4), ("unreachable", 64)])
def test_ten_minutes_without_an_endpoint_cost_no_item(fault: str, workers: int) -> None:
    server = Server(lambda item, attempt, now: fault if 4 < now < 604 else "ok")
    run = serve(server, Limiter(workers), 800)
    assert run.ok == 800
    asked = [now for now, _, said in server.arrivals if said == fault]
    assert len(asked) < 60 + 2 * workers, "the endpoint is not hammered"
    first_after = min(now for now, _, said in server.arrivals if said == "ok" and now > 604)
    assert first_after < 604 + 31
    undisturbed = serve(Server(), Limiter(workers), 800).seconds
    assert run.seconds < undisturbed + 600 + 31 + 5


def test_an_endpoint_that_stays_down_ends_the_run_at_the_bound() -> None:
    server = Server(lambda item, attempt, now: "ok" if now < 4 else "500")
    run = serve(server, Limiter(16, max_outage=900.0), 800)
    assert 0 < run.ok < 800
    lost = [tried for tried in run.tried if tried.result != "image"]
    assert all(is_down(tried) for tried in lost)
    assert any(
        isinstance(tried.result, Failure) and "has been down: 500" in tried.result.text for tried in lost
    )
    assert 900 < run.seconds < 900 + 40


@pytest.mark.parametrize(
    ("workers", "latency", "items", "hopeless"),
    [(8, 0.5, 100, range(97, 100)), (16, 30.0, 800, range(790, 800)), (8, 10.0, 6, range(1, 6))],
)
def test_hopeless_items_at_the_end_are_tried_as_ever(
    workers: int, latency: float, items: int, hopeless: range
) -> None:
    server = Server(lambda item, attempt, now: "500" if item in hopeless else "ok", lambda: latency)
    run = serve(server, Limiter(workers), items)
    assert run.ok == items - len(hopeless)
    assert not any(is_down(tried) for tried in run.tried)
    assert run.seconds < items / workers * latency + latency + 200


def test_an_item_that_is_always_limited_fails_by_itself() -> None:
    server = Server(lambda item, attempt, now: "429" if item == 7 else "ok")
    run = serve(server, Limiter(8), 2000)
    assert [n for n, tried in enumerate(run.tried) if tried.result != "image"] == [7]
    assert not is_down(run.tried[7])
    assert server.attempts[7] < 40
    assert run.seconds < 900
