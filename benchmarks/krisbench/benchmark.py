"""KRIS-Bench (arXiv 2505.16707): 1,267 edits in 20 folders that need factual, conceptual or procedural
knowledge. A judge gives three or four grades of 1-5, which become 0-100.

``quirk`` comments mark odd behaviour of the official program. A fix would change published numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from imageevalkit.assets import UrlAsset, asset_list
from imageevalkit.benchmark.contract import Answers, Benchmark, Sample, Scores, Settings, Unparsed
from imageevalkit.benchmark.question import PILLOW, Accepts, Answer, Encoding, Picture, Question, ask
from imageevalkit.metrics import grouped, mean, mean_by, spread
from imageevalkit.store.items import Item
from imageevalkit.store.results import Metric, Score

DIMENSIONS = {
    "attribute": ("count_change", "color_change", "size_adjustment", "part_completion", "anomaly_correction"),
    "spatial": ("viewpoint_change", "position_movement"),
    "temporal": ("temporal_prediction",),
    "social": ("humanities", "practical_knowledge"),
    "natural": ("biology", "chemistry", "geography", "medicine", "mathematics", "physics"),
    "logical": ("abstract_reasoning", "rule-based_reasoning"),
    "decomposition": ("multi-element_composition", "multi-instruction_execution"),
}
TYPES = {
    "factual": ("attribute", "spatial", "temporal"),
    "conceptual": ("social", "natural"),
    "procedural": ("logical", "decomposition"),
}
GRADES = {"VC": "consistency", "VQ": "quality", "IF": "instruction", "KP": "knowledge"}
_DIMENSION_OF = {folder: name for name, folders in DIMENSIONS.items() for folder in folders}
_SCRIPTS = {
    "viewpoint_change": "view",
    "temporal_prediction": "temporal",
    "multi-element_composition": "multi",
}
_TYPE_OF = {name: kind for kind, names in TYPES.items() for name in names}
_OFFICIAL_NAMES = {
    "attribute": "Attribute Perception",
    "spatial": "Spatial Perception",
    "temporal": "Temporal Prediction",
    "social": "Social Science",
    "natural": "Natural Science",
    "logical": "Logical Reasoning",
    "decomposition": "Instruction Decomposition",
    **{kind: f"{kind.title()} Knowledge" for kind in TYPES},
    "overall": "Overall",
}
DATA = "final_data.json"
_ITEMS, _TOP, _TRIES = 1267, 100, 3
_COMMIT = "800662d11b38d72747f39b11acd904fb8b0141d2"
IMAGES = f"Kris_Bench-{_COMMIT}/KRIS_Bench"
# the authors' repository at a commit, whose archive has no published hash
_ARCHIVE = UrlAsset(
    f"https://github.com/mercurystraw/Kris_Bench/archive/{_COMMIT}.zip",
    "benchmarks/krisbench/data",
    "Apache-2.0 (mercurystraw/Kris_Bench)",
    unpack=(f"{IMAGES}/physics/1.png",),
)
_PINNED = "openai:gpt-4o-2024-11-20"
_ANY = (r"([1-5])\s*/\s*5", r"([1-5])\s+out\s+of\s+5", r"\b([1-5])\b")


class KrisBench(Benchmark):
    """The judge is asked about consistency, instruction (with knowledge in ten folders) and quality."""

    name, title = "krisbench", "KRIS-Bench"
    version = "krisbench-103b283"  # prompts and rules are from GenEditEvalKit at this commit
    task = "edit"
    assets = (*asset_list(Path(__file__).with_name("assets.txt")), _ARCHIVE)
    prompt_count = _ITEMS
    judge = "openai:gpt-4o"
    official_judges = (judge, _PINNED)
    headline = ("overall",)
    item_values = (*GRADES, "average")
    needs_all_items = "each grade weighs the same, and edits have three or four"
    hub_dataset = "Liang0223/KRIS_Bench"
    has_corrected_rules = True

    def __init__(self, settings: Settings | None = None, judge: str = "") -> None:
        super().__init__(settings, judge)
        if not (judge or self.is_official):
            self.judge = _PINNED
        # the official program never asks again, and accepts any number as a grade
        self.tries, self.unbounded = (1, ("*",)) if self.is_official else (_TRIES, ())
        self.accepts: Accepts = "text" if self.is_official else "ended"

    def samples(self) -> Iterable[Sample]:
        rows = self.read_json(DATA, _ITEMS)
        with self.content_of(DATA):
            of_folder = grouped(rows, lambda row: row["type"])
            for row in spread(of_folder[folder] for folder in _DIMENSION_OF):
                folder, inputs = row["type"], row["ori_img"]
                inputs = [inputs] if isinstance(inputs, str) else inputs
                data = {"folder": folder, "id": str(row["id"]), "prompt": row["ins_en"], "inputs": inputs}
                data |= {"explanation": row["explain_en"], "truth": row.get("gt_img") or ""}
                images = [self.source_image(self.data / IMAGES / folder / one) for one in inputs]
                path = f"images/{folder}/{row['id']}.png"
                yield Sample(path, data=data, input_list=[*images, row["ins_en"]])

    def find_images(self, source: Path, items: Sequence[Item]) -> Mapping[str, Any] | None:
        """Finds images in the official layout, also in a folder of several models."""
        from imageevalkit.benchmark.image_files import find_named

        return find_named(source, items, ["{folder}/{id}", "{item.model}/{folder}/{id}"])

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        data, sources = item.data, self.sources(item)
        folder, script = data["folder"], _script(data["folder"])
        if script == "temporal":
            numbers = [int(match[2]) for one in data["inputs"] if (match := re.search(r"(\d+)-(\d+)", one))]
            missing = {1, 2, 3, 4} - {*numbers}
            predicted = missing.pop() if len(missing) == 1 else max(numbers) + 1
            frames = [(number, "Reference", one) for number, one in zip(numbers, sources, strict=True)]
            frames = sorted([*frames, (predicted, "Generated", image)], key=lambda frame: frame[0])
            shown = [part for number, kind, one in frames for part in (f"Frame {number} ({kind}):", one)]
        elif script == "multi":
            references = enumerate(sources, 1)
            shown = [part for number, one in references for part in (f"Reference Image {number}:", one)]
            shown += ["Predicted Image:", image]
        else:
            shown = ["This is the original image:", sources[0], "This is the edited image:", image]
        end = f"_{script}" if script in ("multi", "temporal") else ""
        yield self._ask("consistency", f"consist{end}", data, shown)
        if script == "knowledge":
            yield self._ask("dual", "dual_evaluation", data, shown)
        elif script == "view":
            truth = self.source_image(self.data / IMAGES / folder / data["truth"])
            answer = ("This is the ground truth image:", self._source(truth, f"the answer to {item.id}"))
            yield self._ask("instruction", "view_instruction_following", data, [*shown, *answer])
        else:
            text = f"instruction{end}" if end else "instruction_following"
            # quirk: the official program never uses the text that explains the anomaly
            is_explained = folder == "anomaly_correction" and not self.is_official
            yield self._ask("instruction", f"abnormal_{text}" if is_explained else text, data, shown)
        label = "This is the image to evaluate:" if end else "This is the edited image:"
        yield self._ask("quality", "quality", data, [label, image])

    def _ask(self, name: str, text: str, data: Mapping[str, Any], shown: Sequence[str | Picture]) -> Question:
        words = self.prompts[f"benchmarks/Kris_Bench/utils/prompts.py::prompt_{text}"]
        if name != "quality":  # its braces stay doubled, as in the official program
            words = words.format(instruct=data["prompt"], explanation=data["explanation"])
        is_temporal = data["folder"] == "temporal_prediction"
        # quirk: every file is declared a JPEG
        changes: dict[str, Any] = {"media_type": "image/jpeg"} if self.is_official else {}
        if is_temporal:
            changes = {"encoding": Encoding("JPEG", 85), "pixels": PILLOW}
        parts = [one._replace(**changes) if isinstance(one, Picture) else one for one in shown]
        temperature, script = None if self.is_official else 0.0, _script(data["folder"])
        return ask(
            name, words, *parts, max_tokens=1000, temperature=temperature, data=script, accepts=self.accepts
        )

    def parse(self, question: Question, answer: Answer) -> dict[str, int | None]:
        """Returns the grades of a reply by their short name; official rules may find none (None)."""
        reply = answer.text or ""
        names = ("instruction", "knowledge") if question.name == "dual" else (question.name,)
        if self.is_official:
            found = dual(reply) if question.name == "dual" else [grade(reply, names[0], question.data)]
        else:
            found = [labelled(reply, name) for name in names]
            if None in found:
                raise Unparsed(f"no {' or no '.join(names)} of 1 to 5", reply)
        short = {name: key for key, name in GRADES.items()}
        return {short[name]: one for name, one in zip(names, found, strict=True)}

    def score(self, item: Item, answers: Answers) -> Score:
        """Returns the grades on the scale 0-100, and their mean."""
        found = {name: one for question in answers.values() for name, one in question.value.items()}
        folder = item.data["folder"]
        if not self.is_official and folder == "rule-based_reasoning":
            del found["KP"]  # the data do not say what to expect
        values = {name: 25 * (found[name] - 1) for name in GRADES if found.get(name) is not None}
        dimension = _DIMENSION_OF[folder]
        keys = {"type": _TYPE_OF[dimension], "dimension": dimension, "folder": folder}
        average = {"average": sum(values.values()) / len(values)} if values else {}
        return Score({**values, **average}, keys, {name: one.text for name, one in answers.items()})

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """Returns the metrics by name, 0-100.

        * ``overall``, ``factual``, ``attribute``, …: the mean of all grades. ``overall_items``,
          ``factual_items``, …: the mean of the edits' means, as in the paper.
        * ``attribute/VC``, ``count_change/VC``, …: the mean of one grade.
        * ``KP_clipped`` (corrected rules): knowledge counts as 0 if the instruction has a grade of 1 or 2.
        """
        graded = [score for score in scores if score.values]
        found = {"overall": mean(graded, _sum, weight=_count, top=_TOP)}
        found |= mean_by(graded, _sum, "type", order=TYPES, weight=_count, top=_TOP)
        found |= mean_by(graded, _sum, "dimension", order=DIMENSIONS, weight=_count, top=_TOP)
        found["overall_items"] = mean(graded, "average", top=_TOP)
        of_types = mean_by(graded, "average", "type", order=TYPES, top=_TOP)
        found |= {f"{name}_items": metric for name, metric in of_types.items()}
        for name in GRADES:
            having = [score for score in graded if name in score.values]
            means = mean_by(having, name, "dimension", order=DIMENSIONS, top=_TOP)
            means |= mean_by(having, name, "folder", order=_DIMENSION_OF, top=_TOP)
            found |= {f"{group}/{name}": metric for group, metric in means.items()}
        if not self.is_official:
            known = [score for score in graded if "KP" in score.values]
            found["KP_clipped"] = mean(known, _clipped, top=_TOP)
        return found

    def notes(self, scores: Scores) -> Sequence[str]:
        expected = sum(4 if _script(score.keys["folder"]) == "knowledge" else 3 for score in scores)
        missing = expected - sum(map(_count, scores)) if self.is_official else 0
        whole = f"{missing} of {expected} grades are missing: the judge's replies do not state them"
        return [f"{whole}; the means leave them out, as the official program does"] if missing else []

    def official_files(self, scores: Scores) -> dict[str, str]:
        """``<folder>/metrics.json`` with the grades of each edit, and ``results.json`` with the means."""
        tables: dict[str, dict[str, Any]] = {}
        for one in scores.items:
            if one.score:
                data, values = one.item.data, one.score.values
                of_script = [
                    name for name in GRADES if name != "KP" or _script(data["folder"]) == "knowledge"
                ]
                record: dict[str, Any] = {"instruction": data["prompt"], "explain": data["explanation"]}
                record |= {
                    f"{GRADES[name]}_score": values[name] // 25 + 1 if name in values else None
                    for name in of_script
                }
                tables.setdefault(data["folder"], {})[data["id"]] = record
        files = {f"{folder}/metrics.json": _json(table) for folder, table in tables.items()}
        values = {name: one.value for name, one in self.metrics(scores).items() if one.value is not None}

        def of(group: str, has_average: bool = False) -> dict[str, float]:
            row = {name: values[f"{group}/{name}"] for name in GRADES if f"{group}/{name}" in values}
            return row | ({"AVG": values[group]} if has_average and group in values else {})

        summary = {official: of(name, True) for name, official in _OFFICIAL_NAMES.items()}
        parts = {
            _OFFICIAL_NAMES[name]: {folder: row for folder in folders if (row := of(folder))}
            for name, folders in DIMENSIONS.items()
        }
        kept = [{name: row for name, row in one.items() if row} for one in (summary, parts)]
        return {**files, "results.json": _json(dict(zip(("summary", "subitems"), kept, strict=True)))}


def grade(reply: str, name: str, script: str) -> int | None:
    """Returns the grade in a reply, as the official ``script`` reads it: of any size, or None."""
    key, is_known = f"{name}_score", script == "knowledge"
    try:
        if (block := _block(reply, key)) is not None:
            value = _whole(block.get(key))
            if value is not None or is_known:
                return value
    except (ValueError, TypeError, OverflowError):
        pass
    colon = "[:：]" if is_known else "[:：]?"
    named = () if script in ("multi", "temporal") else (rf"{name}[_\s]*score\s*{colon}\s*([1-5])",)
    # quirk: without a grade in readable JSON, the first digit from 1 to 5 counts, whatever it numbers
    for pattern in (*named, *_ANY):
        if match := re.search(pattern, reply, re.IGNORECASE):
            return int(match[1])
    return None


def dual(reply: str) -> list[int | None]:
    """Returns the grades for instruction and knowledge, as the official program reads them."""
    names = ("instruction", "knowledge")
    try:
        if (block := _block(reply, "instruction_score")) is not None:
            return [_whole(block.get(f"{name}_score")) for name in names]
    except (ValueError, TypeError, OverflowError):
        pass  # quirk: a reply that looks like JSON has neither, because of the quotes around the name
    found = (re.search(rf"{name}[_\s]*score\s*[:：]\s*([1-5])", reply, re.IGNORECASE) for name in names)
    return [int(match[1]) if match else None for match in found]


def labelled(reply: str, name: str) -> int | None:
    """Returns the whole number from 1 to 5 that follows the first name of the grade, or None."""
    match = re.search(rf"{name}[_ ]score[\"'*`\s]*[:：=][\"'*`\s]*([1-5])(?!\d|\.\d)", reply, re.IGNORECASE)
    return int(match[1]) if match else None


def _block(reply: str, key: str) -> Any:
    """Returns the first JSON object in braces that has the key, or None. Raises ValueError: it is no JSON."""
    match = re.search(r"\{[^{}]*" + key + r"[^{}]*\}", reply)
    return json.loads(match[0]) if match else None


def _whole(value: Any) -> int | None:
    """Returns ``int(value)``. Raises the errors of int(), and OverflowError if no mean of it is finite."""
    number = None if value is None else int(value)
    if number is not None:
        float(number)
    return number


def _script(folder: str) -> str:
    """Returns the official script of a folder."""
    is_known = _DIMENSION_OF[folder] in ("social", "natural", "logical")
    return _SCRIPTS.get(folder, "knowledge" if is_known else "common")


def _count(score: Score) -> int:
    return sum(name in score.values for name in GRADES)


def _sum(score: Score) -> float:
    return sum(score.values[name] for name in GRADES if name in score.values)


def _clipped(score: Score) -> float:
    return 0 if score.values["IF"] <= 25 else score.values["KP"]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
