"""A worker process: one replica of a model, controlled through a socket; started by ``infer/worker.py``.

The main thread only generates images. One thread receives, so that the next chunk is ready in time. One
thread sends, so that the GPU never waits for a transfer of pixels. For a model behind an API, more threads
make several calls at once.

The parent runs in the driver's environment, this process in the model's: modules that are imported here use
only the standard library, Pillow and tqdm. Python and Pillow may have other versions than in the parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import pickle
import queue
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import PIL.ImageFile
from PIL import Image

from imageevalkit.api.limiter import Traffic
from imageevalkit.assets import HubAsset
from imageevalkit.assets.check import commit_of
from imageevalkit.assets.weights import may_be_hub_id
from imageevalkit.common.errors import remedy_of_import, say
from imageevalkit.common.guest_code import guest_code
from imageevalkit.common.images import FORMATS, opened
from imageevalkit.common.logs import print_to, print_without_fear
from imageevalkit.common.machine import breaks_the_process, is_out_of_memory
from imageevalkit.common.redaction import one_line, redact
from imageevalkit.common.text import let_streams_take_any_text
from imageevalkit.generate.model import (
    Generated,
    GenerationError,
    ImageModel,
    ItemFailed,
    ModelUnusable,
    OnHold,
    Refused,
    RemoteError,
    as_generated,
    blocking,
    image_model,
    in_threads,
    installed_packages,
    size_for,
)

# ---- the messages between worker and parent, and their framing on the socket

_LENGTH = struct.Struct(">Q")


class ImageFile(NamedTuple):
    """An image of an input list that the worker opens, so that its pixels are in memory only when needed."""

    path: str


class LoadOrder(NamedTuple):
    """To a worker: replace the loaded model by the model of ``setting``, which is called ``key``.

    ``traffic`` are the limits of a model behind an API; None for a local model, which makes one call at a
    time.
    """

    key: str
    setting: Mapping[str, Any]
    log: str
    traffic: Traffic | None


class MakeOrder(NamedTuple):
    """To a worker: generate the images of one chunk, at most ``together`` in one call of the model.

    All have the ``size`` (width, height); None: the model's own. The model prints to the file ``log``.
    ``number`` identifies the chunk.
    """

    number: int
    inputs: Sequence[Any]
    seeds: Sequence[int]
    size: tuple[int, int] | None
    together: int
    log: str


class LoadReport(NamedTuple):
    """From a worker: the model was loaded in ``seconds`` and accepts ``batch_size`` items in a call.

    ``packages`` are the packages that generate its images. ``is_bounded``: its requests respect the ``traffic``.
    """

    key: str
    packages: Mapping[str, str]
    batch_size: int
    seconds: float
    is_bounded: bool


class LoadFailure(NamedTuple):
    """From a worker: the reason, on one line, why the model ``key`` does not load. Others may load."""

    key: str
    text: str


class ImagesReport(NamedTuple):
    """From a worker: an answer for each input of the chunk ``number``, in order."""

    number: int
    answers: Sequence[Generated | Exception]


class Remark(NamedTuple):
    """From a worker: a line for the log, such as a reduction of the batch size."""

    text: str


class Breakdown(NamedTuple):
    """From a worker, its last message: the process can generate no more images (a CUDA error persists)."""

    error: Exception


def outgoing(given: Any) -> Any:
    """Returns the model's input as it is sent. Raises Pillow's errors for an image that does not decode."""
    return given if isinstance(given, str) else [_sent(part) for part in given]


def _sent(part: Any) -> Any:
    if not isinstance(part, Image.Image):
        return part
    # only opened and not modified: the worker can open the file itself
    if isinstance(part, PIL.ImageFile.ImageFile) and part.tile and part.filename and part.format in FORMATS:
        return ImageFile(str(Path(os.fsdecode(part.filename)).absolute()))
    part.load()
    return _plain(part)


def _plain(image: Image.Image) -> Image.Image:
    """Returns ``image`` as an object of Pillow's base class, which every version of Pillow unpickles.

    Subclasses, of Pillow or of a model's code, may not exist on the other side, or may have other fields.
    """
    return image if type(image) is Image.Image else image.copy()


def incoming(given: Any) -> Any:
    """Returns the model's input from a message. Raises OSError or CorruptImage if a file has changed."""
    if isinstance(given, str):
        return given
    return [opened(Path(part.path)) if isinstance(part, ImageFile) else part for part in given]


def portable(error: Exception) -> Exception:
    """Returns ``error`` as an exception that unpickles without the model's code: a class of ours."""
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
    text = one_line(error) + remedy_of_import(error, "INFER_ENV_MAP")
    return RemoteError(type(error).__name__, text, trace)


