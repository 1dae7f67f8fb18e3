"""The money of a run: never more than the bound, whatever is in flight."""

from __future__ import annotations

import asyncio

import pytest

from imageevalkit.api.money import Bill, Budget, BudgetSpent
from tests.support.simulated_clock import run_simulated


async def buy(budget: Budget, estimate: float, cost: float, seconds: float = 1.0) -> float:
    await budget.hold(estimate)
    await asyncio.sleep(seconds)
    budget.settle(estimate, cost)
    return cost


def spend(max_cost: float | None, estimate: float, cost: float, count: int) -> tuple[Budget, int, float]:
    """``count`` purchases at once: the budget, how many were made, and the simulated seconds."""

    async def main() -> tuple[Budget, int, float]:
        budget = Budget(max_cost)
        ended = await asyncio.gather(
            *(buy(budget, estimate, cost) for _ in range(count)), return_exceptions=True
        )
        refused = [error for error in ended if isinstance(error, BaseException)]
        assert all(isinstance(error, BudgetSpent) for error in refused)
        return budget, count - len(refused), asyncio.get_running_loop().time()

    return run_simulated(main())


@pytest.mark.parametrize(
    ("max_cost", "estimate", "cost", "made"),
    [
        (1.0, 0.1, 0.1, 10),
        (1.0, 0.25, 0.1, 8),  # the ninth might have cost 0.25 of the 0.20 left
        (0.05, 0.1, 0.1, 0),
        (None, 0.1, 0.1, 100),
        (1.0, 0.1, 0.0, 100),  # refusals and 429s cost nothing
    ],
)
def test_the_bound_holds(max_cost: float | None, estimate: float, cost: float, made: int) -> None:
    budget, bought, _ = spend(max_cost, estimate, cost, 100)
    assert bought == made
    assert budget.spent == pytest.approx(made * cost)
    assert max_cost is None or budget.spent <= max_cost + 1e-9


def test_what_is_in_flight_makes_others_wait_not_fail() -> None:
    _, bought, seconds = spend(1.0, 0.4, 0.01, 20)
    assert bought == 20
    assert seconds == 10.0, "two at a time"


def test_a_cancelled_wait_holds_nothing() -> None:
    async def main() -> float:
        budget = Budget(1.0)
        first = asyncio.create_task(buy(budget, 1.0, 0.5, seconds=5))
        await asyncio.sleep(1)
        waiting = asyncio.create_task(buy(budget, 0.4, 0.4))
        last = asyncio.create_task(buy(budget, 0.5, 0.5))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.gather(first, last)
        return budget.spent

    assert run_simulated(main()) == 1.0


def test_a_bill_adds_up() -> None:
    bill = Bill()
    bill.add(None, {"output_tokens": 5})
    assert bill.cost is None, "unknown is not 0"
    bill.add(0.04, {"output_tokens": 7})
    bill.add(0.04, maybe=True)
    assert (bill.cost, bill.tokens, bill.maybe_billed) == (0.08, {"output_tokens": 12}, 1)
