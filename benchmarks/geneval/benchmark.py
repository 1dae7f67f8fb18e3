"""GenEval (arXiv 2310.11513): 553 prompts about objects, counts, colours and positions, scored by a detector.

``quirk`` comments mark odd behaviour of the official program. A fix would change published numbers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, TypedDict

from imageevalkit.assets import asset_list
from imageevalkit.benchmark.contract import Answers, Benchmark, Sample, Scores, Settings, measurement
from imageevalkit.benchmark.question import Answer, Picture, Question, measure
from imageevalkit.common.errors import CellFailure, UserError, say
from imageevalkit.common.hashes import sha256_file
from imageevalkit.metrics import grouped, mean, mean_by, mean_of_means, spread
from imageevalkit.store.cell import portable_path
from imageevalkit.store.items import MODEL_NAME_MARK, Item
from imageevalkit.store.jsonl import Number, Reader, read_json, read_jsonl
from imageevalkit.store.results import Metric, Score

TAGS = ("single_object", "two_object", "counting", "colors", "position", "color_attr")
COLORS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
_CLASSES = 80
_QUESTION = "objects"
# the confidence above which a detection counts, the same for "counting", and the most detections per class
_THRESHOLD, _COUNTING_THRESHOLD, MOST_OBJECTS = 0.3, 0.9, 16
_POSITION_THRESHOLD = 0.1

# a file name such as "00002.png"; the group is the repetition, the number of the image within its prompt
_FILE = re.compile(r"(\d+)\.\w+")

Detection = Sequence[float]
"""A box and its confidence: x1, y1, x2, y2 in pixels, then the confidence, 0-1."""
Objects = Mapping[str, Sequence[Detection]]
"""The detections of each class, highest confidence first."""


_Box = tuple[Number, Number, Number, Number, Number]


class _Measured(TypedDict):
    objects: dict[str, list[_Box]]
    colors: dict[str, list[str]]


class _Record(TypedDict):
    filename: str
    prompt: str
    correct: bool
    reason: str
    details: str


class _Metadata(TypedDict):
    prompt: str


_MEASURED, _RECORD, _METADATA = Reader(_Measured), Reader(_Record), Reader(_Metadata)
_DETAILS = Reader(dict[str, list[_Box]])


@dataclass(frozen=True)
class GenEvalSettings(Settings):
    """``detections`` is the path of a ``results.jsonl`` that the official program wrote elsewhere.

    ``<MODEL_NAME>`` in the path stands for the model's name. ``weights`` maps names of weights to
    paths or hub ids.
    """

    detections: str = field(default="", metadata={"of_one_model": True})
    weights: Mapping[str, str] = field(default_factory=dict)


class GenEval(Benchmark):
    """Four images per prompt. The number of a prompt is its line in the data file, from 0."""

    name, title = "geneval", "GenEval"
    version = "geneval-af4902f"  # prompts and rules are from djghosh13/geneval at this commit
    assets = asset_list(Path(__file__).with_name("assets.txt"))
    prompt_count, images_per_prompt = 553, 4
    judge = "mask2former-mmdet"
    takes = "detector"
    program = "mmdet-records"
    headline = ("overall",)
    item_values = ("correct",)
    settings_class = GenEvalSettings

    settings: GenEvalSettings

    def __init__(self, settings: GenEvalSettings | None = None, judge: str = "") -> None:
        super().__init__(settings, judge)
        if self.settings.detections:
            self.judge = ""  # the detections exist already, so no evaluator runs

    @property
    def judge_options(self) -> Mapping[str, Any]:
        """The options of the detector and of CLIP, which classifies colours."""
        return {
            "classes": self.read_text("object_names.txt").split("\n")[:_CLASSES],
            "colors": COLORS,
            "templates": list(self.prompts.values()),
            "weights": self.settings.weights,
        }

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"detections": "official records"} if self.settings.detections else super().identity

    def check(self) -> None:
        """Raises UserError if the file of ``detections`` does not exist, or if ``--judges`` names a judge."""
        if self.backend:
            raise UserError(
                f"benchmark geneval: a detector scores it, not the judge '{self.judge}': leave out --judges, or give "
                "--ds_kwargs detections=FILE"
            )
        file = self.settings.detections
        if file and MODEL_NAME_MARK not in file and not Path(file).is_file():
            raise UserError(f"benchmark geneval: detections names {file}, which is no file")

    def samples(self) -> Iterable[Sample]:
        """Yields the samples, the six tags interleaved in proportion to their sizes."""
        records = enumerate(self.read_jsonl("evaluation_metadata.jsonl", self.prompt_count))
        of_tag = grouped(records, lambda pair: pair[1]["tag"])
        for n, record in spread(of_tag[tag] for tag in TAGS):
            for repetition in range(self.images_per_prompt):
                file = f"images/{n:05d}/samples/{repetition:05d}.png"
                data = {"index": n, "repetition": repetition, "metadata": record}
                yield Sample(file, record["prompt"], repetition, data)

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        """Returns one question, or none if ``detections`` is set.

        The text maps each class with a requested colour to the number of objects to check.
        """
        if self.settings.detections:
            return []
        include = item.data["metadata"]["include"]
        coloured = {clause["class"]: clause["count"] for clause in include if "color" in clause}
        return [measure(_QUESTION, image, json.dumps(coloured))]

    def parse(self, question: Question, answer: Answer) -> dict[str, Any]:
        """Returns ``objects`` (:data:`Objects`) and ``colors``: the colours of the first objects of each
        class."""
        found = measurement(answer, _MEASURED)
        return {**found}

    def score(self, item: Item, answers: Answers) -> Score:
        """Returns 1 if the image matches the prompt, else 0."""
        metadata = item.data["metadata"]
        if self.settings.detections:
            objects, correct, reason = self._recorded(item)
        else:
            value = answers[_QUESTION].value
            objects = kept(value["objects"], metadata["tag"])
            correct, reason = verdict(metadata, objects, value["colors"])
        return Score(
            {"correct": int(correct)},
            {"tag": metadata["tag"], "index": item.data["index"]},
            {"reason": reason, "objects": objects},
        )

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """Returns the metrics by name, 0-1. Confidence intervals treat the images of a prompt as one cluster.

        * each tag: the share of correct images. ``overall``: the mean over tags with images, as in the
          official summary.
        * ``images``: the share of correct images. ``prompts``: the share of prompts with a correct image.
        """
        best: dict[int, Score] = {}
        for score in scores:
            index = score.keys["index"]
            if index not in best or score.values["correct"]:
                best[index] = score
        return {
            "overall": mean_of_means(scores, "correct", "tag", TAGS, cluster="index"),
            **mean_by(scores, "correct", "tag", order=TAGS, cluster="index"),
            "images": mean(scores, "correct", cluster="index"),
            "prompts": mean(best.values(), "correct", cluster="index"),
        }

    def notes(self, scores: Scores) -> Sequence[str]:
        return [
            f"the detections come from {file} (SHA-256 {sha256_file(file)}): the file "
            "does not prove that it is about these images"
            for file in self._records
        ]

    def official_files(self, scores: Scores) -> dict[str, str]:
        """``results.jsonl``, the input of the official program's summary."""
        lines = []
        for one in sorted(scores.items, key=lambda one: one.item.id):
            if one.score is None:
                continue
            metadata = one.item.data["metadata"]
            record = {
                "filename": portable_path(one.image or one.item.path),
                "tag": metadata["tag"],
                "prompt": metadata["prompt"],
                "correct": bool(one.score.values["correct"]),
                "reason": one.score.detail["reason"],
                "metadata": json.dumps(metadata),
                "details": json.dumps(one.score.detail["objects"]),
            }
            # pandas, which the official program uses, writes no spaces and escapes slashes
            lines.append(json.dumps(record, separators=(",", ":")).replace("/", "\\/") + "\n")
        return {"results.jsonl": "".join(lines)}

    def find_images(self, source: Path, items: Sequence[Item]) -> Mapping[str, Any] | None:
        """Finds images in the official folders, with any digit count. If a folder contains a
        ``metadata.jsonl``, that file decides the prompt; otherwise the folder's number does."""
        # the driver imports this module before packages are installed
        from imageevalkit.benchmark.image_files import Place, only_one
        from imageevalkit.common.images import IMAGE_SUFFIXES

        prompts = {item.data["index"]: item.prompt for item in items}
        found: dict[tuple[str | None, int], list[Path]] = {}
        others: dict[int, str] = {}
        for samples in sorted([*source.glob("*/samples"), *source.glob("images/*/samples")]):
            if not samples.parent.name.isdecimal():
                continue
            index, file = int(samples.parent.name), samples.with_name("metadata.jsonl")
            prompt = _prompt_in(file) if file.is_file() else prompts.get(index)
            if prompt != prompts.get(index):
                others[index] = f"{file} names another prompt: {prompt}"
            for path in sorted(samples.iterdir()):
                number = _FILE.fullmatch(path.name)
                if number and path.suffix.lower() in IMAGE_SUFFIXES:
                    found.setdefault((prompt, int(number[1])), []).append(path)
        places = dict[str, Place]()
        for item in items:
            if files := found.get((item.prompt, item.data["repetition"])):
                places[item.id] = only_one(files)
            elif reason := others.get(item.data["index"]):
                places[item.id] = Place(reason=reason)
        return places or None

    def _recorded(self, item: Item) -> tuple[Objects, bool, str]:
        """Returns the official program's detections in an image, our verdict, and the program's reasons.

        Raises CellFailure if the file has no record of the image, or if the recorded verdict differs from
        ours.
        """
        metadata = item.data["metadata"]
        file = Path(self.settings.detections.replace(MODEL_NAME_MARK, item.model))
        if file not in self._records:
            self._records[file] = _records_of(file)
        record = self._records[file].get((item.prompt or "", item.data["repetition"]))
        if record is None:
            raise CellFailure(
                f"benchmark geneval: {file} has no record of image {item.data['repetition']} of '{item.prompt}'; run "
                "the official program on all images"
            )
        where = f"benchmark geneval: {file}, {record['filename']}"
        try:
            objects = kept(_DETAILS.read(json.loads(record["details"])), metadata["tag"])
        except (ValueError, RecursionError) as error:
            raise CellFailure(f"{where}: its details are no detections ({error})") from None
        correct, _ = verdict(metadata, objects, _recorded_colors(metadata, record["reason"]))
        if correct != record["correct"]:
            raise CellFailure(
                f"{where}: by its details it is {'right' if correct else 'wrong'}, but not by its own verdict; run "
                "the official program with its default options"
            )
        return objects, correct, record["reason"]

    @cached_property
    def _records(self) -> dict[Path, dict[tuple[str, int], _Record]]:
        return {}


