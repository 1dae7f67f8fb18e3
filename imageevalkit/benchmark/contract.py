"""The contract of a benchmark: one class in ``benchmarks/<folder>/benchmark.py`` defines the whole benchmark.

A subclass of :class:`Benchmark` defines ``name``, ``version``, a ``judge`` or ``measurers``, and the four
methods ``samples``, ``questions``, ``score`` and ``metrics``. Everything else has a default. Benchmarks of a
common shape need less code with the base classes in :mod:`imageevalkit.benchmark.shapes`.
``docs/architecture.md`` describes the engine.
"""

from __future__ import annotations

import csv
import hashlib
import inspect
import io
import json
import reprlib
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

from imageevalkit.assets import Asset, BenchmarkFiles, data_folder
from imageevalkit.benchmark.question import Answer, Picture, PixelRule, Question
from imageevalkit.common.errors import CellFailure, UserError, said_of, say
from imageevalkit.common.guest_code import as_failure
from imageevalkit.common.redaction import one_line, redact
from imageevalkit.store.cell import short_path
from imageevalkit.store.items import Item
from imageevalkit.store.jsonl import Reader, is_number
from imageevalkit.store.results import Metric, Score

if TYPE_CHECKING:
    from PIL import Image

T = TypeVar("T")
Rules = Literal["official", "corrected"]
"""The scoring rules: "official" copies the official evaluator with its quirks; "corrected" fixes the quirks
that ``docs/benchmarks/`` names."""


@dataclass(frozen=True)
class Settings:
    """The settings of a benchmark that a user may change (``--ds_kwargs``, ``DS_KWARGS_MAP``).

    A subclass adds fields, each with a type and a default; the benchmark names the subclass as its
    ``settings_class``. Planning checks the user's values against the types. ``__post_init__`` may check more
    and raise ValueError. ``rules`` may be "corrected" only if the benchmark sets ``has_corrected_rules``.

    The metadata of a field may set three keys to True. "decides": the field changes scores.
    "images_elsewhere": the field is only valid with ``--images``. "of_one_model": the field is a path; in a
    run with several models it must contain ``<MODEL_NAME>``.
    """

    rules: Rules = "official"


class Unparsed(Exception):
    """:meth:`Benchmark.parse` raises Unparsed if a reply has no value. The text is ``why`` and the ``reply``.

    If ``final`` is true, the engine does not ask the question again, for any ``Benchmark.tries``: the
    official program accepts such a reply too.
    """

    def __init__(self, why: str, reply: str | None = None, final: bool = False) -> None:
        super().__init__(why if reply is None else f"{why} in '{one_line(reply, 100)}'")
        self.final = final


class Sample(NamedTuple):
    """One image that every model generates.

    ``file`` is the path of the image below ``output/<model>/<benchmark>/``. Its suffix sets the image format.
    The path without the suffix is the id of the item ("images/0001_1.png": "images/0001_1"). The model gets
    the ``prompt`` (t2i) or the ``input_list`` of texts and PIL images (edit, subject). The seed of the model
    is 42 + ``seed``. The methods ``questions`` and ``score`` find ``data`` again as ``item.data``.

    ``size`` is the (width, height) in pixels that the benchmark asks for. Models that cannot choose a size
    generate their own.
    """

    file: str
    prompt: str | None = None
    seed: int = 0
    data: Mapping[str, Any] = {}
    input_list: Sequence[Any] | None = None
    size: tuple[int, int] | None = None


class Measurer(NamedTuple):
    """A metric model that answers questions: from ``eval_models/measurers.py``, or an Answerer of your own.

    For your own subclass of :class:`imageevalkit.benchmark.answerer.Answerer`, ``name`` is its module and
    class ("benchmarks.mine.detector:Detector"). The module is imported only to create the evaluator: no other
    code needs its packages. The class gets the ``options`` as keyword arguments. The text of each of its
    answers must be JSON.
    """

    name: str
    options: Mapping[str, Any] = {}


JUDGE = Measurer("")
"""The placeholder in ``measurers`` for the judge that the user chose."""


class Answers(Mapping[str, Answer]):
    """The answers about one item that have a value, by the name of the question.

    ``looked_at`` is True once code has read an answer: later questions may then depend on answers.
    """

    def __init__(self, answers: Mapping[str, Answer], attempts: Mapping[str, int] | None = None) -> None:
        self._answers, self._attempts = dict(answers), attempts or {}
        self.looked_at = False

    def _look(self) -> dict[str, Answer]:
        self.looked_at = True
        return self._answers

    def __getitem__(self, name: str) -> Answer:
        return self._look()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._look())

    def __len__(self) -> int:
        return len(self._look())

    def attempt(self, name: str) -> int:
        """Returns how many replies to the question had no value so far. A retry may use other words."""
        return self._attempts.get(name, 0)


