"""Telling an endpoint that is down from an item that fails, and waiting for the endpoint to come back.

A failure is the item's own as long as the endpoint serves others. When an endpoint that has worked fails at least
``_WITNESSES`` different items, and more than are still in flight, with nothing served that started later, it is
down: one request at a time asks whether it is back, failures no longer count against items, and the first served
request ends the outage. A few hopeless items must not look like an outage: one that failed while others were
served is no witness, and where only items are left that have failed already, they are tried to the end as ever.
Nor may one failure in ten, which are reported at once while images take their time.
"""

from __future__ import annotations

import random

_WITNESSES = 3
_LONGEST_WAIT = 30.0  # seconds between two questions: how late the return of an endpoint may be noticed
_jitter = random.Random()


_NEVER = float("-inf")


class Trial:
    """The attempts at one item, as evidence on who is to blame for its failures."""

    def __init__(self) -> None:
        self.blamed = False
        """It failed, a request that started later was served, and it failed again."""
        self.times_blamed = 0
        self._failed = float("inf")

    def note_failure(self, now: float, last_served: float) -> None:
        """A failure at ``now``; ``last_served`` is the latest start of a request that was served."""
        if last_served > self._failed:
            self.blamed = True
            self.times_blamed += 1
        self._failed = now


class Outage:
    """The state of one endpoint; times are seconds of one clock, ``sent`` are the starts of requests."""

    def __init__(self) -> None:
        self.began: float | None = None
        """Since when the endpoint is down, or None."""
        self.reason = ""
        self._last_served = _NEVER
        self._witnesses: dict[Trial, float] = {}
        self._asking: float | None = None
        self._asked = 0
        self._ask_next = 0.0

    @property
    def has_served(self) -> bool:
        """Whether the endpoint has ever answered as one that works."""
        return self._last_served > _NEVER

    def served(self, sent: float) -> bool:
        """A request was answered as it should be; whether that ended an outage."""
        self._last_served = max(self._last_served, sent)
        # what was accepted before a failure says nothing about what came after
        self._witnesses = {trial: failed for trial, failed in self._witnesses.items() if failed > sent}
        if self.began is None or sent < self.began:
            return False
        self.began = self._asking = None
        return True

    def failed(
        self, trial: Trial, sent: float, now: float, reason: str, in_flight: int, untried: bool
    ) -> bool:
        """A request failed for a reason that passes; whether its item is to blame.

        Others are ``in_flight``; ``untried``: an item that has not failed yet is waiting, and can ask.
        """
        trial.note_failure(now, self._last_served)
        self.reason = reason
        if self.began is not None:
            self.ended(sent, now)
            return trial.blamed
        if not trial.blamed:
            self._witnesses[trial] = now
        if untried and self.has_served and len(self._witnesses) >= max(_WITNESSES, in_flight + 1):
            self.began, self._asked = now, 0
            self._ask_later(now)
            return False
        return True

    def limited(self, trial: Trial, now: float) -> None:
        """A request got a 429: no sign of an outage, but perhaps of an item that is always refused."""
        trial.note_failure(now, self._last_served)

    def wait(self, now: float) -> float:
        """Seconds until a request may start; infinite while the one that asks is under way."""
        if self.began is None:
            return 0.0
        return max(0.0, self._ask_next - now) if self._asking is None else float("inf")

    def started(self, now: float) -> None:
        """A request has started; during an outage it is the one that asks."""
        if self.began is not None:
            self._asking = now

    def ended(self, sent: float, now: float) -> None:
        """The request that started at ``sent`` is over, however it ended."""
        if self._asking == sent:
            self._ask_later(now)

    def _ask_later(self, now: float) -> None:
        self._asking = None
        wait = min(_LONGEST_WAIT, 2.0**self._asked)
        self._asked += 1
        self._ask_next = now + wait * _jitter.uniform(0.5, 1.0)