def _prompt_in(file: Path) -> str:
    try:
        return _METADATA.read(read_json(file))["prompt"]
    except ValueError as error:
        raise CellFailure(f"benchmark geneval: {file} is no metadata of a prompt: {error}") from None


def _records_of(file: Path) -> dict[tuple[str, int], _Record]:
    """Returns the records by prompt and repetition. Folder numbers are no key, because their order may
    differ.

    Raises CellFailure if the file does not exist or is empty, or if two records of an image differ: the
    official program would count both.
    """
    if not file.is_file():
        raise CellFailure(f"benchmark geneval: detections names {file}, which is no file")
    records: dict[tuple[str, int], _Record] = {}
    for record in read_jsonl(file, _RECORD, say):
        number = _FILE.fullmatch(PurePosixPath(record["filename"]).name)
        if number is None:
            raise CellFailure(f"benchmark geneval: {file}: '{record['filename']}' is no file as 00000.png")
        image = record["prompt"], int(number[1])
        if records.setdefault(image, record)["details"] != record["details"]:
            raise CellFailure(
                f"benchmark geneval: {file} has two records of image {image[1]} of '{image[0]}' that differ: keep "
                "the records of one run of the official program"
            )
    if not records:
        raise CellFailure(
            f"benchmark geneval: {file} holds no records of the official program (results.jsonl)"
        )
    return records


