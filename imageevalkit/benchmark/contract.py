"""The contract of a benchmark: one class in ``benchmarks/<name>/benchmark.py`` says all that it is.

The engine owns the rest: who answers, batches, requests, retries, money, resume, coverage (see
``docs/architecture.md``).
"""

from __future__ import annotations

import csv
import hashlib
import inspect
import io
import json
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, overload

from imageevalkit.assets import Asset, BenchmarkFiles, data_folder
from imageevalkit.benchmark.question import Answer, Picture, PixelRule, Question
from imageevalkit.cell.items import Item
from imageevalkit.cell.results import Metric
from imageevalkit.cell.scores import Score
from imageevalkit.errors import CellFailure, UserError, say
from imageevalkit.guest_code import guest_code
from imageevalkit.secrets import one_line, redact

Rules = Literal["official", "corrected"]
"""As the official evaluator has them, quirks included; or with those mended that the README names."""


@dataclass(frozen=True)
class Settings:
    """What a user may choose of a benchmark (``--ds_kwargs``, ``DS_KWARGS_MAP``); a benchmark adds fields of its own.

    Checked once, at planning, against the types of the fields; ``__post_init__`` may raise ValueError for what types do
    not say. Every field has a default. ``rules`` "corrected" is for benchmarks with
    :attr:`Benchmark.has_corrected_rules`.
    """

    rules: Rules = "official"


class Unparsed(Exception):
    """There is an answer, but it holds no value; the text says what is wrong with it."""


class Sample(NamedTuple):
    """One image to make, before it is some model's.

    ``file`` is where it goes below the folder of the cell ("images/0001_1.png"), which is also its id. A model is shown
    ``prompt``, or for editing ``input_list`` (texts and PIL images in their order). The seed is 42 + ``seed``. ``data``
    is whatever the scoring needs to know.
    """

    file: str
    prompt: str | None = None
    seed: int = 0
    data: Mapping[str, Any] = {}
    input_list: Sequence[Any] | None = None


class Measurer(NamedTuple):
    """Who measures without words: a model of ``eval_models/`` by its name there, or an Answerer of your own.

    That is named by module and class ("benchmarks.mine.detector:Detector"), so that its packages are imported only
    where it measures. It is made with the ``options``; see :class:`imageevalkit.benchmark.answerer.Answerer`.
    """

    name: str
    options: Mapping[str, Any] = {}


JUDGE = Measurer("")
"""Stands for the judge that the user chose."""


class Answers(Mapping[str, Answer]):
    """The answers about one item that hold a value, by the name of the question."""

    def __init__(self, answers: Mapping[str, Answer], attempts: Mapping[str, int] | None = None) -> None:
        self._answers = answers
        self._attempts = attempts or {}

    def __getitem__(self, name: str) -> Answer:
        return self._answers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._answers)

    def __len__(self) -> int:
        return len(self._answers)

    def attempt(self, name: str) -> int:
        """How many replies to the question held no value: 0 at first. Its wording may depend on that."""
        return self._attempts.get(name, 0)

    @property
    def values_by_name(self) -> dict[str, Any]:
        """What was read in each answer (:meth:`Benchmark.parse`)."""
        return {name: answer.value for name, answer in self._answers.items()}


class ScoredItem(NamedTuple):
    """All that is known of an item when nothing is left to ask.

    ``image`` is None where there is none; ``attempted`` is False where nobody has tried to make one, so that an
    official evaluator would find no trace of it. ``answers`` lack those without a value; ``replies`` are all texts
    that came, by the name of the question. ``score`` is None unless every question has a value. ``status`` is
    judged, unparsed, judge_failed or not_generated, all but the first with the ``reason``.
    """

    item: Item
    image: Path | None
    answers: Answers
    replies: Mapping[str, str]
    score: Score | None
    attempted: bool = True
    status: str = "judged"
    reason: str = ""


class Scores(Sequence[Score]):
    """The scores of a cell; ``items`` are all of the run, scored or not, in the order of the benchmark."""

    def __init__(self, items: Sequence[ScoredItem]) -> None:
        self.items = items
        self._scores = [one.score for one in items if one.score]

    @overload
    def __getitem__(self, index: int) -> Score: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Score]: ...
    def __getitem__(self, index: int | slice) -> Score | Sequence[Score]:
        return self._scores[index]

    def __len__(self) -> int:
        return len(self._scores)


