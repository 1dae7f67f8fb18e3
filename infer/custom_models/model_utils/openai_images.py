"""Models behind an OpenAI-compatible API. ``image_routes.py`` builds requests and reads replies.

``imageevalkit.api.failures`` classifies failed replies. This module raises ``Refused`` for REFUSAL,
``ModelUnusable`` for PERMANENT, ``OnHold`` for DOWN and SPENT, and ``ItemFailed`` for all others, for retried
kinds after the last retry. UNREACHABLE is ``OnHold`` once an image was made, else ``ModelUnusable``.
"""

from __future__ import annotations

import asyncio
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from PIL import Image

from custom_models.model_utils import image_routes as routes
from custom_models.model_utils.image_downloads import Downloads
from custom_models.model_utils.image_replies import LARGEST_REPLY, ImageReply
from custom_models.model_utils.image_routes import Inputs, MaskError, inputs_of
from custom_models.model_utils.inputs import joined_text, without_name
from imageevalkit.api.channel import Engine
from imageevalkit.api.client import Request, check_packages
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.api.failures import Failure, Kind
from imageevalkit.api.limiter import Traffic
from imageevalkit.api.money import Bill
from imageevalkit.api.prices import cost_of_reply, price_and_estimate
from imageevalkit.api.sender import current_delivery
from imageevalkit.api.settings import RequestSettings
from imageevalkit.common.errors import UserError
from imageevalkit.common.machine import on_cpu
from imageevalkit.generate.model import (
    Generated,
    GenerationError,
    ImageModel,
    ItemFailed,
    ModelUnusable,
    OnHold,
    Refused,
)