def _recorded_colors(metadata: Mapping[str, Any], reason: str) -> dict[str, list[str]]:
    """Returns the colours of the objects with a requested colour, by class.

    A record states colours only as the reason of a wrong verdict; without such a reason the colours are as
    requested.
    """
    colors = {}
    for clause in (one for one in metadata["include"] if "color" in one):
        color, name, count = clause["color"], clause["class"], clause["count"]
        begin = f"expected {color} {name}>={count}, found "
        seen = [line.partition("; and ")[2] for line in reason.split("\n") if line.startswith(begin)]
        counts = re.findall(r"(\d+) (\w+)", seen[0]) if seen else [(count, color)]
        colors[name] = [one for number, one in counts for _ in range(int(number))]
    return colors


def kept(objects: Objects, tag: str) -> dict[str, list[Detection]]:
    """Returns the detections of each class that count: at most 16, above the confidence threshold of ``tag``.
    Classes without such detections are left out."""
    threshold = _COUNTING_THRESHOLD if tag == "counting" else _THRESHOLD
    found = {
        name: [one for one in sorted(of_class, key=lambda one: -one[4]) if one[4] > threshold][:MOST_OBJECTS]
        for name, of_class in objects.items()
    }
    return {name: of_class for name, of_class in found.items() if of_class}


