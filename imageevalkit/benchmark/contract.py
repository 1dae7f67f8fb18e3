"""The contract of a benchmark: one class in ``benchmarks/<folder>/benchmark.py`` says all that it is.

A subclass of :class:`Benchmark` gives ``name``, ``version``, a ``judge`` or ``measurers``, and the four methods
``samples``, ``questions``, ``score`` and ``metrics``; all else has a default. For common shapes there are bases that
need less (:mod:`imageevalkit.benchmark.shapes`). What the engine does is in ``docs/architecture.md``.
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
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from imageevalkit.assets import Asset, BenchmarkFiles, data_folder
from imageevalkit.benchmark.question import Answer, Picture, PixelRule, Question
from imageevalkit.cell import short_path
from imageevalkit.cell.items import Item
from imageevalkit.cell.jsonl import Shape, WrongShape, is_number
from imageevalkit.cell.results import Metric, Score
from imageevalkit.errors import CellFailure, UserError, said_of, say
from imageevalkit.guest_code import as_failure
from imageevalkit.secrets import one_line, redact

if TYPE_CHECKING:
    from PIL import Image

Rules = Literal["official", "corrected"]
"""As the official evaluator has them, quirks included; or with those mended that the README names."""


@dataclass(frozen=True)
class Settings:
    """What a user may choose of a benchmark (``--ds_kwargs``, ``DS_KWARGS_MAP``).

    A subclass adds fields, each with a type and a default; the benchmark names it as its ``settings_class``. What the
    user gives is checked against the types when the run is planned; ``__post_init__`` may raise ValueError for what
    types cannot say. The metadata of a field may say that it decides about scores ("decides"), is about images made
    elsewhere alone ("images_elsewhere"), or a path that needs ``<MODEL_NAME>`` in it where a run has several models
    ("of_one_model"). ``rules`` may be "corrected" only where the benchmark ``has_corrected_rules``.
    """

    rules: Rules = "official"


class Unparsed(Exception):
    """No value can be read in a reply. The text of the error says why, with the ``reply`` if given.

    ``final``: the official program accepts such a reply and does not ask again. So the engine does not, whatever
    ``Benchmark.tries`` is.
    """

    def __init__(self, why: str, reply: str | None = None, final: bool = False) -> None:
        super().__init__(why if reply is None else f"{why} in '{one_line(reply, 100)}'")
        self.final = final


class Sample(NamedTuple):
    """One image to make, whatever the model.

    ``file`` is its place below ``output/<model>/<benchmark>/``; its suffix decides the format, and without the suffix
    it is the id of the item ("images/0001_1.png": "images/0001_1"). A model is shown the ``prompt`` (t2i) or the
    ``input_list``, texts and PIL images in their order (edit, subject). The model's seed is 42 + ``seed``. ``data`` is
    what questions and scores need to know; it comes back as ``item.data``.
    """

    file: str
    prompt: str | None = None
    seed: int = 0
    data: Mapping[str, Any] = {}
    input_list: Sequence[Any] | None = None


class Measurer(NamedTuple):
    """Who measures without a judge: a name of ``eval_models/measurers.py``, or an Answerer of your own.

    Your own (:class:`imageevalkit.benchmark.answerer.Answerer`) is named by module and class
    ("benchmarks.mine.detector:Detector"), so that its packages are imported only where it measures. It is made with the
    ``options`` as keyword arguments, and gives JSON as the text of its answers.
    """

    name: str
    options: Mapping[str, Any] = {}


JUDGE = Measurer("")
"""Stands for the judge that the user chose."""


class Answers(Mapping[str, Answer]):
    """The answers about one item in which a value was read, by the name of the question; ``looked_at``: by anybody."""

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
        """How many replies to the question held no value so far: the words of the next attempt may depend on it."""
        return self._attempts.get(name, 0)


class ScoredItem(NamedTuple):
    """All that is known of an item when nothing is left to ask.

    ``image`` is None where there is none to score; ``attempted`` is False where nobody has tried to make one, so that
    an official evaluator would find no trace of it. ``answers`` are those with a value, ``replies`` all texts that
    came, both by the name of the question. ``score`` is None unless every question has a value. ``status`` is judged,
    unparsed, judge_failed or not_generated; all but the first have a ``reason``.
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
    """The scores of a cell's items, without those that have none; ``items`` are all, in the order of the benchmark."""

    def __init__(self, items: Sequence[ScoredItem]) -> None:
        super().__init__(one.score for one in items if one.score)
        self.items = items


