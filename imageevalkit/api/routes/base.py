"""The interface of a route."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from imageevalkit.api.failures import Failure, Kind
from imageevalkit.api.image_reply import ImageReply, with_usage
from imageevalkit.api.json_reply import json_object
from imageevalkit.api.request import Request
from imageevalkit.api.uploads import Inputs


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

    def prepare(self, model_id: str, inputs: Inputs, parameters: Mapping[str, Any]) -> Request:
        """The request, which may be sent again and again. Takes CPU time with images."""
        body = json.dumps(self.body(model_id, inputs, parameters), separators=(",", ":")).encode()
        return Request(self.path, body, "application/json")

    @abstractmethod
    def body(self, model_id: str, inputs: Inputs, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON body of a request."""

    def read(self, content: bytes) -> ImageReply | Failure:
        """Parse the body of a 200 and prove its image whole. Takes CPU time: call it off the event loop."""
        try:
            reply = json_object(content)
            if isinstance(reply, Failure):
                return reply
            result = self.image_in(reply)
            return with_usage(result, reply) if isinstance(result, Failure) else result
        except RecursionError:
            return Failure(Kind.TRANSIENT, "the reply is JSON nested too deep to be read")

    @abstractmethod
    def image_in(self, reply: Mapping[str, Any]) -> ImageReply | Failure:
        """The image in the parsed ``reply`` of a 200, or what the reply means without one."""
