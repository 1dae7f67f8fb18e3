"""PP-OCR: reads the text in an image."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from imageevalkit.benchmark.answerer import Answerer
from imageevalkit.benchmark.question import Answer, Question
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.images import CorruptImage, decode, on_white, sha256_file
from imageevalkit.store.results import Evaluator

if TYPE_CHECKING:
    import numpy as np

# the packages that affect a reading; only one of the two OpenCV packages is installed
_PACKAGES = (
    "rapidocr-onnxruntime",
    "onnxruntime",
    "opencv-python",
    "opencv-python-headless",
    "numpy",
    "pillow",
)
_SETTINGS: dict[str, Any] = {
    "text_score": 0.5,
    # without the classifier text turned by 90° or 180° is lost; it takes 3 % of the time
    "use_cls": True,
    # RapidOCR's default 0.9 turns 3.3 % of short upright words upside down, 0.99 only 0.5 %; both find most
    # turned lines
    "cls_thresh": 0.99,
    "det_limit_side_len": 736,
    "det_limit_type": "min",
    "max_side_len": 2000,
    # a batch pads its lines to the widest; single lines take half the time and read slightly better
    "rec_batch_num": 1,
}
# The threshold of keeping_spaces(). Without it, recall on 8 English texts in 3 typefaces, 3 sizes and 5 looks
# is 0.57. With any value of 0.002-0.01, recall is 0.98-0.99 and precision 0.97-0.99. Lower values split
# words.
_SPACE_PROBABILITY = 0.005
# After this many deaths in a row the cause is the machine, not the images.
_MAX_DEATHS = 5
_REMEDY = "in the benchmark's environment run: pip install -r requirements/benchmark/t2i/longtext.txt"


class Box(NamedTuple):
    """A piece of text and its upright bounding box in pixels."""

    text: str
    left: float
    top: float
    bottom: float


class PPOCR(Answerer):
    """PP-OCRv4 (Chinese and English, mobile) on the CPU: rapidocr-onnxruntime, weights from its wheel.

    The answer to any question is the text in its picture. Several processes, each with its own model and one
    thread, read the pictures.
    """

    @functools.cached_property
    def evaluator(self) -> Evaluator:
        spec = importlib.util.find_spec("rapidocr_onnxruntime")
        if spec is None or not spec.origin:
            raise CellFailure(f"evaluator ppocr needs the package rapidocr-onnxruntime; {_REMEDY}")
        weights = sorted((Path(spec.origin).parent / "models").glob("*.onnx"))
        versions = {}
        for name in _PACKAGES:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[name] = importlib.metadata.version(name)
        return Evaluator(
            id="ppocr-v4",  # changed settings change scores, so they need a new id
            official=False,
            details={
                "packages": versions,
                "weights_sha256": {path.name: sha256_file(path) for path in weights},
                "settings": {**_SETTINGS, "space_probability": _SPACE_PROBABILITY},
            },
        )

    def read(self, data: bytes) -> str:
        """Returns all text in the image file ``data``: lines in reading order, joined by newlines; empty
        without text.

        Raises CorruptImage if ``data`` is no complete image.
        """
        import numpy as np

        # (height, width, BGR) on white: RapidOCR itself would invert the colours of transparent images
        found, _ = self._engine(np.asarray(on_white(decode(data)))[:, :, ::-1])
        boxes = []
        for corners, text, _ in found or []:
            ys = [y for _, y in corners]
            boxes.append(Box(text, min(x for x, _ in corners), min(ys), max(ys)))
        return "\n".join(lines(boxes))

    def __getstate__(self) -> dict[str, Any]:
        # a loaded model cannot be pickled: each process loads its own
        return {name: value for name, value in vars(self).items() if name != "_engine"}

    @functools.cached_property
    def _engine(self) -> Any:
        try:
            import cv2
            from rapidocr_onnxruntime import RapidOCR

            cv2.setNumThreads(1)
            engine = RapidOCR(intra_op_num_threads=1, inter_op_num_threads=1, **_SETTINGS)
        except Exception as error:  # a missing system library, a damaged weight file: no image can be read
            raise CellFailure(
                f"evaluator ppocr does not load ({type(error).__name__}: {error}); {_REMEDY}"
            ) from error
        engine.text_rec.postprocess_op = keeping_spaces(engine.text_rec.postprocess_op)
        return engine

    def ask(self, questions: Sequence[Question], workers: int = 1) -> Iterator[Answer]:
        """Yields the text in each picture as soon as it is read.

        If a process dies (out of memory, a crash in native code), only its current picture gets an error, and
        a new process replaces it. Raises CellFailure if a package is missing or processes keep dying.
        """
        context = multiprocessing.get_context("spawn")  # fork is unsafe: this process has threads
        processes: dict[Connection, SpawnProcess] = {}
        busy: dict[Connection, Question] = {}

        def new_process() -> Connection:
            ours, theirs = multiprocessing.Pipe()
            with theirs:  # closed here, else recv() would wait forever after the process died
                process = context.Process(target=_serve, args=(self, theirs), daemon=True)
                process.start()
            processes[ours] = process
            return ours

        def end(pipe: Connection) -> None:
            process = processes.pop(pipe)
            process.kill()
            process.join()
            process.close()
            pipe.close()

        todo, deaths = iter(questions), 0
        try:
            idle = [new_process() for _ in range(min(workers, len(questions)))]
            while True:
                for pipe, question in zip(idle, todo, strict=False):
                    try:
                        pipe.send(question)
                    except OSError:  # the process died between two pictures
                        end(pipe)
                        pipe = new_process()
                        pipe.send(question)
                    busy[pipe] = question
                idle = []
                if not busy:
                    return
                ready = wait([*busy])
                for pipe in [one for one in busy if one in ready]:
                    question = busy.pop(pipe)
                    try:
                        answer, deaths = pipe.recv(), 0
                    except (EOFError, OSError):
                        answer, deaths = Answer(question, None, "the reading process died"), deaths + 1
                        end(pipe)
                        pipe = new_process()
                    if isinstance(answer, CellFailure):
                        raise answer
                    idle.append(pipe)
                    yield answer
                    if deaths >= _MAX_DEATHS:
                        raise CellFailure(
                            f"text reader '{self.label}': {deaths} processes died in a row, the last on "
                            f"{question.pictures[0].path}; is there enough memory? Fewer workers need less"
                        )
        finally:
            for pipe in [*processes]:  # an interrupted run does not wait for current pictures
                end(pipe)


def _serve(reader: PPOCR, pipe: Connection) -> None:
    """Answers questions from ``pipe`` until its other end is closed."""
    # Ctrl-C reaches the whole process group; the parent ends this process, so no traceback appears
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        while True:
            pipe.send(_answer(reader, pipe.recv()))


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
    os._exit(1)


def _answer(reader: PPOCR, question: Question) -> Answer | CellFailure:
    start, text, error = time.monotonic(), None, ""
    try:
        text = reader.read(question.pictures[0].read())
    except CellFailure as failure:
        return failure
    except CorruptImage as problem:
        error = f"unreadable image: {problem}"
    except Exception as problem:  # an error of the disk or of a library fails this image only
        error = f"{type(problem).__name__}: {problem}".splitlines()[0]
    return Answer(question, text, error, seconds=time.monotonic() - start)


def keeping_spaces(decode: Any) -> Callable[..., list[tuple[str, float]]]:
    """Returns a CTC decoder that keeps the spaces between Latin words.

    The recogniser was trained on Chinese. Between words its best guess is mostly "blank", with the space a
    distant second. Greedy decoding would join a whole line into one word. Inside words the space's
    probability is far lower, so a small threshold separates the two cases. ``decode`` is RapidOCR's decoder,
    whose scores stay unchanged. It takes probabilities (lines, columns, characters); the space is the last
    character, the blank the first.
    """

    def decode_spaces(predictions: np.ndarray, *args: Any, **options: Any) -> list[tuple[str, float]]:
        plain = decode(predictions, *args, **options)
        blank = predictions.argmax(axis=2) == 0
        spaced = predictions.copy()
        spaced[blank & (predictions[..., -1] >= _SPACE_PROBABILITY), -1] = 2.0  # above any probability
        texts = decode(spaced, *args, **options)
        return [(text, score) for (text, *_), (_, score, *_) in zip(texts, plain, strict=True)]

    return decode_spaces


def lines(boxes: list[Box]) -> list[str]:
    """Returns the lines of text in reading order. Boxes whose centre is within a line's height join that
    line."""
    rows: list[list[Box]] = []
    for box in sorted(boxes, key=lambda box: box.top + box.bottom):
        centre = (box.top + box.bottom) / 2
        if rows and rows[-1][0].top <= centre <= rows[-1][0].bottom:
            rows[-1].append(box)
        else:
            rows.append([box])
    return [" ".join(box.text for box in sorted(row, key=lambda box: box.left)) for row in rows]