class Benchmark(ABC):
    """What a benchmark says of itself.

    The attributes of the class:

    * ``name`` is what users call it; ``aliases`` are other names for it. ``version`` stands for its data, questions and
      rules: raise it whenever one of them changes. ``task`` is t2i, edit or subject. ``assets`` are what prefetch gets
      (:func:`imageevalkit.assets.github`); a property where that depends on the settings of the instance.
    * ``prompt_count`` is how many prompts (of edits: instructions) it has with the settings of the instance,
      ``images_per_prompt`` how many images are made of each: ``--list`` shows them before there is data. 0: not known.
    * ``headline`` names the metrics that are columns of the leaderboard; ``official_headline`` those that take their
      place when missing items are treated as the official evaluator treats them (with official rules alone).
    * ``judge`` is who is asked unless the user names another, by its full name (``openai:gpt-4o-2024-05-13``); empty
      where nothing goes to a judge. ``official_judges`` are all that count as official; empty: ``judge`` alone.
      ``takes`` is the kind of measurers that the user may name in its place ("reader": of text).
    * ``program`` is who measures where nobody is asked, as scores have it in their names.
    * ``pixels`` is how the official program decodes images: a judge is shown every picture so. None: files are sent as
      they are.
    * ``tries`` is how often a question is asked until a value can be read: more than once only where the official
      evaluator does that. ``scores_blank``: whether that evaluator scores the placeholder of an image that was not
      made.
    * ``relations`` are the names of values of its items, from 0 to 1 and in the order that decides which of two comes
      first: the report says how every two of them relate (:mod:`imageevalkit.relations`).
    * ``item_values`` are the names of all values that an item may have: a run with a misspelt one in ``--relations``
      does not start. Empty: they are known once items are scored.
    * ``needs_all_items`` says why no headline metric of a part of the items says which of two models is better:
      ``--until`` then makes all images, and says so before the first. Empty: it may stop early.
    * ``unbounded`` are the metrics, by name or shell pattern, whose values may lie beyond their scale. Any other such
      value is an error.
    * ``hub_dataset`` is its dataset on the Hugging Face Hub, under which ``--publish`` states scores of models there.
    * ``settings_class`` are its :class:`Settings`; ``has_corrected_rules``: it knows the rules "corrected" too.

    An instance has the user's ``settings``, the chosen ``judge`` (a full name, the name of a reader, or empty) and the
    full names of the ``official`` judges. ``readers`` are the names of all readers of text. Making one reads no file.
    """

    name: ClassVar[str]
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
        """What runs the judge (openai, transformers, vllm); empty where there is a reader, or no judge."""
        return self.judge.partition(":")[0] if ":" in self.judge else ""

    @property
    def shown_pixels(self) -> PixelRule | None:
        """:attr:`pixels` where a judge is asked; None where there is a reader, or no judge."""
        return self.pixels if self.backend else None

    @property
    def folder(self) -> Path:
        """The folder of its ``benchmark.py``, with the small files of its own."""
        return Path(inspect.getfile(type(self))).parent

    def files(self) -> BenchmarkFiles:
        """Its assets, as prefetch gets and checks them."""
        return BenchmarkFiles(self.name, self.assets)

    @property
    def data(self) -> Path:
        """The folder of its downloaded files."""
        return data_folder(self.name)

    @cached_property
    def prompts(self) -> Mapping[str, str]:
        """The texts that the judge is asked with, by name: part of the evaluator's name. A class with texts of its own
        overrides it. Raises CellFailure: those among the assets are not there.
        """
        return self.files().prompts()

    @property
    def measurers(self) -> Mapping[str, Measurer]:
        """Who answers the questions of each group, :data:`JUDGE` for the judge; empty: all go to the judge.

        The group of a question is its name up to the first slash: "point" of "point/colour".
        """
        return {}

    @property
    def judge_options(self) -> Mapping[str, Any]:
        """What a measurer in the place of the judge is made with."""
        return {}

    @property
    def identity(self) -> Mapping[str, Any]:
        """The settings that decide about scores, as JSON values: part of the evaluator's name.

        By default rules that are not official, and what else is not the default and says so of itself.
        """
        rules = {} if self.settings.rules == "official" else {"rules": self.settings.rules}
        deciding = (one for one in fields(self.settings) if one.metadata.get("decides"))
        given = ((one, getattr(self.settings, one.name)) for one in deciding)
        return rules | {one.name: value for one, value in given if value != one.default}

    @property
    def details(self) -> Mapping[str, Any]:
        """Other settings, as JSON values, that a reader of the result should see."""
        return {}

    @property
    def is_official(self) -> bool:
        """Whether its settings are those of the official evaluator."""
        return self.settings.rules == "official"

    def read_json(self, file: str, count: int | None = None) -> Any:
        """The content of a JSON file beside ``benchmark.py``, or among its data. Raises CellFailure: there is none, or
        it is no list or object of ``count`` entries."""
        return self._read(file, json.loads, count)

    def read_text(self, file: str) -> str:
        """The same of a text file."""
        return self._read(file, str)

    def read_jsonl(self, file: str, count: int | None = None) -> list[dict[str, Any]]:
        """The same of a JSON Lines file: its records. CellFailure too if they are not ``count``."""
        return self._read(file, _json_lines, count)

    def read_csv(self, file: str, count: int | None = None) -> list[dict[str, str]]:
        """The same of a CSV file: its rows, by column. CellFailure too if they are not ``count``."""
        return self._read(file, _csv_rows, count)

    def _read(self, file: str, parse: Callable[[str], Any], count: int | None = None) -> Any:
        path, where, remedy = self._place(file)
        # line ends within a text stay; a byte order mark, which some editors write, is no part of it
        with self.content_of(file), path.open(encoding="utf-8-sig", newline="") as opened:
            content = parse(opened.read())
            if count is not None and len(content) != count:
                raise CellFailure(f"{where} holds {len(content)} records, not {count}; {remedy}")
        return content

    @contextmanager
    def content_of(self, file: str) -> Iterator[None]:
        """A block that makes something of the content of ``file``, which may lack a key or hold another type.

        Raises CellFailure: it does, or cannot be read; a ValueError of the block says what else is wrong with it.
        """
        _, where, remedy = self._place(file)
        try:
            yield
        except OSError as error:
            raise CellFailure(f"{where} cannot be read ({error.strerror}); {remedy}") from None
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError, csv.Error) as error:
            said = f"{error} is missing" if isinstance(error, KeyError) else one_line(error)
            raise CellFailure(f"{where} is not what it should be ({said}); {remedy}") from None

    def _place(self, file: str) -> tuple[Path, str, str]:
        """Where ``file`` is, what begins a message about it, and what helps."""
        path = self.folder / file
        is_own = path.is_file() or not (self.assets or self.data.is_dir())
        path = path if is_own else self.data / file
        remedy = "mend it" if path.is_file() else "put it there"
        if self.assets and not is_own:
            remedy = f"run: bash utils/prefetch.sh --ds_names {self.name}"
        return path, f"benchmark {self.name}: {short_path(path)}", remedy

    def sources(self, item: Item) -> list[Picture]:
        """The images that the model was shown for ``item``, in their order. Raises CellFailure: one cannot be read."""
        if item.id not in self._sources:
            images = [part for part in item.input_list or () if not isinstance(part, str)]
            self._sources[item.id] = [
                self._source(image, f"source image {n} of item {item.id}") for n, image in enumerate(images)
            ]
        return self._sources[item.id]

    def _source(self, image: Any, where: str) -> Picture:
        from imageevalkit.images import CorruptImage, is_plain  # a plan does without Pillow

        file = Path(getattr(image, "filename", ""))
        try:
            # of a file its own bytes: what an official program would read
            data = file.read_bytes() if file.name else _png(image)
            plain = is_plain(data)
        except (OSError, CorruptImage) as error:
            raise CellFailure(f"benchmark {self.name}: {where} cannot be read: {one_line(error)}") from None
        sha256 = hashlib.sha256(data).hexdigest()
        return Picture(file, sha256, pixels=self.shown_pixels, plain=plain, data=None if file.name else data)

    def source_image(self, path: Path, remedy: str = "") -> Image.Image:
        """The image file ``path`` as a model is shown it, not decoded yet; one object, however often it is asked for.

        Raises CellFailure: it is not there, or no image. ``remedy`` says what helps, by default prefetch.
        """
        from imageevalkit.images import CorruptImage, opened_anew  # a plan does without Pillow

        try:
            if path not in self._images:
                self._images[path] = opened_anew(path)
            return self._images[path]
        except (OSError, CorruptImage) as error:
            is_missing = isinstance(error, FileNotFoundError)
            said = "is missing" if is_missing else f"cannot be read ({one_line(error)})"
            remedy = remedy or f"run: bash utils/prefetch.sh --ds_names {self.name}"
            raise CellFailure(f"benchmark {self.name}: {short_path(path)} {said}; {remedy}") from None

    def check(self) -> None:  # noqa: B027 - most have nothing to say
        """Look at settings and judge when the run is planned. Raises UserError: they do not go together."""

    @abstractmethod
    def samples(self) -> Iterable[Sample]:
        """The images to make, in an order in which any first N stand for all: :func:`imageevalkit.metrics.spread` helps
        with that.
        """

    @abstractmethod
    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        """What to ask about the ``image`` of ``item``: questions made by ``ask`` or ``measure``, each of its own name.

        It is called again with the ``answers`` so far, until it gives no new name: later questions may quote earlier
        answers. What it gives must depend on the arguments alone.
        """

    def parse(self, question: Question, answer: Answer) -> Any:
        """The value in an answer, a JSON value: by default the text of a judge or of a reader of text, and what another
        measurer's text is as JSON. Raises Unparsed: there is none.
        """
        measurer = self.measurers.get(question.group, JUDGE)
        if measurer == JUDGE or measurer.name in self.readers:
            return answer.text
        return json_value(answer)

    @abstractmethod
    def score(self, item: Item, answers: Answers) -> Score:
        """What an item is worth; called where every question has an answer with a value."""

    @abstractmethod
    def metrics(self, scores: Scores) -> Mapping[str, Metric]:
        """The metrics of all scores, by name; :mod:`imageevalkit.metrics` makes them.

        Those of the headline are there even without scores. Where the official evaluator's own treatment of missing
        items gives another number, that is a metric of its own, and named so.
        """

    def notes(self, scores: Scores) -> Sequence[str]:
        """What a reader of the result should know about how it was measured, a sentence each."""
        return ()

    def official_files(self, scores: Scores) -> Mapping[str, str | bytes]:
        """Files in the official formats (texts, pictures) by name, for ``official/`` beside the result; a name may have
        folders ("en/samples.csv")."""
        return {}

    def compare(self, scores: Mapping[str, Sequence[Score]]) -> Mapping[str, str | bytes]:
        """Files about several models, whose scores are given by name, for ``output/comparisons/``: they were measured
        by one evaluator on the same items. The settings are those of the run that reports.
        """
        return {}

    def find_images(self, source: Path, items: Sequence[Item]) -> Mapping[str, Any] | None:
        """Where images made elsewhere are, by item id, in the folder (or file) ``source`` of ``--images``: a path, or a
        :class:`imageevalkit.adoption.Place`. None: the layout is none that only this benchmark knows. Of layouts
        that are patterns, :func:`imageevalkit.adoption.find_named` does it.
        """
        return None


