"""A worker process: one replica of a model, asked through a socket; run by ``infer/worker.py``.

The main thread only makes images. One thread receives, so that the next chunk is here when the last one is done;
one sends, so that a GPU never waits for pixels to be handed over.
"""

from __future__ import annotations

import ctypes
import gc
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from imageevalkit.asset_checks.hub import commit_of
from imageevalkit.assets import HubAsset
from imageevalkit.errors import say
from imageevalkit.generation.model import (
    Generated,
    GenerationError,
    ImageModel,
    RemoteError,
    blocking,
    image_model,
    installed_packages,
)
from imageevalkit.generation.replicas.messages import (
    Breakdown,
    ImagesReport,
    LoadFailure,
    LoadOrder,
    LoadReport,
    MakeOrder,
    Remark,
    incoming,
    pack,
    portable,
    receive,
)
from imageevalkit.guest_code import guest_code
from imageevalkit.logs import print_to, print_without_fear
from imageevalkit.machine import breaks_the_process, is_out_of_memory
from imageevalkit.secrets import one_line, redact
from imageevalkit.text import let_streams_take_any_text
from imageevalkit.weights import may_be_hub_id

_PR_SET_PDEATHSIG = 1
_PARENT_GONE = 70  # an exit status that nobody is left to read
_MORE_ROOM = (
    "give a replica more GPUs in INFER_GPU_MAP (with device_map=balanced for a diffusers model), or keep only the part "
    "at work on the GPU (offload=model)"
)


def serve(connection: socket.socket, load_model: Callable[[Mapping[str, Any]], Any]) -> None:
    """Answer the parent at the other end of ``connection`` until it closes it."""
    let_streams_take_any_text()
    _die_with_parent()
    print_without_fear()
    # on Ctrl-C it is the parent who ends its workers, so that nothing becomes a failure of an item; no SIG_IGN, which
    # the programs that a model starts would inherit
    signal.signal(signal.SIGINT, lambda *_: None)
    orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, orders), daemon=True).start()
    sender = _Sender(connection)
    worker = _Worker(load_model, sender.send)
    while (order := orders.get()) is not None and worker.obey(order):
        pass
    sender.close()


def _die_with_parent() -> None:
    """A parent that is killed must not leave a process that holds a GPU. (Elsewhere it ends a little later.)"""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return


def _listen(connection: socket.socket, orders: queue.SimpleQueue[Any]) -> None:
    try:
        while True:
            orders.put(receive(connection))
    except (EOFError, OSError):
        orders.put(None)


class _Sender:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._messages: queue.SimpleQueue[NamedTuple | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, message: NamedTuple) -> None:
        self._messages.put(message)

    def close(self) -> None:
        """Return when all is sent."""
        self._messages.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (message := self._messages.get()) is not None:
            try:
                self._connection.sendall(pack(message))
            except OSError:
                os._exit(_PARENT_GONE)
            except BaseException:
                traceback.print_exc()
                os._exit(_PARENT_GONE)  # without an answer the parent would wait for ever


