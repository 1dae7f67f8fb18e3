"""The interface of a route."""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from imageevalkit.api.failures import Failure
from imageevalkit.api.image_reply import ImageReply
from imageevalkit.api.uploads import Inputs

if TYPE_CHECKING:
    import httpx2
    import openai


class Route(ABC):
    """One wire format: how an item becomes a request, and a reply an image.

    ``defaults`` are request parameters that a user's None takes back; ``reserved`` are those a user cannot
    give, with the reason.
    """

    name: ClassVar[str]
    path: ClassVar[str]
    takes_seed: ClassVar[bool] = True
    takes_mask: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    reserved: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What is sent besides the item: ``given`` over the defaults, without those that are None."""
        return {name: value for name, value in {**self.defaults, **given}.items() if value is not None}

    def prepare(self, model_id: str, inputs: Inputs, parameters: Mapping[str, Any]) -> Any:
        """The request for :meth:`send`, which may be sent again and again. Takes CPU time with images."""
        return json.dumps(self.body(model_id, inputs, parameters), separators=(",", ":")).encode()

    @abstractmethod
    def body(self, model_id: str, inputs: Inputs, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON body of a request."""

    async def send(self, api: openai.AsyncOpenAI, request: Any) -> httpx2.Response:
        """Send what :meth:`prepare` made; the reply has been read whole.

        Raises:
            openai.APIConnectionError, openai.APIStatusError: no reply, or none with a status of success.
        """
        import httpx2

        return await api.post(
            self.path, cast_to=httpx2.Response, content=request, options={"headers": request_id()}
        )

    @abstractmethod
    def read(self, content: bytes) -> ImageReply | Failure:
        """Parse the body of a 200 and prove its image whole. Takes CPU time: call it off the event loop."""


def request_id() -> dict[str, str]:
    """A header that tells two requests with the same body apart, for caching gateways and in logs."""
    return {"X-Client-Request-Id": str(uuid.uuid4())}