class Benchmark(ABC):
    """What a benchmark says of itself.

    The attributes of the class:

    * ``version`` names data, prompts and rules, and is raised whenever one of them changes; ``task`` is t2i, edit or
      subject. ``assets`` are what prefetch gets (:mod:`imageevalkit.assets`).
    * ``headline`` names the metrics of the leaderboard, ``official_headline`` those that stand in their place when
      missing items are treated as the official evaluator does.
    * ``judge`` is the official one by its full name (``openai:gpt-4o-2024-05-13``), asked unless a user names another;
      empty where nothing goes to a judge. ``official_judges`` are all that count as official. A text reader may
      stand in for it where ``takes_readers``.
    * ``pixels`` is how the official program decodes images: every picture that a judge is shown has it. None: it sends
      files as they are.
    * ``tries`` is how often a question is asked until an answer holds a value: more than once only where the official
      evaluator does that. ``scores_blank``: whether it scores the placeholder of an image that was not made.
    * ``unbounded`` are the metrics, by name or shell pattern, whose values may lie beyond their scale; of any other
      such a value is a fault.

    An instance has the user's ``settings`` and the chosen ``judge`` (a full name, the name of a reader, or empty).
    Making one reads no file.
    """

    name: ClassVar[str]
    version: ClassVar[str]
    task: ClassVar[str] = "t2i"
    assets: ClassVar[Sequence[Asset]] = ()
    headline: Sequence[str] = ()
    official_headline: Sequence[str] = ()
    judge: str = ""
    official_judges: ClassVar[Sequence[str]] = ()
    takes_readers: bool = False
    pixels: PixelRule | None = None
    tries: ClassVar[int] = 1
    scores_blank: ClassVar[bool] = True
    unbounded: Sequence[str] = ()
    has_corrected_rules: ClassVar[bool] = False
    settings_class: ClassVar[type[Settings]] = Settings

    def __init__(self, settings: Settings | None = None, judge: str = "") -> None:
        self.settings = settings or self.settings_class()
        self.judge = judge or self.judge

    @property
    def is_official_judge(self) -> bool:
        """Whether the judge is one that the official evaluator uses, whatever its settings."""
        return self.judge in self.official

    @property
    def official(self) -> Sequence[str]:
        """The full names of the official judges."""
        return self.official_judges or (type(self).judge,)

    @property
    def backend(self) -> str:
        """What runs the judge (openai, transformers, vllm); empty for a reader, or none."""
        return self.judge.partition(":")[0] if ":" in self.judge else ""

    @property
    def shown_pixels(self) -> PixelRule | None:
        """:attr:`pixels` where a judge is asked; None for a reader, or none."""
        return self.pixels if self.backend else None

    @property
    def folder(self) -> Path:
        """The folder of its ``benchmark.py``, with the small files of its own."""
        return Path(inspect.getfile(type(self))).parent

    @classmethod
    def files(cls) -> BenchmarkFiles:
        """Its assets, as prefetch gets and checks them."""
        return BenchmarkFiles(cls.name, cls.assets)

    @property
    def data(self) -> Path:
        """The folder of its downloaded files."""
        return data_folder(self.name)

    @cached_property
    def prompts(self) -> Mapping[str, str]:
        """The texts that the judge is asked with, by name: a part of the evaluator's name.

        By default the official ones among the assets. Raises CellFailure: they are not there.
        """
        return self.files().prompts()

    @property
    def measurers(self) -> Mapping[str, Measurer]:
        """Who answers the questions of each group (see ``Question.group``), :data:`JUDGE` for the judge.

        Empty: all go to the judge.
        """
        return {}

    @property
    def identity(self) -> Mapping[str, Any]:
        """The settings that decide about scores, for the name of the evaluator; by default the rules if corrected."""
        return {} if self.settings.rules == "official" else {"rules": self.settings.rules}

    @property
    def details(self) -> Mapping[str, Any]:
        """Other settings that a reader of the result should see beside :attr:`identity`."""
        return {}

    @property
    def is_official(self) -> bool:
        """Whether its settings are those of the official evaluator."""
        return self.settings.rules == "official"

    def read_json(self, file: str) -> Any:
        """The content of a JSON file of its own, or among its data. Raises CellFailure: it cannot be read."""
        return self._read(file, json.loads)

    def read_jsonl(self, file: str, count: int | None = None) -> list[dict[str, Any]]:
        """The records of a JSON Lines file likewise, ``count`` of them if given. Raises CellFailure likewise."""
        return self._read(file, lambda text: [json.loads(line) for line in io.StringIO(text)], count)

    def read_csv(self, file: str, count: int | None = None) -> list[dict[str, str]]:
        """The rows of a CSV file likewise by column, ``count`` of them if given. Raises CellFailure likewise."""
        return self._read(file, lambda text: list(csv.DictReader(io.StringIO(text, newline=""))), count)

    def _read(self, file: str, parse: Callable[[str], Any], count: int | None = None) -> Any:
        path = self.folder / file
        if not path.is_file():
            path = self.data / file
        remedy = f"run: bash utils/prefetch.sh --ds_names {self.name}" if self.assets else "restore it"
        try:
            with path.open(encoding="utf-8", newline="") as opened:  # line ends within a text stay
                content = parse(opened.read())
        except OSError as error:
            raise CellFailure(f"{path} cannot be read ({error.strerror}); {remedy}") from None
        except (ValueError, RecursionError, csv.Error) as error:
            raise CellFailure(f"{path} is not what it should be ({one_line(error)}); {remedy}") from None
        if count is not None and len(content) != count:
            raise CellFailure(f"{path} holds {len(content)} records, not {count}; {remedy}")
        return content

    def sources(self, item: Item) -> list[Picture]:
        """The images that the model was shown for ``item``, in their order, to be asked about beside the one it made.

        Raises:
            CellFailure: one cannot be read.
        """
        known: list[Picture] | None = self._sources.get(item.id)
        if known is None:
            images = [part for part in item.input_list or () if not isinstance(part, str)]
            known = self._sources[item.id] = [
                self._source(image, f"benchmark {self.name}: source image {n} of item {item.id}")
                for n, image in enumerate(images)
            ]
        return known

    @cached_property
    def _sources(self) -> dict[str, list[Picture]]:
        return {}

    def _source(self, image: Any, where: str) -> Picture:
        from imageevalkit.images import CorruptImage, is_plain  # a plan does without Pillow

        file = Path(getattr(image, "filename", ""))
        try:
            # of a file its own bytes: what an official program would read
            data = file.read_bytes() if file.name else _png(image)
            plain = is_plain(data)
        except (OSError, CorruptImage) as error:
            raise CellFailure(f"{where} cannot be read: {one_line(error)}") from None
        sha256 = hashlib.sha256(data).hexdigest()
        return Picture(file, sha256, pixels=self.shown_pixels, plain=plain, data=None if file.name else data)

    def check(self) -> None:  # noqa: B027 - most have nothing to say
        """Called at planning. Raises UserError: settings and judge do not go together."""

    @abstractmethod
    def samples(self) -> Iterable[Sample]:
        """The images to make, in an order in which any first N stand for all. Raises CellFailure: data are amiss."""

    @abstractmethod
    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        """What to ask about the ``image`` of ``item``, given the ``answers`` so far.

        Called again with what was answered, until it gives no name that is new: later questions may quote earlier
        answers. What it gives must depend on nothing else.
        """

    def parse(self, question: Question, answer: Answer) -> Any:
        """The JSON value in an answer: the text of a judge, the measurement of a measurer. Raises :class:`Unparsed`."""
        if self.measurers.get(question.group, JUDGE) == JUDGE:
            return answer.text
        try:
            return json.loads(answer.text or "")
        except (ValueError, RecursionError):
            raise Unparsed("the record holds no measurement") from None

    @abstractmethod
    def score(self, item: Item, answers: Answers) -> Score:
        """The score of an item, from an answer to every question."""

    @abstractmethod
    def metrics(self, scores: Scores) -> Mapping[str, Metric]:
        """The metrics over all items of the run; those of the headline are there even without scores.

        Where the official evaluator's own treatment of missing items gives another number, it is a metric of its
        own, named so.
        """

    def notes(self, scores: Scores) -> Sequence[str]:
        """What a reader of the result should know about how it was measured, a sentence each."""
        return ()

    def official_files(self, scores: Scores) -> Mapping[str, str | bytes]:
        """Files in the official formats (texts, pictures) by name, for ``official/`` beside the result."""
        return {}

    def compare(self, scores: Mapping[str, Sequence[Score]]) -> Mapping[str, str | bytes]:
        """Files about several models (by name) that were measured alike, for ``output/comparisons/``; at the report."""
        return {}

    def find_images(self, source: Path, items: Sequence[Item]) -> Mapping[str, Any] | None:
        """Images made elsewhere in a layout of its own (see :mod:`imageevalkit.adoption`); None: in no such layout."""
        return None


