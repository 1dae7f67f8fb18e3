"""What a parent and its worker process say to each other, and how a message is framed on their socket."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import struct
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import PIL.ImageFile
from PIL import Image

from imageevalkit.generation.model import (
    Generated,
    GenerationError,
    ItemFailed,
    ModelUnusable,
    OnHold,
    Refused,
    RemoteError,
)
from imageevalkit.images import FORMATS, opened
from imageevalkit.secrets import one_line, redact

_LENGTH = struct.Struct(">Q")


class ImageFile(NamedTuple):
    """In an input list: an image that the worker opens itself, so that nobody holds its pixels before their turn."""

    path: str


class LoadOrder(NamedTuple):
    """To a worker: load the model of ``setting``, known as ``key``, in place of the one it has."""

    key: str
    setting: Mapping[str, Any]
    log: str


class MakeOrder(NamedTuple):
    """To a worker: make the images of one chunk, at most ``together`` in one call of the model.

    ``log`` is the file for whatever the model prints.
    """

    inputs: Sequence[Any]
    seeds: Sequence[int]
    together: int
    log: str


class LoadReport(NamedTuple):
    """From a worker: the model is loaded after ``seconds``, and takes ``batch_size`` items in a call.

    ``packages`` are those that make its images.
    """

    key: str
    packages: Mapping[str, str]
    batch_size: int
    seconds: float


class LoadFailure(NamedTuple):
    """From a worker: why the model ``key`` does not load in it, in one line; it can still be asked for another."""

    key: str
    text: str


class ImagesReport(NamedTuple):
    """From a worker: an answer for each input of the first chunk it has not answered, in order."""

    answers: Sequence[Generated | Exception]


class Remark(NamedTuple):
    """From a worker: a line for the log, such as that it goes on with smaller batches."""

    text: str


class Breakdown(NamedTuple):
    """From a worker, its last word: this process can make no more images (a CUDA error stays in it)."""

    error: RemoteError


def outgoing(given: Any) -> Any:
    """What a model is shown, as it is sent. Raises Pillow's errors for an image that does not decode."""
    return given if isinstance(given, str) else [_sent(part) for part in given]


def _sent(part: Any) -> Any:
    if not isinstance(part, Image.Image):
        return part
    # only opened so far, and nothing changed since: the file says it all
    if isinstance(part, PIL.ImageFile.ImageFile) and part.tile and part.filename and part.format in FORMATS:
        return ImageFile(str(Path(os.fsdecode(part.filename)).absolute()))
    part.load()
    return part


def incoming(given: Any) -> Any:
    """What a model is shown, from what was sent. Raises OSError or CorruptImage where a file is no image any more."""
    if isinstance(given, str):
        return given
    return [opened(Path(part.path)) if isinstance(part, ImageFile) else part for part in given]


def portable(error: Exception) -> Exception:
    """``error`` as it can cross to a process that has no code of the model's: a class of its own goes as its base."""
    if isinstance(error, RemoteError):
        return error
    for kind in (Refused, ItemFailed, OnHold, ModelUnusable, GenerationError):
        if isinstance(error, kind):
            plain = kind(str(error), error.attempts)
            plain.bill = error.bill
            if isinstance(plain, ItemFailed) and isinstance(error, ItemFailed):
                plain.transient = error.transient
            return plain
    trace = redact("".join(traceback.format_exception(error)))
    return RemoteError(type(error).__name__, one_line(error), trace)


def pack(message: NamedTuple) -> bytes:
    """``message`` with its length before it. An answer that cannot be sent is sent as that failure of its item."""
    try:
        data = pickle.dumps(message, protocol=5)
    except Exception:
        if not isinstance(message, ImagesReport):
            raise
        data = pickle.dumps(ImagesReport([_sendable(answer) for answer in message.answers]), protocol=5)
    return _LENGTH.pack(len(data)) + data


def _sendable(answer: Generated | Exception) -> Generated | Exception:
    try:
        pickle.dumps(answer, protocol=5)
    except Exception as error:  # of whatever the model's class put into it
        return portable(error)
    return answer


async def read(reader: asyncio.StreamReader) -> Any:
    """The next message. Raises EOFError or OSError when the other side is gone."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return pickle.loads(await reader.readexactly(length))


def receive(connection: socket.socket) -> Any:
    """The next message, for a thread that may wait. Raises EOFError or OSError when the other side is gone."""
    with_length = _exactly(connection, _LENGTH.size)
    return pickle.loads(_exactly(connection, _LENGTH.unpack(with_length)[0]))


def _exactly(connection: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view, here = memoryview(data), 0
    while here < length:
        received = connection.recv_into(view[here:])
        if not received:
            raise EOFError
        here += received
    return data
