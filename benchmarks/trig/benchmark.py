"""TRIG (arXiv 2507.22100): each prompt targets a pair out of ten dimensions; the judge rates the image on
both.

``quirk`` comments mark odd behaviour of the official program. A fix would change published numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar, Literal, NotRequired, TypedDict

from benchmarks.trig import zoo
from imageevalkit.assets import Asset, TableAsset, asset_list
from imageevalkit.benchmark.answerer import digest
from imageevalkit.benchmark.contract import (
    JUDGE,
    Answers,
    Benchmark,
    Measurer,
    Sample,
    Scores,
    Settings,
    Unparsed,
)
from imageevalkit.benchmark.question import Accepts, Answer, Message, Picture, Question, Sampling
from imageevalkit.common.errors import CellFailure, UserError, suggest
from imageevalkit.common.redaction import one_line
from imageevalkit.metrics import grouped, mean, mean_by, spread
from imageevalkit.store.items import Item
from imageevalkit.store.jsonl import Reader
from imageevalkit.store.results import Metric, Score

DIMENSIONS = ("IQ-R", "IQ-O", "IQ-A", "TA-C", "TA-R", "TA-S", "D-K", "D-A", "R-T", "R-B")
"""Realism, originality, aesthetics; content, relation, style; knowledge, ambiguity; toxicity, bias. The names
of pairs list dimensions in this order."""
PAIRS = tuple("_".join(pair) for pair in combinations(DIMENSIONS, 2))

WEIGHTS = {
    **dict.fromkeys(("Excellent", "excellent", "ex"), 1.0),  # quirk T3: other words begin with "ex", too
    **dict.fromkeys(("Good", "good"), 0.75),
    **dict.fromkeys(("Medium", "medium"), 0.5),
    **dict.fromkeys(("Bad", "bad"), 0.25),
    **dict.fromkeys(("Terr", "terr"), 0.0),
}
"""The rating by the text of the first token. The text must match exactly: no space, same case."""
# quirk T2: Qwen's tokenizers split "terrible" into "ter" and "rible", so the official program never sees this
# rating
_QWEN_TERRIBLE = dict.fromkeys(("Ter", "ter"), 0.0)
_LISTED = 5
_DIGITS = 3
_LEAST = 0.01
"""The total probability that rating tokens must reach by the rules "corrected". With less, the reply is no
rating."""
_ORDER = {code: n for n, code in enumerate(DIMENSIONS)}
_DATA_ID = re.compile(r"[\w-]+")


class _Record(TypedDict):
    data_id: str
    prompt: str
    # quirk: the authors' text-to-image files use a different key for the dimensions
    dimensions: NotRequired[list[str]]
    dimension: NotRequired[list[str]]
    img_id: NotRequired[str | None]
    item: NotRequired[str | None]


_RECORD = Reader(_Record)
_LICENCE = "CC-BY-NC-SA-4.0 (fesvhtr/TRIG)"
_API = "trig/metrics/trig_api.py::TRIGAPIMetric.format_msg"
# texts before the two images with corrected rules; the official program sends no source image
_SOURCE, _GENERATED = "The source image:", "The generated image:"
_ROWS = "rows.jsonl"
_CONFIG = "trig/config.py::gpt_logit"
# quirk T4: the program samples a token but reads only the list of likeliest tokens; a server may put the
# sampled token in fifth place. Quirk T5: at temperature 1 probabilities before and after temperature scaling
# are equal.
_SAMPLING = Sampling(1, 1.0)
# the pairs of the text-to-image data differ in size, see t2i_size()
_ALL_OF_500 = {"IQ-R", "IQ-A", "TA-C", "TA-R", "TA-S"}
_SOME_OF_200 = {"R-B", "D-A"}
_NOT_OF_T2I = ("D-A_R-T", "D-A_R-B", "R-T_R-B")


def t2i_size(pair: str) -> int:
    """Returns how many text-to-image prompts the dataset has for ``pair``."""
    both = set(pair.split("_"))
    if pair in _NOT_OF_T2I:
        return 0
    return 500 if both <= _ALL_OF_500 else 200 if both & _SOME_OF_200 else 300


@dataclass(frozen=True)
class TrigSettings(Settings):
    """``rules="paper"`` multiplies a rating with the judge's confidence, as the paper does; the released
    program does not.

    ``pairs`` selects pairs ("IQ-R_TA-C,D-K_D-A"; empty: all). ``per_pair`` limits each pair to its first
    items, with one number for all pairs or a number by pair. ``prompts`` is a JSON file in the authors' local
    format that replaces the dataset, and ``sources`` is the folder of the images that it names.

    ``metrics`` adds metrics to TRIGScore, by dimension, as in the official configuration
    (:mod:`benchmarks.trig.zoo`); ``weights`` maps names of their weights to paths or hub ids.
    """

    rules: Literal["official", "paper", "corrected"] = "official"  # type: ignore[assignment]  # one more than others
    pairs: str = ""
    per_pair: int | Mapping[str, int] | None = None
    prompts: str = ""
    sources: str = ""
    metrics: Mapping[str, Sequence[str]] = field(default_factory=dict)
    weights: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = self.per_pair if isinstance(self.per_pair, Mapping) else {}
        for pair in (*self._named, *counts):
            if pair not in PAIRS:
                turned = "_".join(reversed(pair.split("_")))
                near = f" (did you mean '{turned}'?)" if turned in PAIRS else suggest(pair, PAIRS)
                raise UserError(
                    f"TRIG has no pair '{pair}'{near}; a pair is two of {', '.join(DIMENSIONS)}, in that order"
                )
        if unused := [pair for pair in counts if pair not in self.chosen]:
            raise UserError(f"per_pair counts {unused[0]}, which is not among the pairs")
        if any(count < 1 for count in [*counts.values(), self.per_pair] if isinstance(count, int)):
            raise UserError("per_pair is a whole number of at least 1")
        if self.sources and not self.prompts:
            raise UserError(
                "sources is the folder of the images that the file of prompts names: give prompts, too"
            )
        zoo.check_chosen(self.metrics, self.dimensions)

    @property
    def _named(self) -> list[str]:
        return self.pairs.replace(",", " ").replace(";", " ").split()

    @property
    def chosen(self) -> list[str]:
        """The chosen pairs, in the order of :data:`PAIRS`."""
        return [pair for pair in PAIRS if pair in self._named or not self._named]

    @cached_property
    def dimensions(self) -> list[str]:
        """The dimensions of the chosen pairs, in the order of :data:`DIMENSIONS`."""
        there = {dimension for pair in self.chosen for dimension in pair.split("_")}
        return [dimension for dimension in DIMENSIONS if dimension in there]

    @cached_property
    def others(self) -> dict[str, list[str]]:
        """The metrics besides TRIGScore, by dimension. A dimension without such metrics has no entry."""
        named = ((dimension, dict.fromkeys(self.metrics.get(dimension, ()))) for dimension in self.dimensions)
        found = {
            dimension: [name for name in names if name not in zoo.TRIGSCORE] for dimension, names in named
        }
        return {dimension: names for dimension, names in found.items() if names}

    def others_of(self, pair: str) -> list[str]:
        """Returns the metrics besides TRIGScore for an item of ``pair``, without duplicates."""
        return list(dict.fromkeys(name for code in pair.split("_") for name in self.others.get(code, ())))

    def most_of(self, pair: str, there: int) -> int:
        """Returns how many of the ``there`` available items of ``pair`` the run uses."""
        most = self.per_pair.get(pair) if isinstance(self.per_pair, Mapping) else self.per_pair
        return there if most is None else min(most, there)


@dataclass(frozen=True)
class TrigT2ISettings(TrigSettings):
    """Settings of text to image. Its dataset lacks three pairs, but a prompt file may contain them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        counted = self.per_pair if isinstance(self.per_pair, Mapping) else ()
        absent = [pair for pair in (*self._named, *counted) if not t2i_size(pair)]
        if absent and not self.prompts:
            raise UserError(
                f"the dataset of text to image has no item of the pair {absent[0]}: leave it out of "
                f"{'pairs' if absent[0] in self._named else 'per_pair'}"
            )


