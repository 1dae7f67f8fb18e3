"""What all API models of one process share: a limiter per endpoint and key, and the money."""

from __future__ import annotations

from imageevalkit.api.budget import Budget
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.api.limiter import Limiter


class Traffic:
    """``workers`` and ``per_minute`` bound the requests to each endpoint with one key, ``max_cost`` (USD) all.

    ``lowered`` says why ``workers`` are fewer than the user asked for.
    """

    def __init__(
        self,
        workers: int = 64,
        per_minute: float | None = None,
        max_cost: float | None = None,
        lowered: str = "",
    ) -> None:
        self.workers = workers
        self.lowered = lowered
        self._per_minute = per_minute
        self.budget = Budget(max_cost)
        self._limiters: dict[Endpoint, Limiter] = {}

    def limiter(self, endpoint: Endpoint, max_outage: float) -> Limiter:
        """The limiter of ``endpoint``; of several models the most patient one decides ``max_outage`` (seconds)."""
        if endpoint not in self._limiters:
            self._limiters[endpoint] = Limiter(self.workers, self._per_minute, max_outage, self.lowered)
        limiter = self._limiters[endpoint]
        limiter.max_outage = max(limiter.max_outage, max_outage)
        return limiter