class ScoredItem(NamedTuple):
    """An item after evaluation.

    ``image`` is None if there is no image to score. ``attempted`` is False if no job tried to generate the
    image; an official evaluator would then find no trace of the item. ``answers`` holds the answers with a
    value, ``replies`` the last text reply of each question; both by the name of the question. ``score`` is
    None unless every question has a value. ``status`` is judged, unparsed, judge_failed or not_generated;
    ``reason`` is empty only for judged.
    """

    item: Item
    image: Path | None
    answers: Answers
    replies: Mapping[str, str]
    score: Score | None
    attempted: bool = True
    status: str = "judged"
    reason: str = ""


class Scores(list[Score]):
    """The scores of the items that have a score. ``items`` holds all items, in the order of the benchmark."""

    def __init__(self, items: Sequence[ScoredItem]) -> None:
        super().__init__(one.score for one in items if one.score)
        self.items = items


class Benchmark(ABC):
    """The base class of all benchmarks.

    The attributes of the class:

    * ``name`` is the benchmark's name on the command line; ``aliases`` are other names for it. ``title`` is
      the name that papers use ("GenEval 2"); empty: ``name``. ``version``
      identifies its data, questions and rules: raise it whenever one of them changes. ``task`` is t2i, edit
      or subject. ``assets`` are the downloads of prefetch (:func:`imageevalkit.assets.github`), a property if
      they depend on the settings.
    * ``prompt_count`` is the number of prompts (for edits: instructions) under the current settings, 0 if
      unknown; ``images_per_prompt`` is the number of images for each prompt. ``--list`` shows both before any
      download.
    * ``headline`` names the metrics that are columns of the leaderboard. ``official_headline`` replaces them
      if missing items are treated as the official evaluator treats them. Corrected rules have no official
      headline.
    * ``judge`` is the full name of the default judge (``openai:gpt-4o-2024-05-13``), empty if no judge is
      needed. ``official_judges`` are all judges that count as official; empty means only ``judge``. ``takes``
      is the kind of metric model that a user may name in place of the judge ("reader" for OCR models).
    * ``program`` replaces the evaluator's name in the names of scores if the benchmark asks no evaluator.
    * ``pixels`` is the official program's way of decoding images: the judge sees every image decoded that
      way. None: files are sent unchanged.
    * ``tries`` is how often a question is asked until a reply has a value; above 1 only if the official
      evaluator retries. ``scores_blank``: the official evaluator also scores the blank placeholder of a
      missing image.
    * ``relations`` are names of item values from 0 to 1: the report relates every two of them
      (:mod:`imageevalkit.extras.relations`). Their order decides which value of a pair comes first.
    * ``item_values`` are the names of all values that an item may have: a run with another name in
      ``--relations`` does not start. Empty: the names are only known after scoring.
    * ``needs_all_items`` is the reason why metrics over a part of the items cannot rank two models.
      ``--until`` then generates all images, and the plan shows the reason. Empty: ``--until`` may stop early.
    * ``unbounded`` are the metrics, by name or shell pattern, whose values may lie beyond their scale. For
      all other metrics such a value is an error.
    * ``hub_dataset`` is the benchmark's dataset on the Hugging Face Hub; published scores name it.
    * ``settings_class`` is the class of its :class:`Settings`; ``has_corrected_rules``: see ``Rules``.

    An instance has the user's ``settings``, the chosen ``judge`` and the full names of the ``official``
    judges. ``judge`` is a full name, the name of an OCR model, or empty. ``readers`` are the names of all OCR
    models. The constructor reads no file.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""
    aliases: ClassVar[Sequence[str]] = ()
    version: ClassVar[str]
    task: ClassVar[str] = "t2i"
    assets: Sequence[Asset] = ()
    prompt_count: int = 0
    images_per_prompt: int = 1
    headline: Sequence[str] = ()
    official_headline: Sequence[str] = ()
    judge: str = ""
    official_judges: ClassVar[Sequence[str]] = ()
    takes: str = ""
    program: str = "script"
    hub_dataset: ClassVar[str] = ""
    pixels: PixelRule | None = None
    tries: int = 1
    scores_blank: ClassVar[bool] = True
    relations: ClassVar[Sequence[str]] = ()
    item_values: Sequence[str] = ()
    needs_all_items: str = ""
    unbounded: Sequence[str] = ()
    has_corrected_rules: ClassVar[bool] = False
    settings_class: ClassVar[type[Settings]] = Settings
    readers: Sequence[str] = ()

    def __init__(self, settings: Settings | None = None, judge: str = "") -> None:
        self.settings = settings or self.settings_class()
        self.official = self.official_judges or (self.judge,)
        self.judge = judge or self.judge
        if self.settings.rules != "official":
            self.official_headline = ()
        self._sources: dict[str, list[Picture]] = {}
        self._images: dict[Path, Image.Image] = {}

    @property
    def backend(self) -> str:
        """The backend of the judge (openai, transformers, vllm); empty for an OCR model or no judge."""
        return self.judge.partition(":")[0] if ":" in self.judge else ""

    @property
    def shown_pixels(self) -> PixelRule | None:
        """:attr:`pixels` if a judge is asked; None for an OCR model or without a judge."""
        return self.pixels if self.backend else None

    @property
    def folder(self) -> Path:
        """The folder of the benchmark's ``benchmark.py``, which may hold small files too."""
        return Path(inspect.getfile(type(self))).parent

    def files(self) -> BenchmarkFiles:
        """Returns the benchmark's assets as an object that downloads and checks them."""
        return BenchmarkFiles(self.name, self.assets)

    @property
    def data(self) -> Path:
        """The folder of the benchmark's downloaded files."""
        return data_folder(self.name)

    @cached_property
    def prompts(self) -> Mapping[str, str]:
        """The texts of the judge's questions, by name. They are part of the evaluator's name: a changed text
        makes a new evaluator. Override it if the texts are in the code. Raises CellFailure if an asset with
        texts is missing.
        """
        return self.files().prompts()

    @property
    def measurers(self) -> Mapping[str, Measurer]:
        """The evaluator of each group of questions, :data:`JUDGE` for the judge. Empty: the judge gets all.

        The group of a question is its name up to the first slash: "point/colour" belongs to "point".
        """
        return {}

    @property
    def judge_options(self) -> Mapping[str, Any]:
        """The options of a metric model that replaces the judge."""
        return {}

    @property
    def identity(self) -> Mapping[str, Any]:
        """The settings that change scores, as JSON values. They are part of the evaluator's name.

        The default: corrected rules, and every field with metadata "decides" that differs from its default.
        """
        rules = {} if self.settings.rules == "official" else {"rules": self.settings.rules}
        deciding = (one for one in fields(self.settings) if one.metadata.get("decides"))
        given = ((one, getattr(self.settings, one.name)) for one in deciding)
        return rules | {one.name: value for one, value in given if value != one.default}

    @property
    def details(self) -> Mapping[str, Any]:
        """Further settings, as JSON values, to record in the result."""
        return {}

    @property
    def is_official(self) -> bool:
        """Whether the settings equal the settings of the official evaluator."""
        return self.settings.rules == "official"

    def read_json(self, file: str, count: int | None = None) -> Any:
        """Returns the content of a JSON file beside ``benchmark.py`` or in :attr:`data`. Raises CellFailure
        if the file is missing or is not valid, or if it does not have ``count`` entries."""
        return self._read(file, json.loads, count)

    def read_text(self, file: str) -> str:
        """Returns the content of a text file, with the places and errors of :meth:`read_json`."""
        return self._read(file, str)

    def read_jsonl(self, file: str, count: int | None = None) -> list[dict[str, Any]]:
        """Returns the records of a JSON Lines file, with the places and errors of :meth:`read_json`."""
        return self._read(file, _json_lines, count)

    def read_csv(self, file: str, count: int | None = None) -> list[dict[str, str]]:
        """Returns the rows of a CSV file by column name, with the places and errors of :meth:`read_json`."""
        return self._read(file, _csv_rows, count)

    def _read(self, file: str, parse: Callable[[str], Any], count: int | None = None) -> Any:
        path, where, remedy = self._place(file)
        # newline="" keeps the line ends inside texts. utf-8-sig drops the byte order mark of some editors.
        with self.content_of(file), path.open(encoding="utf-8-sig", newline="") as opened:
            content = parse(opened.read())
            if count is not None and len(content) != count:
                raise CellFailure(f"{where} holds {len(content)} records, not {count}; {remedy}")
        return content

    @contextmanager
    def content_of(self, file: str) -> Iterator[None]:
        """A ``with`` block for code that uses the content of ``file``.

        Raises CellFailure with the file's name if the block raises OSError, ValueError or an error about a
        missing key or a wrong type.
        """
        _, where, remedy = self._place(file)
        try:
            yield
        except OSError as error:
            raise CellFailure(f"{where} cannot be read ({error.strerror}); {remedy}") from None
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError, csv.Error) as error:
            problem = f"{error} is missing" if isinstance(error, KeyError) else one_line(error)
            raise CellFailure(f"{where} is invalid ({problem}); {remedy}") from None

    def _place(self, file: str) -> tuple[Path, str, str]:
        """Returns the path of ``file``, and the beginning and the remedy of an error message about it."""
        path = self.folder / file
        is_own = path.is_file() or not (self.assets or self.data.is_dir())
        path = path if is_own else self.data / file
        remedy = "mend it" if path.is_file() else "put it there"
        if self.assets and not is_own:
            remedy = f"run: bash eval.sh prefetch --ds_names {self.name}"
        return path, f"benchmark {self.name}: {short_path(path)}", remedy

    def sources(self, item: Item) -> list[Picture]:
        """Returns the input images of ``item``, in order. Raises CellFailure if an image cannot be read."""
        if item.id not in self._sources:
            images = [part for part in item.input_list or () if not isinstance(part, str)]
            self._sources[item.id] = [
                self._source(image, f"source image {n} of item {item.id}") for n, image in enumerate(images)
            ]
        return self._sources[item.id]

    def _source(self, image: Any, where: str) -> Picture:
        from imageevalkit.common.images import CorruptImage, is_plain  # here, so that a plan needs no Pillow

        file = Path(getattr(image, "filename", ""))
        try:
            # An official program reads the bytes of the file: an image encoded again could differ.
            data = file.read_bytes() if file.name else _png(image)
            plain = is_plain(data)
        except (OSError, CorruptImage) as error:
            raise CellFailure(f"benchmark {self.name}: {where} cannot be read: {one_line(error)}") from None
        sha256 = hashlib.sha256(data).hexdigest()
        return Picture(file, sha256, pixels=self.shown_pixels, plain=plain, data=None if file.name else data)

    def source_image(self, path: Path, remedy: str = "") -> Image.Image:
        """Returns the image file ``path`` for an ``input_list``, not decoded. All calls share it.

        Raises CellFailure if the file is missing or no image. The message ends with ``remedy``, by default
        the prefetch command.
        """
        from imageevalkit.common.images import (  # here, so that a plan needs no Pillow
            CorruptImage,
            opened_anew,
        )

        try:
            if path not in self._images:
                self._images[path] = opened_anew(path)
            return self._images[path]
        except (OSError, CorruptImage) as error:
            is_missing = isinstance(error, FileNotFoundError)
            problem = "is missing" if is_missing else f"cannot be read ({one_line(error)})"
            remedy = remedy or f"run: bash eval.sh prefetch --ds_names {self.name}"
            raise CellFailure(f"benchmark {self.name}: {short_path(path)} {problem}; {remedy}") from None

    def check(self) -> None:  # noqa: B027 - optional to override
        """Checks settings and judge while the run is planned. Raises UserError if they do not go together."""

    @abstractmethod
    def samples(self) -> Iterable[Sample]:
        """Returns the images to generate. With ``--limit N`` a run uses the first N, so these should
        represent the whole benchmark: :func:`imageevalkit.metrics.spread` computes such an order.
        """

    @abstractmethod
    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        """Returns the questions about ``image``, made by ``ask`` or ``measure``, each with its own name.

        The engine calls it again with the ``answers`` so far, until there is no new question: a later
        question may quote an earlier answer. The result must depend only on the arguments.
        """

    def parse(self, question: Question, answer: Answer) -> Any:
        """Returns the value of an answer, a JSON value. The default is the text of a judge or an OCR model,
        and the parsed JSON of any other metric model. Raises Unparsed if the answer has no value.
        """
        measurer = self.measurers.get(question.group, JUDGE)
        if measurer == JUDGE or measurer.name in self.readers:
            return answer.text
        return json_value(answer)

    @abstractmethod
    def score(self, item: Item, answers: Answers) -> Score:
        """Returns the score of an item. The engine calls it only if every question has a value."""

    @abstractmethod
    def metrics(self, scores: Scores) -> Mapping[str, Metric]:
        """Returns the metrics over all scores, by name; :mod:`imageevalkit.metrics` has functions for them.

        The headline metrics must be present even without scores. If the official evaluator's treatment of
        missing items leads to another number, return that number as a metric with another name
        (``official_headline``).
        """

    def notes(self, scores: Scores) -> Sequence[str]:
        """Returns sentences about the measurement that belong beside the result."""
        return ()

    def official_files(self, scores: Scores) -> Mapping[str, str | bytes]:
        """Returns files in the official formats (texts, pictures) by name. The engine writes them to
        ``official/`` beside the result. A name may contain folders ("en/samples.csv")."""
        return {}

    def compare(self, scores: Mapping[str, Sequence[Score]]) -> Mapping[str, str | bytes]:
        """Returns files that compare several models; the report writes them to ``output/comparisons/``.

        ``scores`` holds the scores of each model by its name, of the same items and the same evaluator.
        ``self.settings`` are the settings of the run that writes the report.
        """
        return {}

    def find_images(self, source: Path, items: Sequence[Item]) -> Mapping[str, Any] | None:
        """Returns the places of images in the folder or file ``source`` of ``--images``, by item id: each a
        path or a :class:`imageevalkit.benchmark.image_files.Place`. None if ``source`` has no layout that is special to
        this benchmark. For file names that follow a pattern, use :func:`imageevalkit.benchmark.image_files.find_named`.
        """
        return None


