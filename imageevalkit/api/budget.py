"""Money: what the requests of one item cost, and the bound that a user sets for a whole run."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field


class BudgetSpent(Exception):
    """The next request could cost more than is left; the text says how much was spent."""


@dataclass
class Bill:
    """The cost of all requests of one item, in USD; None while no price is known.

    ``tokens`` are those that replies told. ``maybe_billed`` counts requests whose reply was lost: they are in
    ``cost`` with the estimate of one image.
    """

    cost: float | None = None
    tokens: dict[str, int] = field(default_factory=dict)
    maybe_billed: int = 0

    def add(self, cost: float | None, tokens: Mapping[str, int] = {}, maybe: bool = False) -> None:
        """One more request."""
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost
        for name, count in tokens.items():
            self.tokens[name] = self.tokens.get(name, 0) + count
        self.maybe_billed += maybe


class Budget:
    """What a run has spent, in USD, and may spend; shared by all its requests. Belongs to one event loop.

    A request in flight holds what it may cost, so that the bound is kept however many there are.
    """

    def __init__(self, max_cost: float | None = None) -> None:
        self.max_cost = max_cost
        self.spent = 0.0
        self._held = 0.0
        self._waiters: deque[tuple[float, asyncio.Future[None]]] = deque()

    async def hold(self, amount: float) -> None:
        """Wait until ``amount`` fits beside what is in flight, and hold it.

        Raises:
            BudgetSpent: it does not fit beside what is spent.
        """
        if self.max_cost is None:
            return
        if self._waiters or not self._fits(amount):
            self._refuse(amount)
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((amount, waiter))
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled() and not waiter.exception():
                    self.settle(amount, 0.0)
                raise
            return
        self._held += amount

    def settle(self, amount: float, cost: float) -> None:
        """A request that held ``amount`` has ended and cost ``cost``."""
        self.spent += cost
        if self.max_cost is None:
            return
        self._held -= amount
        while self._waiters:
            wanted, waiter = self._waiters[0]
            if waiter.done():
                self._waiters.popleft()
                continue
            try:
                self._refuse(wanted)
            except BudgetSpent as error:
                self._waiters.popleft()
                waiter.set_exception(error)
                continue
            if not self._fits(wanted):
                return
            self._waiters.popleft()
            self._held += wanted
            waiter.set_result(None)

    def _fits(self, amount: float) -> bool:
        return self.max_cost is None or self.spent + self._held + amount <= self.max_cost + 1e-9

    def _refuse(self, amount: float) -> None:
        if self.max_cost is not None and self.spent + amount > self.max_cost + 1e-9:
            raise BudgetSpent(
                f"--max_cost {self.max_cost:g} is used up: ${self.spent:.4g} spent, the next image may cost ${amount:.2g}"
            )