def json_value(answer: Answer, shape: Shape[Any] | None = None) -> Any:
    """The JSON value that a measurer has given, an object of that ``shape``. Raises Unparsed: it is none."""
    try:
        value = json.loads(answer.text or "")
        return shape.read(value) if shape else value
    except (ValueError, RecursionError) as error:
        why = f": {error}" if isinstance(error, WrongShape) else ""
        raise Unparsed(f"the record holds no measurement{why}") from None


def _csv_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def _json_lines(text: str) -> list[Any]:
    """The values of the lines that are not empty. Raises ValueError: one is no JSON."""
    values = []
    for number, line in enumerate(io.StringIO(text), 1):
        try:
            values += [json.loads(line)] if line.strip() else []
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number}: {error.msg} at column {error.colno}") from None
    return values


def _png(image: Any) -> bytes:
    """The PIL ``image`` with its transparency, about which the rule for pixels decides."""
    buffer = io.BytesIO()
    (image if image.mode in ("1", "L", "LA", "P", "RGB", "RGBA") else image.convert("RGB")).save(
        buffer, "PNG"
    )
    return buffer.getvalue()


@contextmanager
def benchmark_code(name: str, where: str) -> Iterator[str]:
    """A block that runs code of the benchmark ``name``; it gives what begins each message. ``where``: "score() of …".

    Raises CellFailure: whatever it raises; the traceback is printed.
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
    """Whether what a benchmark's code gives ``is_right``. Raises CellFailure: ``where`` begins what is said."""
    if not is_right:
        raise CellFailure(f"{where} is {reprlib.repr(value)}, and must be {must_be}")


def is_json(value: Any) -> bool:
    """Whether it can be written as JSON, in which numbers are finite."""
    if value is None or value.__class__ in (str, bool):
        return True
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def check_score(score: Any, where: str) -> None:
    """Whether it is a Score of finite numbers and JSON values. Raises CellFailure as :func:`require`."""
    require(isinstance(score, Score), where, score, "a Score")
    for name, value in score.values.items():
        is_value = is_number(value) or isinstance(value, bool)
        require(is_value, f"{where}: '{name}'", value, "a finite number")
    for name, value in {**score.keys, **score.detail}.items():
        require(is_json(value), f"{where}: '{name}'", value, "a JSON value")
    for n, point in enumerate(score.points):
        check_score(point, f"{where}, points[{n}]")