def _png(image: Any) -> bytes:
    """The PIL ``image`` with its transparency, about which the rule for pixels decides."""
    buffer = io.BytesIO()
    (image if image.mode in ("1", "L", "LA", "P", "RGB", "RGBA") else image.convert("RGB")).save(
        buffer, "PNG"
    )
    return buffer.getvalue()


T = TypeVar("T")


def spread(groups: Iterable[Sequence[T]]) -> list[T]:
    """All elements, each group kept in its order and spread evenly, so that any first N hold its share of N.

    Of N · (size of the group) / (size of all) that differs by half an element, and by what the other groups' halves
    add up to: by less than 2 for six groups. Equal places go to the earlier group.
    """
    placed = [
        ((k + 0.5) / len(group), n, element)
        for n, group in enumerate(groups)
        for k, element in enumerate(group)
    ]
    return [element for _, _, element in sorted(placed, key=lambda entry: entry[:2])]


def grouped(elements: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """The elements by their key, in order of first appearance."""
    groups: dict[Any, list[T]] = {}
    for element in elements:
        groups.setdefault(key(element), []).append(element)
    return groups


@contextmanager
def benchmark_code(name: str, where: str) -> Iterator[None]:
    """A block that runs code of the benchmark ``name``: ``where`` ("score() of item 3") begins what is said of its
    errors.

    Raises:
        CellFailure: whatever it raises; the traceback is printed.
    """
    try:
        with guest_code():
            yield
    except (UserError, CellFailure):
        raise
    except Exception as error:
        say(redact(traceback.format_exc()))
        said = f"{type(error).__name__}: {one_line(error, 300)}"
        raise CellFailure(f"benchmark {name}: {where} fails: {said}") from error