def pack(message: NamedTuple) -> bytes:
    """Returns ``message`` as bytes with its length. An answer that cannot be pickled becomes an error."""
    try:
        data = pickle.dumps(message, protocol=5)
    except Exception:
        if not isinstance(message, ImagesReport):
            raise
        data = pickle.dumps(message._replace(answers=[*map(_sendable, message.answers)]), protocol=5)
    return _LENGTH.pack(len(data)) + data


def _sendable(answer: Generated | Exception) -> Generated | Exception:
    try:
        pickle.dumps(answer, protocol=5)
    except Exception as error:  # the model's class may put any object into an answer
        return portable(error)
    return answer


async def read(reader: asyncio.StreamReader) -> Any:
    """Returns the next message. Raises EOFError or OSError if the other side is gone."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return pickle.loads(await reader.readexactly(length))


def receive(file: BinaryIO) -> Any:
    """Returns the next message, blocking the thread. Raises EOFError or OSError if the other side is gone."""
    if len(file.read(_LENGTH.size)) < _LENGTH.size:
        raise EOFError
    try:
        return pickle.load(file)
    except pickle.UnpicklingError:  # the message is truncated
        raise EOFError from None


# ---- the process

_PR_SET_PDEATHSIG = 1
_PARENT_GONE = 70  # an exit status that no process reads
_MORE_ROOM = (
    "give a replica more GPUs in INFER_GPU_MAP (with device_map=balanced for a diffusers model), or keep only the part "
    "at work on the GPU (offload=model)"
)


def serve(connection: socket.socket, load_model: Callable[[Mapping[str, Any]], Any]) -> None:
    """Obey the parent at the other end of ``connection`` until it closes the connection."""
    let_streams_take_any_text()
    _die_with_parent()
    print_without_fear()
    # on Ctrl-C the parent ends its workers, or items would fail; not SIG_IGN, which programs started by a
    # model would inherit
    signal.signal(signal.SIGINT, lambda *_: None)
    orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, orders), daemon=True).start()
    messages: queue.SimpleQueue[NamedTuple | None] = queue.SimpleQueue()
    sender = threading.Thread(target=_send_all, args=(connection, messages), daemon=True)
    sender.start()
    worker = _Worker(load_model, messages.put)
    while (order := orders.get()) is not None and worker.obey(order):
        pass
    messages.put(None)
    sender.join()


def _die_with_parent() -> None:
    """Have Linux kill this process when its parent dies: it would hold the GPU. Elsewhere it ends later."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _listen(connection: socket.socket, orders: queue.SimpleQueue[Any]) -> None:
    with contextlib.suppress(EOFError, OSError), connection.makefile("rb") as file:
        while True:
            orders.put(receive(file))
    orders.put(None)


def _send_all(connection: socket.socket, messages: queue.SimpleQueue[NamedTuple | None]) -> None:
    """Send all messages up to a None."""
    while (message := messages.get()) is not None:
        try:
            connection.sendall(pack(message))
        except OSError:
            os._exit(_PARENT_GONE)
        except BaseException:
            traceback.print_exc()
            os._exit(_PARENT_GONE)  # the parent would wait for the answer for ever