class _Worker:
    def __init__(
        self, load_model: Callable[[Mapping[str, Any]], Any], send: Callable[[NamedTuple], None]
    ) -> None:
        self._load_model, self._send = load_model, send
        self._model = ImageModel()
        self._generate: Callable[..., Any] = self._model.generate
        self._batch_size = self._fits = 1
        self._log = ""

    def obey(self, order: LoadOrder | MakeOrder) -> bool:
        """Do as told; whether this process can go on."""
        if order.log != self._log:
            self._log = order.log
            print_to(Path(order.log))
        try:
            if isinstance(order, LoadOrder):
                self._load(order)
            else:
                self._send(ImagesReport(self._make(order)))
        except _BrokenProcess as error:
            self._send(Breakdown(RemoteError(*error.args)))
            return False
        return True

    def _load(self, order: LoadOrder) -> None:
        self._model = ImageModel()  # the other one's memory is needed
        self._generate = self._model.generate
        _free_memory()
        started = time.perf_counter()
        try:
            with guest_code():
                self._model = image_model(self._load_model(order.setting))
        except Exception as error:
            if isinstance(error, GenerationError):
                text = one_line(error)
            else:
                say(redact(traceback.format_exc()))
                # first: CUDA's own word for no room is an error of the device too
                if is_out_of_memory(error):
                    text = f"{_line(error)}; {_MORE_ROOM}"
                elif breaks_the_process(error):
                    raise _broken(error) from error
                else:
                    text = f"{type(error).__name__}: {one_line(error, 300)}"
            self._send(LoadFailure(order.key, text))
            return
        self._generate = blocking(self._model)
        self._batch_size = self._fits = self._model.batch_size
        packages = {**installed_packages(), **_commit_of_weights(order.setting)}
        self._send(LoadReport(order.key, packages, self._batch_size, time.perf_counter() - started))

    def _make(self, order: MakeOrder) -> list[Generated | Exception]:
        answers: list[Generated | Exception] = []
        while len(answers) < len(order.inputs):
            first = len(answers)
            part = slice(first, first + min(self._fits, order.together))
            answers += self._part(order.inputs[part], order.seeds[part])
        return answers

    def _part(self, inputs: Sequence[Any], seeds: Sequence[int]) -> Iterable[Generated | Exception]:
        """Answers to the first ``inputs``: all of them, or fewer where memory does not suffice for all at once."""
        started = time.perf_counter()
        try:
            with guest_code():
                returned = self._called(inputs, seeds)
        except Exception as error:
            if is_out_of_memory(error):
                return self._with_less_memory(len(inputs), error)
            if breaks_the_process(error):
                raise _broken(error) from error
            if len(inputs) > 1:
                # whose fault it is shows when each has a turn of its own
                say(redact(traceback.format_exc()))
                self._send(
                    Remark(f"a batch of {len(inputs)} failed ({_line(error)}): its items are made singly")
                )
                return [a for i, s in zip(inputs, seeds, strict=True) for a in self._part([i], [s])]
            return [portable(error)]
        seconds = (time.perf_counter() - started) / len(inputs)
        batch = len(inputs) if self._batch_size > 1 else None
        return [_answer(one, seconds, batch) for one in returned]

    def _called(self, inputs: Sequence[Any], seeds: Sequence[int]) -> Sequence[Any]:
        if len(inputs) == 1:
            return [self._generate(incoming(inputs[0]), seed=seeds[0])]
        returned: Sequence[Any] = self._model.generate_batch([incoming(one) for one in inputs], seeds)
        if len(returned) != len(inputs):
            raise TypeError(f"generate_batch() returned {len(returned)} answers for {len(inputs)} inputs")
        return returned

    def _with_less_memory(self, batch: int, error: Exception) -> list[Generated | Exception]:
        failure = portable(error)
        error.__traceback__ = None  # its frames hold the tensors
        del error
        _free_memory()
        if batch == 1:
            return [failure]
        self._fits = batch // 2
        self._send(Remark(f"out of memory with a batch of {batch}: going on with {self._fits}"))
        return []


def _commit_of_weights(setting: Mapping[str, Any]) -> dict[str, str]:
    """The commit of a hub repository as it is in the cache now: a branch stands for another one tomorrow."""
    path = str(setting["model_path"])
    if Path(path).exists() or not may_be_hub_id(path):
        return {}
    commit = commit_of(HubAsset(path, setting.get("model_kwargs", {}).get("revision")))
    return {path: commit} if commit else {}


def _answer(returned: Any, seconds: float, batch: int | None) -> Generated | Exception:
    if isinstance(returned, Exception):
        return portable(returned)
    if isinstance(returned, Image.Image):
        returned = Generated(returned)
    if not isinstance(returned, Generated):
        return TypeError(f"generate() returned {type(returned).__name__}, expected a PIL.Image")
    try:
        if isinstance(returned.image, Image.Image):
            with guest_code():
                returned.image.load()  # a picture that a class has only opened may lie in a file that goes away
    except Exception as error:
        return portable(error)
    extra = {**returned.extra, "batch": batch} if batch else returned.extra
    return Generated(
        image=returned.image,
        seed_honoured=returned.seed_honoured,
        requested_size=returned.requested_size,
        attempts=returned.attempts,
        bill=returned.bill,
        proven=returned.proven,
        seconds=seconds if returned.seconds is None else returned.seconds,
        extra=extra,
    )


class _BrokenProcess(Exception):
    """``args`` are those of :class:`RemoteError`."""


def _broken(error: Exception) -> _BrokenProcess:
    return _BrokenProcess(
        type(error).__name__, one_line(error), redact("".join(traceback.format_exception(error)))
    )


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(error, 200)}"


def _free_memory() -> None:
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
