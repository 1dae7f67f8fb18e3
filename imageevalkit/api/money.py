"""The cost of a run so far and its upper bound ``--max_cost``, in USD."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from imageevalkit.api.shared import Account, SharedAccount, shared
from imageevalkit.common.errors import UserError
from imageevalkit.common.redaction import one_line
from imageevalkit.common.text import dollars


class BudgetSpent(Exception):
    """The next request may exceed ``--max_cost``. The text names the amount that was spent."""


@dataclass
class Bill:
    """The cost of one item's requests in USD. ``maybe_billed``: the number of estimated ones in it."""

    cost: float | None = None
    tokens: dict[str, int] = field(default_factory=dict)
    maybe_billed: int = 0

    def add(self, cost: float | None, tokens: Mapping[str, int] = {}, maybe: bool = False) -> None:
        """Adds the cost and the tokens of one request. ``maybe``: the cost is an estimate."""
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost
        for name, count in tokens.items():
            self.tokens[name] = self.tokens.get(name, 0) + count
        self.maybe_billed += maybe


_LOOK_AGAIN = 0.1  # seconds between two checks: another process may have settled a request


class Budget:
    """The budget of a run in USD.

    Each request in flight reserves its estimated cost: else parallel requests would exceed ``max_cost``. All
    processes with the same ``file`` share one budget. Without ``file`` the budget belongs to this process.
    """

    def __init__(self, max_cost: float | None = None, file: Path | None = None) -> None:
        self.max_cost = max_cost
        self._account = shared(SharedAccount, file) if file and max_cost is not None else Account()
        self._look_again = _LOOK_AGAIN if file else None
        self._unsaved = (0.0, 0.0)  # USD held and spent by ended requests that are not in the account yet
        self._settled = asyncio.Event()
        self._turn = asyncio.Lock()

    @property
    def spent(self) -> float:
        with self._account.opened():
            return self._account.spent

    async def hold(self, amount: float) -> None:
        """Reserves ``amount``; waits while the reservations in flight leave no room for it.

        Raises BudgetSpent: ``amount`` is more than the rest of the budget, or the shared file cannot be read.
        """
        async with self._turn:  # else all of 50,000 batched requests would check the account
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
            raise BudgetSpent(
                f"the cost so far, which --max_cost bounds, is unknown: {one_line(error)}"
            ) from None
        return True

    def settle(self, amount: float, cost: float) -> None:
        """Releases ``amount``, which an ended request had reserved, and adds its real ``cost``."""
        held, spent = self._unsaved
        self._unsaved = held + amount, spent + cost
        with contextlib.suppress(OSError, UserError), self._opened():
            pass  # if the file fails, the amounts stay in `_unsaved` for the next call
        self._settled.set()
        self._settled = asyncio.Event()

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        """Opens the account and adds the amounts of all ended requests to it."""
        with self._account.opened():
            held, spent = self._unsaved
            self._account.spent += spent
            if self.max_cost is not None:
                self._account.held -= held
            yield
        self._unsaved = (0.0, 0.0)