class _Worker:
    def __init__(
        self, load_model: Callable[[Mapping[str, Any]], Any], send: Callable[[NamedTuple], None]
    ) -> None:
        self._load_model, self._send = load_model, send
        self._model = ImageModel()
        self._generate: Callable[..., Any] = self._model.generate
        self._batch_size = self._fits = 1
        self._log = ""
        self._threads: ThreadPoolExecutor | None = None

    def obey(self, order: LoadOrder | MakeOrder) -> bool:
        """Execute ``order``. Returns whether the process can continue."""
        if order.log != self._log:
            self._log = order.log
            print_to(Path(order.log))
        try:
            if isinstance(order, LoadOrder):
                self._load(order)
            elif self._threads is None:
                self._send(ImagesReport(order.number, self._make(order)))
            else:
                self._threads.submit(self._make_in_thread, order)
        except _BrokenProcess as error:
            self._send(Breakdown(error.args[0]))
            return False
        return True

    def _make_in_thread(self, order: MakeOrder) -> None:
        try:
            self._send(ImagesReport(order.number, self._make(order)))
        except BaseException:
            traceback.print_exc()
            os._exit(_PARENT_GONE)  # the parent would wait for the answer for ever

    def _load(self, order: LoadOrder) -> None:
        self._model = ImageModel()  # free the memory of the previous model
        self._generate = self._model.generate
        _free_memory()
        started = time.perf_counter()
        is_bounded = False

        def load() -> ImageModel:
            nonlocal is_bounded
            model = image_model(self._load_model(order.setting))
            is_bounded = order.traffic is not None and model.use_traffic(order.traffic)
            return model

        try:
            with guest_code():
                self._model = load()
        except Exception as error:
            if isinstance(error, GenerationError):
                text = one_line(error)
            else:
                say(redact(traceback.format_exc()))
                # checked first, because an out-of-memory error also counts as an error of the device
                if is_out_of_memory(error):
                    text = f"{_line(error)}; {_MORE_ROOM}"
                elif breaks_the_process(error):
                    raise _BrokenProcess(portable(error)) from error
                else:
                    text = why_not_loaded(error)
            self._send(LoadFailure(order.key, text))
            return
        self._generate = blocking(self._model)
        if order.traffic and not self._model.is_async:
            self._generate = in_threads(load)
        self._threads = ThreadPoolExecutor(order.traffic.workers) if order.traffic else None
        self._batch_size = self._fits = 1 if order.traffic else self._model.batch_size
        packages = {**installed_packages(), **_commit_of_weights(order.setting)}
        seconds = time.perf_counter() - started
        self._send(LoadReport(order.key, packages, self._batch_size, seconds, is_bounded))

    def _make(self, order: MakeOrder) -> list[Generated | Exception]:
        answers: list[Generated | Exception] = []
        while len(answers) < len(order.inputs):
            first = len(answers)
            part = slice(first, first + min(self._fits, order.together))
            answers += self._part(order.inputs[part], order.seeds[part], order.size)
        return answers

    def _part(
        self, inputs: Sequence[Any], seeds: Sequence[int], size: tuple[int, int] | None
    ) -> Iterable[Generated | Exception]:
        """Returns answers for the first ``inputs``: for all, or for fewer if memory does not suffice."""
        started = time.perf_counter()
        try:
            with guest_code():
                returned = self._called(inputs, seeds, size_for(self._model, size))
        except Exception as error:
            if is_out_of_memory(error):
                return self._with_less_memory(len(inputs), error)
            if breaks_the_process(error):
                raise _BrokenProcess(portable(error)) from error
            if len(inputs) > 1:
                # one item per call shows which item fails
                say(redact(traceback.format_exc()))
                self._send(
                    Remark(
                        f"a batch of {len(inputs)} failed ({_line(error)}): its items are generated one by one"
                    )
                )
                return [a for i, s in zip(inputs, seeds, strict=True) for a in self._part([i], [s], size)]
            return [portable(error)]
        seconds = (time.perf_counter() - started) / len(inputs)
        batch = len(inputs) if self._batch_size > 1 else None
        honoured = self._model.seed_honoured
        return [_answer(one, seconds, batch, honoured) for one in returned]

    def _called(self, inputs: Sequence[Any], seeds: Sequence[int], size: Mapping[str, Any]) -> Sequence[Any]:
        if len(inputs) == 1:
            return [self._generate(incoming(inputs[0]), seed=seeds[0], **size)]
        generate_batch: Callable[..., Sequence[Any]] = self._model.generate_batch
        returned = generate_batch([incoming(one) for one in inputs], seeds, **size)
        if len(returned) != len(inputs):
            raise TypeError(f"generate_batch() returned {len(returned)} answers for {len(inputs)} inputs")
        return returned

    def _with_less_memory(self, batch: int, error: Exception) -> list[Generated | Exception]:
        failure = portable(error)
        error.__traceback__ = None  # the frames of the traceback hold tensors
        del error
        _free_memory()
        if batch == 1:
            return [failure]
        self._fits = batch // 2
        self._send(Remark(f"out of memory with a batch of {batch}: continuing with {self._fits}"))
        return []


def _commit_of_weights(setting: Mapping[str, Any]) -> dict[str, str]:
    """Returns the cached commit of a hub repository, because a branch may move on later."""
    path = str(setting["model_path"])
    if Path(path).exists() or not may_be_hub_id(path):
        return {}
    commit = commit_of(HubAsset(path, setting.get("model_kwargs", {}).get("revision")))
    return {path: commit} if commit else {}


def _answer(returned: Any, seconds: float, batch: int | None, honoured: bool | None) -> Generated | Exception:
    if isinstance(returned, Exception):
        return portable(returned)
    try:
        made = as_generated(returned)
        if isinstance(made.image, Image.Image):
            with guest_code():
                made.image.load()  # an image that is only opened may come from a file that disappears
    except Exception as error:
        return portable(error)
    # the base class, because the parent may not know a subclass of the model's code
    plain = Generated(**{each.name: getattr(made, each.name) for each in fields(Generated)})
    return replace(
        plain,
        image=_plain(made.image) if isinstance(made.image, Image.Image) else made.image,
        seed_honoured=honoured if made.seed_honoured is None else made.seed_honoured,
        seconds=seconds if made.seconds is None else made.seconds,
        extra={**made.extra, "batch": batch} if batch else made.extra,
    )


def why_not_loaded(error: Exception) -> str:
    """Returns one line on the ``error`` with which a model's class did not load."""
    return f"{type(error).__name__}: {one_line(error, 300)}{remedy_of_import(error, 'INFER_ENV_MAP')}"


class _BrokenProcess(Exception):
    """This process can generate no more images; the argument is the error for :class:`Breakdown`."""


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(error, 200)}"


def _free_memory() -> None:
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