def json_value(answer: Answer) -> Any:
    """Returns a metric model's answer as JSON. Raises Unparsed if it is no JSON."""
    try:
        return json.loads(answer.text or "")
    except (ValueError, RecursionError):
        raise Unparsed("the record holds no measurement") from None


def measurement(answer: Answer, reader: Reader[T]) -> T:
    """Returns a metric model's answer as an object of ``reader``. Raises Unparsed if it is no such object."""
    try:
        return reader.read(json_value(answer))
    except ValueError as error:
        raise Unparsed(f"the record holds no measurement: {error}") from None


def _csv_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def _json_lines(text: str) -> list[Any]:
    """Returns the values of all lines that are not empty. Raises ValueError if a line is no JSON."""
    values = []
    for number, line in enumerate(io.StringIO(text), 1):
        try:
            values += [json.loads(line)] if line.strip() else []
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number}: {error.msg} at column {error.colno}") from None
    return values


def _png(image: Any) -> bytes:
    """Returns ``image`` as PNG bytes. Its transparency stays: the pixel rule decides about it later."""
    buffer = io.BytesIO()
    (image if image.mode in ("1", "L", "LA", "P", "RGB", "RGBA") else image.convert("RGB")).save(
        buffer, "PNG"
    )
    return buffer.getvalue()


