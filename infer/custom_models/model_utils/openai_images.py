"""Models behind an OpenAI-compatible API; ``imageevalkit.api.routes`` has what each endpoint speaks.

``imageevalkit.api.failures`` has the table of what each failing reply means; here a REFUSAL becomes
``Refused``, a PERMANENT ``ModelUnusable``, all others ``ItemFailed`` (retried ones when the bounds are met).
"""

from __future__ import annotations

import asyncio
import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from PIL import Image

from custom_models.model_utils.inputs import joined_text, without_name
from imageevalkit.api import routes
from imageevalkit.api.clients import Request, check_packages
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.api.engine import Attempt, End, Engine, RequestSettings, retry
from imageevalkit.api.failures import Failure, Kind
from imageevalkit.api.limiter import Traffic
from imageevalkit.api.money import Bill, BudgetSpent, cost_of_reply, price_and_estimate
from imageevalkit.api.replies import LARGEST_REPLY, ImageReply, download_image
from imageevalkit.api.uploads import Inputs, MaskError, inputs_of
from imageevalkit.errors import UserError
from imageevalkit.generation.model import (
    Generated,
    GenerationError,
    ImageModel,
    ItemFailed,
    ModelUnusable,
    OnHold,
    Refused,
)
from imageevalkit.machine import on_cpu

_NOT_PARAMETERS = {
    "n": "every item is one image",
    "seed": "seeds belong to items; send_seed=true sends them",
    "stream": "streamed replies are not read",
    "model": "the model is chosen by --model_names",
    "prompt": "prompts come from the benchmark",
    "messages": "prompts come from the benchmark",
    "input": "prompts come from the benchmark",
    "image": "images come from the benchmark",
    "mask": "masks come from the benchmark",
}