_NOT_PARAMETERS = {
    "client": "the official client sends all requests; remove this setting",
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
# the only sizes of models, by the beginning of their id; other models take any size
_OFFERED = {
    "gpt-image-1": ((1024, 1024), (1536, 1024), (1024, 1536)),
    "dall-e-3": ((1024, 1024), (1792, 1024), (1024, 1792)),
}
_MOST_WITHOUT_IMAGE = 3  # replies of status 200 without an image, before any reply held one


class _OpenAIImages(ImageModel):
    """The base of all tasks. Raises ModelUnusable without an API key or package, or for an invalid argument.

    Args:
        model_path: the model id; for the endpoint "responses" the text model that calls the image tool.
        endpoint: a route of :mod:`custom_models.model_utils.image_routes`.
        size: "WxH" in pixels, or a word such as ``auto``.
        send_seed: sends each item's seed, for gateways in front of diffusers models.
        given: fields of :class:`RequestSettings` and any other request parameter, sent unchanged. None
        removes a
            default of the registry or of the endpoint.
    """

    is_async = queues = takes_sender = True

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
            self._endpoint = Endpoint.of(vars(self._settings), model_path)
            check_packages()
            self._price, self._estimate = price_and_estimate(
                model_path, {**merged, "price": self._settings.price}
            )
        except UserError as error:
            raise ModelUnusable(str(error), attempts=0) from None
        sent = {**self._route.defaults, **merged}
        self._parameters = {name: value for name, value in sent.items() if value is not None}
        self._requested_size = _pixels(merged["size"])
        self._send_seed = send_seed
        self.takes_size = self._route.takes_size
        self._without_image = 0
        self._unusable = ""  # the reason why no further request is sent
        self.use_traffic(Traffic())

    def has_made_images(self) -> None:
        self._engine.worked = True

    def use_traffic(self, traffic: Traffic) -> bool:
        who = f"model '{self._model_id}'"
        self._downloads = Downloads(self._endpoint, self._settings)
        self._engine = Engine(
            who,
            self._endpoint,
            self._settings,
            traffic,
            LARGEST_REPLY,
            self._price,
            self._downloads.places.learn,
        )
        return True

    def expect(self, items: int) -> None:
        self._engine.limiter.expect(self, items)

    def holdup(self) -> str:
        return self._engine.holdup()

    async def aclose(self) -> None:
        await self._engine.close()
        await self._downloads.close()

    def generate(self, given: Any, seed: int = 42, size: tuple[int, int] | None = None) -> Generated:
        """Runs :meth:`generate_async` for callers without an event loop."""

        async def once() -> Generated:
            try:
                return await self.generate_async(given, seed, size)
            finally:
                await self.aclose()

        return asyncio.run(once())

    async def generate_async(
        self, given: Any, seed: int = 42, size: tuple[int, int] | None = None
    ) -> Generated:
        """Returns one image; many calls may run in one event loop. Raises :class:`GenerationError`."""
        bill = Bill()
        try:
            return await self._made(given, seed, offered(self._model_id, size) if size else None, bill)
        except GenerationError as error:
            error.bill = bill
            raise

    @abstractmethod
    def _inputs(self, given: Any) -> Inputs:
        """Returns the model's inputs for an item. Raises ItemFailed if the item does not fit the task."""

    def _request(self, given: Any, seed: int, size: tuple[int, int] | None, batched: bool = False) -> Request:
        body = {**self._parameters, "seed": seed} if self._send_seed else self._parameters
        if size:
            body = {**body, "size": f"{size[0]}x{size[1]}"}
        return self._route.prepare(self._model_id, self._inputs(given), body, batched)

    async def _made(self, given: Any, seed: int, size: tuple[int, int] | None, bill: Bill) -> Generated:
        request: Request | None = None
        attempts = 0

        async def attempt() -> ImageReply | Failure:
            nonlocal request, attempts
            if self._unusable:
                raise ModelUnusable(self._unusable, attempts)
            # each call builds the request again, because waiting items must not keep their images in memory
            if current_delivery.get():
                attempts += 1
                return await self._attempt(await on_cpu(self._request, given, seed, size, True))
            if request is None:  # built once for all retries
                request = await on_cpu(self._request, given, seed, size)
            attempts += 1
            return await self._attempt(request)

        def billed(reply: ImageReply) -> tuple[float | None, Mapping[str, int]]:
            return cost_of_reply(self._engine.price, reply.tokens, reply.reported_cost), reply.tokens

        try:
            tried = await self._engine.ask(attempt, billed, self._estimate, bill)
        except asyncio.CancelledError:
            if not bill.maybe_billed:
                raise
            # the run ended while the request was in flight; the provider may still bill it
            raise ItemFailed("given up while under way", attempts, transient=True) from None
        result = tried.result
        if isinstance(result, Failure):
            raise self._error(result, tried.attempts)
        assert result.image is not None
        return Generated(
            image=result.image.data,
            proven=result.image,
            seed_honoured=self._send_seed,
            requested_size=size or self._requested_size,
            attempts=tried.attempts,
            seconds=tried.seconds,
            bill=bill,
            extra=self._engine.endpoint.redact_all(result.extra)
            | ({"batch": tried.batch} if tried.batch else {}),
        )

    async def _attempt(self, request: Request) -> ImageReply | Failure:
        reply_to = self._engine.post(request, lambda: self._engine.worked)
        del request
        body = await reply_to
        if isinstance(body, Failure):
            return body
        reply = await on_cpu(self._route.read, body)
        if isinstance(reply, Failure):
            # after a 200 the provider did its work and may bill it, even if the body is broken
            reply = reply._replace(maybe_billed=reply.maybe_billed or reply.kind is Kind.TRANSIENT)
            return self._counted(reply) if reply.unlike and not self._engine.worked else reply
        if reply.url is None:
            return reply
        image = await self._downloads.image(reply.url)
        if isinstance(image, Failure):
            return image._replace(maybe_billed=True)
        return reply._replace(image=image, url=None)

    def _counted(self, failure: Failure) -> Failure:
        """Returns ``failure``, or at the third reply without a readable image a PERMANENT failure.

        Each such reply may be billed, so the model stops.
        """
        self._without_image += 1
        if self._without_image < _MOST_WITHOUT_IMAGE:
            return failure
        text = (
            f"{_MOST_WITHOUT_IMAGE} replies (HTTP 200) without an image, and no image so far: {failure.text}; "
            f"{failure.unlike}; check the model id, and its kwarg endpoint (images, chat or responses)"
        )
        return failure._replace(kind=Kind.PERMANENT, text=text)

    def _error(self, failure: Failure, attempts: int) -> GenerationError:
        kind, text = failure.kind, failure.text
        # if images were made, the settings are right and the endpoint is down: a later run can resume
        if kind in (Kind.DOWN, Kind.SPENT) or (kind is Kind.UNREACHABLE and self._engine.worked):
            return OnHold(text, attempts)
        if kind is Kind.REFUSAL:
            return Refused(text, attempts)
        if kind in (Kind.PERMANENT, Kind.UNREACHABLE):
            self._unusable = text
            return ModelUnusable(text, attempts)
        return ItemFailed(text, attempts, transient=kind.retried)


class OpenAIImagesT2I(_OpenAIImages):
    """Text to image from a prompt."""

    def _inputs(self, given: str) -> Inputs:
        return Inputs(given)


class OpenAIImagesEdit(_OpenAIImages):
    """Image editing with mixed text and images."""

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
    """Subject-driven generation. The model gets the subject's images and the prompt, but not its name."""

    def _inputs(self, given: Sequence[str | Image.Image]) -> Inputs:
        return super()._inputs(without_name(given))


def offered(model_id: str, size: tuple[int, int]) -> tuple[int, int]:
    """Returns the size that the model ``model_id`` offers with the aspect ratio nearest to that of ``size``."""
    choices = next((sizes for begin, sizes in _OFFERED.items() if model_id.startswith(begin)), (size,))
    return min(choices, key=lambda one: abs(one[0] / one[1] - size[0] / size[1]))


def _pixels(size: Any) -> tuple[int, int] | None:
    match = re.fullmatch(r"(\d+)x(\d+)", str(size), re.IGNORECASE)
    return (int(match[1]), int(match[2])) if match else None