@contextmanager
def benchmark_code(name: str, where: str) -> Iterator[str]:
    """A ``with`` block that runs code of the benchmark ``name``. It yields the beginning of error messages.

    ``where`` names the code ("score() of …"). If the code raises any other error than UserError or
    CellFailure, the block prints the traceback and raises CellFailure.
    """
    where = f"benchmark {name}: {where}"
    try:
        yield where
    except (UserError, CellFailure):
        raise
    except BaseException as error:
        failure = as_failure(error)
        if not isinstance(failure, Exception):
            raise
        say(redact("".join(traceback.format_exception(failure))))
        raise CellFailure(f"{where} fails: {said_of(failure)}") from failure


def require(is_right: bool, where: str, value: Any, must_be: str) -> None:
    """Raises CellFailure unless ``is_right``. The message has ``where`` and ``value``."""
    if not is_right:
        raise CellFailure(f"{where} is {reprlib.repr(value)}, and must be {must_be}")


def is_json(value: Any) -> bool:
    """Whether ``value`` can be written as JSON with finite numbers."""
    if value is None or value.__class__ in (str, bool):
        return True
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def check_score(score: Any, where: str) -> None:
    """Raises CellFailure unless ``score`` is a Score of finite numbers and JSON values."""
    require(isinstance(score, Score), where, score, "a Score")
    for name, value in score.values.items():
        is_value = is_number(value) or isinstance(value, bool)
        require(is_value, f"{where}: '{name}'", value, "a finite number")
    for name, value in {**score.keys, **score.detail}.items():
        require(is_json(value), f"{where}: '{name}'", value, "a JSON value")
    for n, point in enumerate(score.points):
        check_score(point, f"{where}, points[{n}]")