class TrigT2I(Benchmark):
    """Text to image, 42 pairs. The judge rates each item on both dimensions of its pair."""

    name, title = "trig-t2i", "TRIG t2i"
    hub_dataset = "TRIG-bench/TRIG"
    version = "trig-e43923c"  # prompts and rules are from fesvhtr/TRIG at this commit
    judge = "vllm:Qwen/Qwen2.5-VL-7B-Instruct"
    # the paper's judge, then the judges of the other official configurations
    official_judges = (
        judge,
        "vllm:Qwen/Qwen2-VL-72B-Instruct-AWQ",
        "vllm:llava-hf/llava-onevision-qwen2-7b-ov-hf",
        "openai:gpt-4o",
    )
    has_corrected_rules = True
    settings_class: ClassVar[type[Settings]] = TrigT2ISettings
    relations = DIMENSIONS
    needs_all_items = "each of its scores covers only some of the images"
    unbounded = zoo.UNBOUNDED

    settings: TrigSettings
    key = "t2i"
    """The upstream name of the task."""
    split = "text_to_image"

    @property
    def assets(self) -> Sequence[Asset]:  # type: ignore[override]
        """The assets; a prompt file of the user replaces the dataset."""
        asked = asset_list(Path(__file__).with_name(f"assets_{self.key}.txt"))
        rows = TableAsset(_ROWS, "TRIG-bench/TRIG", (f"*{self.split}*.parquet",), _LICENCE)
        return (*(() if self.settings.prompts else (rows,)), *asked, zoo.WORDS)

    @property
    def headline(self) -> Sequence[str]:  # type: ignore[override]
        """The dimensions of the chosen pairs; with a prompt file only dimensions with items."""
        if not self.settings.prompts:
            return self.settings.dimensions
        there = {dimension for data in self.chosen for dimension in data["pair"].split("_")}
        return [dimension for dimension in DIMENSIONS if dimension in there] or self.settings.dimensions

    @property
    def item_values(self) -> Sequence[str]:  # type: ignore[override]
        others = self.settings.others.items()
        return (*DIMENSIONS, *(f"{dimension}/{name}" for dimension, names in others for name in names))

    @cached_property
    def _others(self) -> list[str]:
        return list(dict.fromkeys(name for names in self.settings.others.values() for name in names))

    @cached_property
    def prompts(self) -> Mapping[str, str]:
        """TRIGScore's prompts only: the prompts of other metrics must not change the evaluator's name."""
        return {key: text for key, text in self._texts.items() if key.startswith("trig/")}

    @cached_property
    def _texts(self) -> Mapping[str, str]:
        return self.files().prompts()

    @cached_property
    def measurers(self) -> Mapping[str, Measurer]:
        others = {name: zoo.measurer_of(name, self.settings.weights) for name in self._others}
        return dict.fromkeys(self.headline, JUDGE) | others if others else {}

    def check(self) -> None:
        from eval_models.encoders.weights import check_names

        check_names(self.settings.weights)

    @property
    def prompt_count(self) -> int:  # type: ignore[override]
        """The number of prompts of the dataset; 0 (unknown) with a prompt file."""
        sizes = ((pair, self.size_of(pair)) for pair in self.settings.chosen)
        return 0 if self.settings.prompts else sum(self.settings.most_of(*pair) for pair in sizes)

    def size_of(self, pair: str) -> int:
        """Returns how many items of ``pair`` the dataset has."""
        return t2i_size(pair)

    @property
    def identity(self) -> Mapping[str, Any]:
        """The identity includes a hash of the items: the dataset has no pinned version."""
        items = [
            [data["data_id"], data["prompt"], data.get("subject"), data.get("img_id")] for data in self.chosen
        ]
        others = {"metrics": self.settings.others} if self._others else {}
        return {**super().identity, **others, "items_sha256": digest(items)}

    @property
    def details(self) -> Mapping[str, Any]:
        given = {name: getattr(self.settings, name) for name in ("pairs", "per_pair", "prompts")}
        return {name: value for name, value in given.items() if value}

    @cached_property
    def chosen(self) -> list[dict[str, Any]]:
        """The data of each item of the chosen pairs, by pair in data order. Raises CellFailure if a file is
        invalid."""
        file, settings = _ROWS, self.settings
        if settings.prompts:
            file = str(Path(settings.prompts).expanduser().absolute())
            if not Path(file).is_file():
                raise CellFailure(
                    f"benchmark {self.name}: there is no file {file}: correct the setting prompts"
                )
        records: Any = self.read_json(file) if settings.prompts else self.read_jsonl(file)
        with self.content_of(file):
            if not isinstance(records, list):
                raise ValueError("it holds no list of items")
            for number, record in enumerate(records, 1):
                try:
                    _RECORD.read(record)
                except ValueError as error:
                    raise ValueError(f"item {number} of {len(records)}: {error}") from None
            of_pair = grouped(map(self.known, records), lambda data: data["pair"])
            if absent := [pair for pair in settings.chosen if settings.pairs and pair not in of_pair]:
                raise ValueError(
                    f"it has no item of the pair {absent[0]}: leave that out of the setting pairs"
                )
            found = ((pair, of_pair.get(pair, [])) for pair in settings.chosen)
            return [data for pair, all_of in found for data in all_of[: settings.most_of(pair, len(all_of))]]

    def known(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the item data that questions and scores need. Raises KeyError or ValueError if ``record``
        is invalid."""
        data_id: str = record["data_id"]
        prompt: str = record["prompt"]
        dimensions: list[str] = record.get("dimensions", record.get("dimension", []))
        first, second, *_ = [*data_id.split("_"), "", ""]
        pair = "_".join(sorted((first, second), key=lambda code: _ORDER.get(code, -1)))
        # the data id becomes a file name, so _DATA_ID limits its characters
        if pair not in PAIRS or not _DATA_ID.fullmatch(data_id) or set(dimensions) != {first, second}:
            raise ValueError(f"item {data_id!r} belongs to no pair, or not to its dimensions {dimensions}")
        if not prompt.strip():
            raise ValueError(f"item {data_id} lacks its prompt")
        return {"data_id": data_id, "pair": pair, "prompt": prompt}

    def samples(self) -> Iterable[Sample]:
        """Yields the samples, the pairs interleaved in proportion to their sizes."""
        for data in spread(grouped(self.chosen, lambda data: data["pair"]).values()):
            yield self.sample(f"images/{data['data_id']}.png", data)

    def sample(self, file: str, data: Mapping[str, Any]) -> Sample:
        """Returns the sample for the item ``data`` with the image path ``file``."""
        return Sample(file, data["prompt"], data=data)

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        data = item.data
        user: list[str | Picture] = [self.prompts[f"{_API}#{self.key}"].format(prompt=data["prompt"])]
        # quirk T1: the official program does not send the source image of an edit or a subject
        for picture in self.sources(item) if self.settings.rules == "corrected" else ():
            user += [_SOURCE, picture, _GENERATED]
        about = [data["subject"]] if "subject" in data else []
        # quirk: the official program accepts any list of tokens: short, long, empty or with duplicates
        accepts: Accepts = "ended" if self.settings.rules == "corrected" else "any"
        for dimension in data["pair"].split("_"):
            instruction = self.prompts[f"{_CONFIG}_dimension_msg['{self.key}']['{dimension}']"]
            system = self.prompts[f"{_CONFIG}_system_msg['{self.key}']"].format(*about, instruction)
            messages = Message("system", (system,)), Message("user", (*user, image))
            yield Question(dimension, messages, _SAMPLING, likeliest=_LISTED, accepts=accepts)
        for name in self.settings.others_of(data["pair"]):
            yield zoo.question_of(name, image, data["prompt"], self._texts)

    def parse(self, question: Question, answer: Answer) -> float | None:
        """Returns the TRIGScore, 0-1, from the five likeliest first tokens; official rules: 0 without a
        rating token.

        For another metric, returns its number, or None if the image has no such number.
        """
        if question.group in zoo.METRICS:
            return zoo.value_of(question.group, answer)
        if answer.probabilities is None:
            raise Unparsed("the record holds no probabilities")
        found = trig_score(answer.probabilities, self.settings.rules)
        if found is None:
            tokens = one_line(_shown(answer.probabilities), 100)
            raise Unparsed(f"no rating has {_LEAST:g} of the probability of the first token: {tokens}")
        return found

    def score(self, item: Item, answers: Answers) -> Score:
        values = {dimension: answers[dimension].value for dimension in item.data["pair"].split("_")}
        likeliest = {dimension: _shown(answers[dimension].probabilities or {}) for dimension in values}
        for dimension, names in self.settings.others.items():
            if dimension in likeliest:
                found = {f"{dimension}/{name}": answers[name].value for name in names}
                values |= {name: value for name, value in found.items() if value is not None}
        return Score(values, {"pair": item.data["pair"]}, likeliest)

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """Returns the mean rating (0-1) of each dimension over all pairs, and as ``<dimension>/<pair>``
        within a pair.

        ``<dimension>/<metric>`` is the mean of another metric over the images with a value. A prompt may
        occur in several pairs: confidence intervals treat equal prompts with the same source image as one
        cluster.
        """
        shown = {one.item.id: (one.item.data["prompt"], one.item.data.get("img_id")) for one in scores.items}

        def prompt(score: Score) -> tuple[str, str | None]:
            return shown[score.item]

        found, by_pair, others = dict[str, Metric](), dict[str, Metric](), dict[str, Metric]()
        for dimension in self.headline:
            rated = [one for one in scores if dimension in one.values]
            found[dimension] = mean(rated, dimension, cluster=prompt)
            by_pair |= mean_by(rated, dimension, "pair", prefix=f"{dimension}/", order=PAIRS, cluster=prompt)
            for name in self.settings.others.get(dimension, ()):
                value = f"{dimension}/{name}"
                having = [one for one in rated if value in one.values]
                others[value] = mean(having, value, cluster=prompt, top=zoo.METRICS[name].top)
        return found | others | by_pair

    def notes(self, scores: Scores) -> Sequence[str]:
        judged = [one for one in scores.items if one.score]
        counted = list[tuple[int, str]]()
        if self.settings.rules != "corrected":
            answers = [(name, answer) for one in judged for name, answer in one.answers.items()]
            listed = [answer.probabilities or {} for name, answer in answers if name in DIMENSIONS]
            unrated = sum(not tokens.keys() & WEIGHTS.keys() for tokens in listed)
            terrible = sum(bool(tokens.keys() & _QWEN_TERRIBLE.keys()) for tokens in listed)
            why = "none of the likeliest tokens is a rating, as officially; rules=corrected leaves them out"
            counted.append((unrated, f"{unrated} of {len(listed)} ratings are 0 because {why}"))
            why = (
                "the judge may have begun 'terrible' with a token that does not count officially, which leaves a "
                "higher score; rules=corrected counts it"
            )
            counted.append((terrible, f"in {terrible} of {len(listed)} ratings {why}"))
        for name in self._others:
            lacking = sum(name in one.answers and one.answers[name].value is None for one in judged)
            counted.append((lacking, f"{lacking} images have no {name}, and are not in its means"))
        return [note for count, note in counted if count]

    def official_files(self, scores: Scores) -> dict[str, str]:
        """``results.json`` is the official evaluator's output; ``scores_by_pair.json`` is the input of the
        official relation analysis, which no upstream program writes."""
        metric = f"TRIGAPIMetric_{self.judge.partition(':')[2]}"
        results = dict[str, dict[str, list[dict[str, float]]]]()
        of_pair = dict[str, dict[str, list[float]]]()
        done = {one.item.data["data_id"]: one.score.values for one in scores.items if one.score}
        for data in self.chosen:
            data_id, pair = data["data_id"], data["pair"]
            if values := done.get(data_id):
                both = pair.split("_")
                results[data_id] = {dimension: [{metric: values[dimension]}] for dimension in both}
                for dimension in both:
                    for name in self.settings.others.get(dimension, ()):
                        if (value := values.get(f"{dimension}/{name}")) is not None:
                            results[data_id][dimension].append({name: value})
                of_pair.setdefault(pair, {})[data_id] = [values[dimension] for dimension in both]
        return {
            "results.json": json.dumps(results, indent=4, ensure_ascii=False),
            "scores_by_pair.json": json.dumps(of_pair, indent=4, ensure_ascii=False),
        }


class TrigP2P(TrigT2I):
    """Image editing, 45 pairs with 300 items each."""

    name, title = "trig-p2p", "TRIG p2p"
    task = "edit"
    settings_class = TrigSettings
    key = "p2p"
    split = "image_editing"

    def size_of(self, pair: str) -> int:
        return 300

    def known(self, record: Mapping[str, Any]) -> dict[str, Any]:
        data, img_id = super().known(record), record.get("img_id") or ""
        if self.settings.prompts:
            place = Path(self.settings.sources).expanduser().absolute() / img_id if img_id else None
        else:
            place = self.data / record["image"] if record["image"] else None
        if place is None:
            raise ValueError(f"item {data['data_id']} names no image")
        return {**data, "img_id": img_id, "source": str(place)}

    def sample(self, file: str, data: Mapping[str, Any]) -> Sample:
        remedy = "put it there, or correct the setting sources" if self.settings.prompts else ""
        shown = [self.source_image(Path(data["source"]), remedy), data["prompt"]]
        # the path of the source differs between machines and affects no score, so the item's data omit it
        rest = {name: value for name, value in data.items() if name != "source"}
        return Sample(file, data=rest, input_list=[data["subject"], *shown] if "subject" in data else shown)


class TrigS2P(TrigP2P):
    """Subject-driven generation, 45 pairs with 300 items each. The input is a subject's name, its image and a
    prompt."""

    name, title = "trig-s2p", "TRIG s2p"
    task = "subject"
    key = "s2p"
    split = "subject_driven"

    def known(self, record: Mapping[str, Any]) -> dict[str, Any]:
        data, subject = super().known(record), record["item"] or ""
        if not subject.strip():
            raise ValueError(f"item {data['data_id']} names no subject")
        return {**data, "subject": subject}


def trig_score(probabilities: Mapping[str, float], rules: str = "official") -> float | None:
    """Returns the TRIGScore, 0-1 with three decimals: the mean weight of the rating tokens by their
    probability.

    Rules "paper" multiply it with the judge's confidence, the share of the likeliest rating token. Without a
    rating token the score is 0. Rules "corrected" return None if rating tokens have less than 0.01
    probability in total.
    """
    weights = WEIGHTS | _QWEN_TERRIBLE if rules == "corrected" else WEIGHTS
    rated = {token: probability for token, probability in probabilities.items() if token in weights}
    whole = sum(rated.values())
    if rules == "corrected" and whole < _LEAST:
        return None
    if rules != "corrected":  # quirk: rating tokens of tiny probability yield a low score
        whole += 1e-10
    score = sum((weights[token] * probability / whole for token, probability in rated.items()), 0.0)
    if rules == "paper":
        score *= max(rated.values(), default=0.0) / whole
    return round(score, _DIGITS)


def _shown(probabilities: Mapping[str, float]) -> str:
    return ", ".join(f"{token!r} {probability:.3f}" for token, probability in probabilities.items())
