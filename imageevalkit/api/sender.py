"""The interface of senders: an extra may send the requests of a cell in another way than one by one (in
batches).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

from imageevalkit.api.client import Request
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.api.failures import Failure
from imageevalkit.api.settings import RequestSettings
from imageevalkit.extension_points import connected

T = TypeVar("T")


class NotSent(Exception):
    """The sender has no reply to this request from an earlier run, and sends no new requests in this run."""


@dataclass
class Delivery:
    """The delivery of an item's requests: through ``sender``, which identifies the item by ``key``.

    ``batch`` is the provider's id of the batch with the latest request. ``not_done``: the provider did not
    process that request, so it costs nothing.
    """

    sender: Sender
    key: str
    batch: str = ""
    not_done: bool = False


current_delivery: ContextVar[Delivery | None] = ContextVar("delivery", default=None)
"""The delivery of the running task's requests; None: they are sent one by one."""


class Sender(ABC):
    """Sends the requests of one cell to the endpoint. Belongs to one event loop.

    ``price_share`` is the price of a request relative to a single one. At most ``most`` items can wait for
    replies at the same time. ``option`` is the option that chooses the sender. Messages to the user contain
    ``way``, ``discount`` and ``time``.
    """

    price_share: ClassVar[float]
    most: ClassVar[int]
    option: ClassVar[str]
    way: ClassVar[str]
    discount: ClassVar[str]
    time: ClassVar[str]
    expected = 0
    """The number of items that have not begun."""

    @classmethod
    @abstractmethod
    def opened(cls, folder: Path, cell: str, sends: bool) -> Sender | None:
        """Returns the sender of a cell's requests, with its state in ``folder``.

        If not ``sends``, it only receives the replies to requests of an earlier run. Returns None if there
        are none. Raises CellFailure: the state is damaged.
        """

    @classmethod
    @abstractmethod
    def goes_on(cls, folder: Path) -> str:
        """Returns a note on requests that continue after the end of a run; empty if none do."""

    @abstractmethod
    def preparing(self) -> AbstractContextManager[None]:
        """Marks the running task as one that prepares a request."""

    @abstractmethod
    async def ask(
        self, attempt: Callable[[], Awaitable[T | Failure]], delivery: Delivery, most: int
    ) -> tuple[T | Failure, int]:
        """Returns the final result of ``attempt``, which is called ``most`` times at most, and its attempts.

        Raises NotSent, and what ``attempt`` raises.
        """

    @abstractmethod
    async def reply(
        self,
        delivery: Delivery,
        request: Request,
        endpoint: Endpoint,
        settings: RequestSettings,
        proven: Callable[[], bool],
        longest: int,
    ) -> bytes | Failure:
        """Returns the body of a successful reply to ``request``, or a Failure. Raises NotSent.

        A reply has at most ``longest`` bytes. ``proven``: see ``classify_status``.
        """

    @abstractmethod
    def settle(self, key: str) -> None:
        """Drops the reply to an item: it is stored, or unusable. May run in any thread."""

    @abstractmethod
    def holdup(self) -> str:
        """Returns why requests wait, in a few words; empty if none does."""

    @abstractmethod
    async def close(self) -> None:
        """Stops waiting for replies."""

    @abstractmethod
    def end(self) -> None:
        """Saves which replies were dropped. May be called after :meth:`close`."""


def kind_of_sender(name: str) -> type[Sender] | None:
    """Returns the class of sender of the extra ``name``; None: the extra has none, or ``name`` is empty."""
    kinds: dict[str, type[Sender]] = connected("sender")
    return kinds.get(name)


def open_sender(folder: Path, cell: str, chosen: str) -> Sender | None:
    """Returns the sender for the requests of a cell: of the extra ``chosen``, or of an earlier run.

    Returns None if requests are sent one by one.
    """
    kinds: dict[str, type[Sender]] = connected("sender")
    for name, kind in kinds.items():
        if sender := kind.opened(folder, cell, sends=name == chosen):
            return sender
    return None
