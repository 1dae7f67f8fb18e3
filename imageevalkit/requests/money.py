"""What a run has spent, and the bound that it may not exceed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from imageevalkit.errors import UserError
from imageevalkit.requests.shared import Account, SharedAccount, shared
from imageevalkit.secrets import one_line
from imageevalkit.text import dollars


class BudgetSpent(Exception):
    """The next request could cost more than is left; the text says how much was spent."""


@dataclass
class Bill:
    """The USD of an item's requests (None: unknown), with the estimate for each of the ``maybe_billed`` ones."""

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


_LOOK_AGAIN = 0.1  # seconds until another process may have settled


class Budget:
    """What a run may spend, in USD. A request in flight holds what it may cost, so that ``max_cost`` is kept.

    ``file`` is what processes of the run have one through; without it there is but this one.
    """

    def __init__(self, max_cost: float | None = None, file: Path | None = None) -> None:
        self.max_cost = max_cost
        self._account = shared(SharedAccount, file) if file and max_cost is not None else Account()
        self._look_again = _LOOK_AGAIN if file else None
        self._untold = (0.0, 0.0)  # USD that were held and spent, which the account could not be told
        self._settled = asyncio.Event()
        self._turn = asyncio.Lock()

    @property
    def spent(self) -> float:
        with self._account.opened():
            return self._account.spent

    async def hold(self, amount: float) -> None:
        """Wait until ``amount`` fits beside what is in flight. Raises BudgetSpent: it never will, or nobody knows."""
        async with self._turn:  # of 50,000 that wait for a batch to end one looks
            while not self._holds(amount):
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._settled.wait(), self._look_again)

    def _holds(self, amount: float) -> bool:
        if self.max_cost is None:
            return True
        bound = self.max_cost + 1e-9
        try:
            with self._opened():
                spent, held = self._account.spent, self._account.held
                if spent + amount > bound:
                    raise BudgetSpent(
                        f"--max_cost {self.max_cost:g} is used up: {dollars(spent)} spent, "
                        f"the next request may cost {dollars(amount)}"
                    )
                if spent + held + amount > bound:
                    return False
                self._account.held += amount
        except (OSError, UserError) as error:
            raise BudgetSpent(f"what was spent of --max_cost cannot be known: {one_line(error)}") from None
        return True

    def settle(self, amount: float, cost: float) -> None:
        """A request that held ``amount`` has ended and cost ``cost``."""
        held, spent = self._untold
        self._untold = held + amount, spent + cost
        with contextlib.suppress(OSError, UserError), self._opened():
            pass  # else the next one tells: what was paid for is not lost for that
        self._settled.set()
        self._settled = asyncio.Event()

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        """The account, which knows of all that has ended."""
        with self._account.opened():
            held, spent = self._untold
            self._account.spent += spent
            if self.max_cost is not None:
                self._account.held -= held
            yield
        self._untold = (0.0, 0.0)