def verdict(
    metadata: Mapping[str, Any], objects: Objects, colors: Mapping[str, Sequence[str]]
) -> tuple[bool, str]:
    """Returns whether ``objects`` match ``metadata``, and the reasons for a mismatch, one per line.

    ``colors`` holds the colours of the first objects of each class with a requested colour. Only the most
    confident objects count (quirk): a less confident object at the right place does not help.

    Source: ``evaluate`` in ``evaluation/evaluate_images.py`` of djghosh13/geneval at af4902f.
    """
    reasons, matched = [], list[Sequence[Detection] | None]()
    for clause in metadata["include"]:
        name, count = clause["class"], clause["count"]
        found = objects.get(name, [])[:count]
        reason = f"expected {name}>={count}, found {len(found)}" if len(found) < count else ""
        if not reason and "color" in clause:
            reason = _color_reason(clause, colors.get(name, ())[:count])
        if not reason and "position" in clause:
            relation, target = clause["position"]
            reason = _position_reason(name, relation, found, matched[target])
        matched.append(None if reason else found)
        reasons += [reason] if reason else []
    for clause in metadata.get("exclude", ()):
        there = len(objects.get(clause["class"], ()))
        if there >= clause["count"]:
            reasons.append(f"expected {clause['class']}<{clause['count']}, found {there}")
    return not reasons, "\n".join(reasons)


def _color_reason(clause: Mapping[str, Any], found: Sequence[str]) -> str:
    color, count = clause["color"], clause["count"]
    if found.count(color) >= count:
        return ""
    seen = ", ".join(f"{found.count(one)} {one}" for one in COLORS if one in found)
    return f"expected {color} {clause['class']}>={count}, found {found.count(color)} {color}; and {seen}"


def _position_reason(
    name: str, relation: str, found: Sequence[Detection], targets: Sequence[Detection] | None
) -> str:
    """Returns why an object is not at the requested position relative to every target; empty if all are."""
    if targets is None:
        return f"no target for {name} to be {relation}"
    for one in found:
        for target in targets:
            if relation not in (there := relations(one, target)):
                return f"expected {name} {relation} target, found {' and '.join(there)} target"
    return ""


def relations(one: Detection, target: Detection) -> list[str]:
    """Returns the position of box ``one`` relative to ``target``: up to two of left of, right of, above,
    below.

    The offset of the centres is reduced by 0.1 of the sizes of both boxes, then divided by its unreduced
    length (quirk). Close boxes therefore have no relation. y grows downwards.
    """
    offset, reduced = [], []
    for axis in (0, 1):
        centre = [(box[axis] + box[axis + 2]) / 2 for box in (one, target)]
        sizes = sum(abs(box[axis + 2] - box[axis]) for box in (one, target))
        offset.append(centre[0] - centre[1])
        reduced.append(math.copysign(max(abs(offset[-1]) - _POSITION_THRESHOLD * sizes, 0), offset[-1]))
    if all(abs(part) < 1e-3 for part in reduced):
        return []
    length = math.hypot(*offset)
    dx, dy = (part / length for part in reduced)
    found = {"left of": dx < -0.5, "right of": dx > 0.5, "above": dy < -0.5, "below": dy > 0.5}
    return [name for name, holds in found.items() if holds]