class _OpenAIImages(ImageModel):
    """What both tasks share. Raises ModelUnusable: no key, a malformed argument, or a package is missing.

    ``endpoint`` is a route of :mod:`imageevalkit.api.routes` (of "responses", ``model_path`` is the text model that
    calls the image tool), ``size`` "WxH" in pixels or a word such as ``auto``. ``send_seed`` sends each item's seed:
    gateways in front of diffusers models take it. ``given`` are fields of :class:`RequestSettings` and any other
    request parameter, sent as given; None takes back a default of the registry or of the endpoint.
    """

    is_async = queues = True

    def __init__(
        self,
        model_path: str,
        *,
        endpoint: str = "images",
        size: Any = None,
        send_seed: bool = False,
        **given: Any,
    ) -> None:
        self.model_name = self._model_id = model_path
        names = {each.name for each in fields(RequestSettings)}
        parameters = {name: value for name, value in given.items() if name not in names}
        own = {name: value for name, value in given.items() if name in names and value is not None}
        try:
            check_packages()
            self._settings = RequestSettings(**own)
            if not isinstance(send_seed, bool):
                raise UserError(f"send_seed must be true or false, not {send_seed!r}")
            self._route = routes.of(endpoint)
            if send_seed and not self._route.takes_seed:
                raise UserError(f"send_seed=true: {self._route.path} takes no seed")
            merged = {"size": size, **parameters, **self._settings.extra_body}
            reserved = {**_NOT_PARAMETERS, **self._route.reserved}
            for name in merged.keys() & reserved.keys():
                raise UserError(f"'{name}' cannot be given: {reserved[name]}")
            self._endpoint = Endpoint.of(vars(self._settings))
            self._price, self._estimate = price_and_estimate(
                model_path, {**merged, "price": self._settings.price}
            )
        except UserError as error:
            raise ModelUnusable(str(error), attempts=0) from None
        sent = {**self._route.defaults, **merged}
        self._parameters = {name: value for name, value in sent.items() if value is not None}
        self._requested_size = _pixels(merged["size"])
        self._send_seed = send_seed
        self._proven = False
        self._unusable = ""  # once it is known, nothing more is sent
        self.use_traffic(Traffic())

    def has_made_images(self) -> None:
        self._proven = True

    def use_traffic(self, traffic: Traffic) -> bool:
        limiter = traffic.limiter(self._endpoint, self._settings.max_outage)
        who = f"model '{self._model_id}'"
        self._engine = Engine(who, self._endpoint, self._settings, limiter, LARGEST_REPLY)
        self._budget = traffic.budget
        return True

    def expect(self, items: int) -> None:
        self._engine.limiter.expect(self, items)

    def holdup(self) -> str:
        return self._engine.holdup()

    async def aclose(self) -> None:
        await self._engine.close()

    def generate(self, given: Any, seed: int = 42) -> Generated:
        """:meth:`generate_async` for callers without an event loop."""

        async def once() -> Generated:
            try:
                return await self.generate_async(given, seed)
            finally:
                await self.aclose()

        return asyncio.run(once())

    async def generate_async(self, given: Any, seed: int = 42) -> Generated:
        """Many calls may be in flight in one event loop. Raises :class:`GenerationError`."""
        bill = Bill()
        try:
            return await self._made(given, seed, bill)
        except GenerationError as error:
            error.bill = bill
            raise

    @abstractmethod
    def _inputs(self, given: Any) -> Inputs:
        """What an item shows the model. Raises ItemFailed."""

    def _request(self, given: Any, seed: int) -> Request:
        body = {**self._parameters, "seed": seed} if self._send_seed else self._parameters
        return self._route.prepare(self._model_id, self._inputs(given), body)

    async def _made(self, given: Any, seed: int, bill: Bill) -> Generated:
        request: Request | None = None
        attempts = 0

        async def ask() -> ImageReply | Failure:
            nonlocal request, attempts
            if self._unusable:
                raise ModelUnusable(self._unusable, attempts=0)
            if request is None:  # however often it is sent
                request = await on_cpu(self._request, given, seed)
            held = self._estimate or 0.0
            await self._budget.hold(held)
            attempts += 1
            return await self._paid_attempt(request, bill, held)

        try:
            tried = await retry(ask, self._settings, self._engine.limiter)
        except BudgetSpent as error:
            raise OnHold(str(error), attempts) from None
        except asyncio.CancelledError:
            if not bill.maybe_billed:
                raise
            # the cell was given up with the request under way: the provider may bill it all the same
            raise ItemFailed("given up while under way", attempts, transient=True) from None
        result = tried.result
        if isinstance(result, Failure):
            raise self._error(result, tried)
        assert result.image is not None
        self._proven = True
        return Generated(
            image=result.image,
            proven=True,
            seed_honoured=self._send_seed,
            requested_size=self._requested_size,
            attempts=tried.attempts,
            seconds=tried.seconds,
            bill=bill,
            extra=self._engine.endpoint.redact_all(result.extra),
        )

    async def _paid_attempt(self, request: Request, bill: Bill, held: float) -> ImageReply | Failure:
        cost = None
        try:
            result = await self._attempt(request)
            maybe = False
            if not isinstance(result, Failure):
                # a price by tokens, and a gateway that does not tell them: the estimate
                cost = cost_of_reply(self._price, result.tokens, result.reported_cost)
                cost = self._estimate if cost is None else cost
                if cost is not None:
                    self._estimate = max(cost, self._estimate or 0.0)
            elif result.reported_cost is not None or result.tokens:
                # a refusal, or words in place of an image: billed for what it took; an image may be too large
                made = result.kind is Kind.ITEM and result.maybe_billed
                # a price per image is not due where there is none
                by_image = self._price is not None and self._price.per_image is not None
                price = None if by_image and not made else self._price
                cost = cost_of_reply(price, result.tokens, result.reported_cost)
            elif maybe := result.maybe_billed:
                cost = self._estimate
            bill.add(cost, result.tokens, maybe)
            return result
        except asyncio.CancelledError:
            cost = self._estimate
            bill.add(cost, maybe=True)
            raise
        finally:
            self._budget.settle(held, cost or 0.0)

    async def _attempt(self, request: Request) -> ImageReply | Failure:
        body = await self._engine.post(request, lambda: self._proven)
        if isinstance(body, Failure):
            return body
        reply = await on_cpu(self._route.read, body)
        if isinstance(reply, Failure):
            # a 200 says that the provider did its work, whatever arrived here
            return reply._replace(maybe_billed=reply.maybe_billed or reply.kind is Kind.TRANSIENT)
        if reply.url is None:
            return reply
        image = await download_image(self._engine, reply.url)
        if isinstance(image, Failure):
            return image._replace(maybe_billed=True)
        return reply._replace(image=image, url=None)

    def _error(self, failure: Failure, tried: Attempt[ImageReply]) -> GenerationError:
        end, text = self._engine.end(failure, tried)
        if end is End.UNREACHABLE:
            text += "; check BASE_URL and the network"
        # settings that have made images are right: the endpoint is down, and a later run can go on
        if end is End.DOWN or (end is End.UNREACHABLE and self._proven):
            return OnHold(text, tried.attempts)
        if end is End.REFUSED:
            return Refused(text, tried.attempts)
        if end is End.FAILED:
            return ItemFailed(text, tried.attempts, transient=failure.kind.retried)
        self._unusable = text
        return ModelUnusable(text, tried.attempts)


class OpenAIImagesT2I(_OpenAIImages):
    """Text to image."""

    def _inputs(self, given: str) -> Inputs:
        return Inputs(given)


class OpenAIImagesEdit(_OpenAIImages):
    """Image editing: text and images mixed."""

    def _inputs(self, given: Sequence[str | Image.Image]) -> Inputs:
        try:
            inputs = inputs_of(joined_text(given), [part for part in given if isinstance(part, Image.Image)])
        except MaskError as error:
            raise ItemFailed(str(error), attempts=0) from None
        if not inputs.images:
            raise ItemFailed("the item has no image to edit", attempts=0)
        if inputs.mask and not self._route.takes_mask:
            text = f"the item has a mask and {self._route.path} takes none: use endpoint=images or responses"
            raise ItemFailed(text, attempts=0)
        return inputs


class OpenAIImagesSubject(OpenAIImagesEdit):
    """Subject-driven generation: the model is shown the subject's images and the prompt, not the subject's name."""

    def _inputs(self, given: Sequence[str | Image.Image]) -> Inputs:
        return super()._inputs(without_name(given))


def _pixels(size: Any) -> tuple[int, int] | None:
    match = re.fullmatch(r"(\d+)x(\d+)", str(size), re.IGNORECASE)
    return (int(match[1]), int(match[2])) if match else None
