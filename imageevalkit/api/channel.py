"""Sends a request to an endpoint, with retries, limits and cost, for image models and judges."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from imageevalkit.api.client import Clients, Request, RequestHook, Unsuccessful, in_time, read_body
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.api.failures import Failure, Kind, classify_status, page_in, used_up_for
from imageevalkit.api.in_flight import under_way
from imageevalkit.api.limiter import EndpointDown, Limiter, Traffic, Trial
from imageevalkit.api.money import Bill, BudgetSpent
from imageevalkit.api.prices import Price, cost_of_reply
from imageevalkit.api.sender import NotSent, current_delivery
from imageevalkit.api.settings import RequestSettings
from imageevalkit.common.network import proxy_of

T = TypeVar("T")

# The encodings of error pages. Others are not used: punycode, for example, takes hours for a long page.
_ENCODINGS = re.compile(r"utf|gb|big5|shift|euc|iso|latin|windows|(us-)?ascii", re.IGNORECASE)
# A request with so many 429s while later requests are served is itself the cause ("too large for your tokens
# per minute"). If an account refuses every other request at random, one item in 4096 gets so many.
_MOST_LIMITS = 12


@dataclass(frozen=True)
class Attempt(Generic[T]):
    """The final result of a request, its attempts, its seconds with all waits, and the id of its batch."""

    result: T | Failure
    attempts: int
    seconds: float
    batch: str = ""


async def retry(
    ask: Callable[[], Awaitable[T | Failure]], policy: RequestSettings, limiter: Limiter
) -> Attempt[T]:
    """Calls ``ask`` in slots of ``limiter`` until it succeeds, fails finally or ``policy`` stops it."""
    loop = asyncio.get_running_loop()
    state = under_way()
    trial, limits, failures = Trial(), Trial(), Counter[Kind]()
    attempts = counted = 0
    seconds = counted_seconds = limited_seconds = 0.0
    result: T | Failure | None = None
    while True:
        try:
            async with limiter.slot(attempts) as sent:
                attempts += 1
                state.sent = True
                result = await ask()
                took = loop.time() - sent.at
                seconds += took
                if not isinstance(result, Failure) or not result.kind.retried:
                    limiter.served(sent)
                    return Attempt(result, attempts, seconds)
                failures[result.kind] += 1
                counts = False
                if result.kind is Kind.RATE_LIMIT:
                    limiter.limited(limits, sent, result.retry_after)
                elif result.kind is Kind.LOST:  # the endpoint itself works
                    limiter.served(sent)
                    counts = True
                else:
                    counts = limiter.failed(trial, result.text)
        except EndpointDown as error:
            return Attempt(Failure(Kind.DOWN, str(error)), attempts, seconds)
        except BudgetSpent as error:
            return Attempt(Failure(Kind.SPENT, str(error)), attempts - 1, seconds)
        finally:
            state.sent = False
        if result.kind is Kind.RATE_LIMIT:
            delay = policy.delay(failures[Kind.RATE_LIMIT], result.retry_after, limited=True)
            if limits.times_blamed:
                limited_seconds += took + delay
            if limits.times_blamed >= _MOST_LIMITS or limited_seconds > policy.max_elapsed:
                return Attempt(result, attempts, seconds)
        else:
            counted += counts
            delay = policy.delay(counted, result.retry_after)
            if counts:
                counted_seconds += took + delay
            # each new result is billed, and after two lost ones a third is likely to be lost
            lost_again = failures[Kind.LOST] > 1
            if counted >= policy.max_attempts or counted_seconds > policy.max_elapsed or lost_again:
                return Attempt(result, attempts, seconds)
        seconds += delay
        await asyncio.sleep(delay)


class Engine:
    """Sends the requests of one model or judge, ``owner`` ("judge 'x'"), within the limits of ``traffic``.

    A reply has at most ``longest_reply`` bytes. ``price`` is None if unknown. ``look``: see :class:`Clients`.
    """

    def __init__(
        self,
        owner: str,
        endpoint: Endpoint,
        settings: RequestSettings,
        traffic: Traffic,
        longest_reply: int,
        price: Price | None = None,
        look: RequestHook | None = None,
    ) -> None:
        self.endpoint, self.settings, self._price, self._look = endpoint, settings, price, look
        self.limiter = traffic.limiter(endpoint, settings.max_outage)
        self.answered = False
        self.worked = False
        """True after the first usable reply, in this run or an earlier one."""
        self._is_api = False  # True after a reply that is not a web page
        self._budget = traffic.budget
        self._most_expensive = 0.0
        self._where = f"{owner} at {endpoint.host}"
        self._longest_reply = longest_reply
        self._clients: Clients | None = None

    @property
    def price(self) -> Price | None:
        """The price for the running task, whose sender may have a discount."""
        delivery = current_delivery.get()
        return self._price.at(delivery.sender.price_share) if self._price and delivery else self._price

    @property
    def clients(self) -> Clients:
        """The HTTP clients of the running event loop: connections cannot move to another loop."""
        if self._clients is None or self._clients.loop is not asyncio.get_running_loop():
            self._clients = Clients(self.endpoint, self.limiter.ceiling, self.settings.timeout, self._look)
        return self._clients

    async def close(self) -> None:
        """Closes the connections. A later request opens new ones."""
        clients, self._clients = self._clients, None
        if clients and clients.loop is asyncio.get_running_loop():
            await clients.close()

    def holdup(self) -> str:
        """Returns the reason why requests wait now, in a few words; empty if there is none."""
        return self.endpoint.redact(self.limiter.state())

    async def ask(
        self,
        attempt: Callable[[], Awaitable[T | Failure]],
        billed: Callable[[T], tuple[float | None, Mapping[str, int]]],
        estimate: float | None,
        bill: Bill,
    ) -> Attempt[T]:
        """Returns the final result of ``attempt``, after retries. Adds the cost of each request to ``bill``.

        ``billed`` returns the USD (None: unknown) and the tokens of a result. Each request in flight reserves
        ``estimate`` (USD) from the budget, or the cost of the most expensive request so far if that is more.
        The same amount is the cost of a reply that was lost or does not state its cost.
        """

        async def paid() -> T | Failure:
            delivery = current_delivery.get()
            guess = max(estimate or 0.0, self._most_expensive) or estimate
            if delivery:
                guess = estimate and estimate * delivery.sender.price_share
            await self._budget.hold(held := guess or 0.0)
            cost = None
            try:
                with delivery.sender.preparing() if delivery else nullcontext():
                    result = await attempt()
                maybe = isinstance(result, Failure) and self._is_guess(result)
                if isinstance(result, Failure):
                    cost = guess if maybe else self._cost_of(result)
                    bill.add(cost, result.tokens, maybe)
                else:
                    self.worked = True
                    known, tokens = billed(result)
                    cost = guess if known is None else known
                    self._most_expensive = max(self._most_expensive, 0.0 if delivery else cost or 0.0)
                    bill.add(cost, tokens)
                return result
            except asyncio.CancelledError:
                if not delivery:  # in a batch the request continues, and the next run receives its reply
                    cost = guess
                    bill.add(cost, maybe=True)
                raise
            finally:
                self._budget.settle(held, cost or 0.0)

        if delivery := current_delivery.get():
            with suppress(NotSent):
                result, attempts = await delivery.sender.ask(paid, delivery, self.settings.max_attempts)
                # the time of the sender does not count as time of the request
                return self._ended(Attempt(result, attempts, 0.0, delivery.batch))
            current_delivery.set(None)
        return self._ended(await retry(paid, self.settings, self.limiter))

    def _is_guess(self, failure: Failure) -> bool:
        return failure.maybe_billed and failure.reported_cost is None and not failure.tokens

    def _cost_of(self, failure: Failure) -> float | None:
        """Returns the USD of a failed request, such as a refusal or a text without an image.

        Returns None if the reply states neither cost nor tokens.
        """
        if failure.reported_cost is None and not failure.tokens:
            return None
        # a price per image is due only if an image was made (an ITEM failure: the image is too large)
        made = failure.kind is Kind.ITEM and failure.maybe_billed
        by_image = self.price is not None and self.price.per_image is not None
        price = None if by_image and not made else self.price
        return cost_of_reply(price, failure.tokens, failure.reported_cost)

    async def post(self, request: Request, proven: Callable[[], bool]) -> bytes | Failure:
        """Returns the body of a successful reply to ``request``, or a Failure.

        ``proven``: see ``classify_status``. It is called after the reply: another item may have succeeded
        meanwhile.
        """
        if delivery := current_delivery.get():
            reply = delivery.sender.reply(
                delivery, request, self.endpoint, self.settings, proven, self._longest_reply
            )
            del request  # it may have megabytes, and wait for hours
            body = await reply
            self.answered = True
            return body

        clients = self.clients  # made before the time of the request starts: it imports a large package

        async def send() -> bytes | Failure:
            try:
                async with clients.post(request) as response:
                    body, whole = await read_body(response, self._longest_reply)
            except Unsuccessful as reply:
                self.answered = True
                self._is_api |= reply.body.lstrip().startswith((b"{", b"["))
                return self._unsuccessful(reply, proven())
            self.answered = True
            if not whole:
                text = (
                    f"the reply (HTTP {response.status_code}) is larger than {self._longest_reply >> 20} MiB"
                )
                return Failure(Kind.ITEM, text, maybe_billed=True)
            if reset := used_up_for(response.headers):
                self.limiter.window_used_up(reset)
            page = page_in(body)
            if page and not (self.worked or self._is_api):
                text = f"the reply (HTTP {response.status_code}) is {page}"
                remedy = "check BASE_URL (it usually ends in /v1), or base_url among its kwargs"
                return Failure(Kind.PERMANENT, f"{text}; {remedy}")
            self._is_api |= not page
            return body

        return await in_time(send, self.settings.timeout)

    def _unsuccessful(self, reply: Unsuccessful, proven: bool) -> Failure:
        response = reply.response
        charset = response.charset_encoding or ""
        try:
            text = reply.body.decode(charset if _ENCODINGS.match(charset) else "utf-8", errors="replace")
        except LookupError:
            text = reply.body.decode(errors="replace")
        key = self.endpoint.key_variable
        return classify_status(response.status_code, response.headers, text, proven, key)

    def _ended(self, tried: Attempt[T]) -> Attempt[T]:
        """Adds the place and the number of attempts to the text of a failure, and removes the key."""
        failure = tried.result
        if not isinstance(failure, Failure):
            return tried
        text, kind, attempts = failure.text, failure.kind, tried.attempts
        if kind.retried:
            text += f" (gave up after {attempts} attempt{'s' * (attempts > 1)} in {tried.seconds:.0f} s)"
        if kind is Kind.UNREACHABLE and self.answered:
            kind = Kind.TRANSIENT
        if kind in (Kind.PERMANENT, Kind.DOWN, Kind.UNREACHABLE):
            text = f"{self._where}: {text}"
        if kind is Kind.UNREACHABLE:
            text += "; check its address and the network (BASE_URL, or its kwargs)"
            if proxy_of(self.endpoint.base_url):
                text += ", and the proxy that ALL_PROXY, HTTPS_PROXY or HTTP_PROXY names"
        return replace(tried, result=failure._replace(kind=kind, text=self.endpoint.redact(text)))
