"""What became of the latest requests, in the order of their starts: is a 429 about the account or a single one?"""

from __future__ import annotations

from itertools import islice

# A refusal comes at once and an image takes its time: a request without a 429 after this long was let through.
_TRUSTED_AFTER, _TRUSTED_TIMES = 0.02, 3.0
_IN_A_ROW, _MANY, _OF = 5, 14, 20  # one 429 in ten at random never comes so often (binomial: 1e-5)


class RecentRequests:
    """The fates of at least the ``kept`` latest requests, by their starts (seconds of one clock)."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._let_through: dict[float, bool | None] = {}
        self._refusal_time = 0.0

    def started(self, sent: float) -> None:
        """A request starts."""
        if len(self._let_through) >= 2 * self._kept:
            self._let_through = dict(islice(self._let_through.items(), self._kept, None))
        self._let_through[sent] = None

    def let_through(self, sent: float) -> None:
        """It got an answer that is no 429."""
        if sent in self._let_through:
            self._let_through[sent] = True

    def refused(self, sent: float, now: float) -> None:
        """It got a 429."""
        self._refusal_time = max(now - sent, self._refusal_time / 2)
        if sent in self._let_through:
            self._let_through[sent] = False

    def forget(self) -> None:
        """What comes now has nothing to do with what was."""
        self._let_through.clear()

    def are_limited(self, now: float) -> bool:
        """Whether the last requests whose fate is known were refused in a row, or too many of them for chance."""
        trusted = now - max(_TRUSTED_AFTER, _TRUSTED_TIMES * self._refusal_time)
        fates = (
            bool(fate) if fate is not None else True
            for sent, fate in reversed(self._let_through.items())
            if fate is not None or sent <= trusted
        )
        latest = list(islice(fates, _OF))
        return (len(latest) >= _IN_A_ROW and not any(latest[:_IN_A_ROW])) or latest.count(False) >= _MANY
