"""GenEval 2: 800 templated prompts of rising atomicity, one image each. One evaluation yields all four
metrics.

``quirk`` comments mark odd behaviour of the official program. A fix would change published numbers.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from imageevalkit.assets import asset_list
from imageevalkit.benchmark.contract import Answers, Benchmark, Sample, ScoredItem, Scores, Unparsed
from imageevalkit.benchmark.question import TRANSFORMERS, Answer, Picture, Question, ask
from imageevalkit.metrics import arithmetic_mean, geometric_mean, grouped, mean, mean_by, points
from imageevalkit.store.cell import portable_path
from imageevalkit.store.items import Item
from imageevalkit.store.results import Metric, Score

SKILLS = ("object", "attribute", "count", "position", "verb")
ATOMICITIES = range(3, 11)
METHODS = ("soft_tifa_gm", "soft_tifa_am", "tifa", "vqascore")
_CORRECTED = ("soft_tifa_gm_corrected", "soft_tifa_am_corrected")
_UPPER = ("soft_tifa_gm_upper", "soft_tifa_am_upper", "vqascore_upper")

_POINT = ("p", "p_corrected", "correct")

_VQASCORE = "vqascore"

_YES = ("Yes", "yes", " yes", " Yes")
_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_DIGITS = {word: str(number) for number, word in enumerate(_WORDS, 1)}
# The first token of each accepted string in the official judge's tokenizer, in the order of the strings (spec
# of GenEval 2, section 5). They come from the Qwen vocabulary. A judge whose tokenizer differs is refused.
_TOKEN_IDS = {
    "Yes": (9454, 9693, 9834, 7414),
    "one": (603, 3966, 825, 3776, 16, 220),
    "two": (19789, 11613, 1378, 9043, 17, 220),
    "three": (27856, 19641, 2326, 14513, 18, 220),
    "four": (34024, 26972, 3040, 13322, 19, 220),
    "five": (52670, 37020, 4236, 20924, 20, 220),
    "six": (50364, 41460, 4743, 18680, 21, 220),
    "seven": (80185, 59528, 8094, 29948, 22, 220),
}


class GenEval2(Benchmark):
    """The judge answers a prompt's questions about the image, and one question whether the image shows the
    prompt.

    The eight atomicities alternate, so any first N prompts cover all evenly. The file name of an image is the
    line of its prompt in the data file, from 0.
    """

    name, title = "geneval2", "GenEval 2"
    version = "facebookresearch-a6e82d2"  # data, prompts and rules are from facebookresearch/GenEval2
    prompt_count = 800
    judge = "transformers:qwen3-vl-8b"
    assets = asset_list(Path(__file__).with_name("assets.txt"))
    headline = ("soft_tifa_gm",)
    item_values = METHODS
    official_headline = ("soft_tifa_gm_official",)
    pixels = TRANSFORMERS
    # if two accepted answers begin with the same token, its probability counts twice (quirk), so sums exceed
    # 1
    unbounded = ("soft_tifa_*", "vqascore*", "skill/*", "atomicity/*")

    def samples(self) -> Iterable[Sample]:
        records = enumerate(self.read_jsonl("geneval2_data.jsonl", self.prompt_count))
        by_atomicity = grouped(records, lambda pair: pair[1]["atom_count"])
        for turn in zip(*by_atomicity.values(), strict=True):
            for index, record in turn:
                data = {key: record[key] for key in ("atom_count", "vqa_list", "skills")}
                yield Sample(f"images/{index:03d}.png", record["prompt"], data={**data, "index": index})

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        atom, whole = (self.prompts[f"evaluation.py::{name}"] for name in ("soft_tifa", "vqa_score"))
        # TIFA and Soft-TIFA use the same question, so one reply serves both
        asked = [
            (f"vqa/{n}", atom.format(question), accepted(question, answer))
            for n, (question, answer) in enumerate(item.data["vqa_list"])
        ]
        asked.append((_VQASCORE, whole.format(item.prompt), _YES))
        for name, text, choices in asked:
            ids = _TOKEN_IDS.get(choices[0], ()) if self.judge in self.official else ()
            yield replace(ask(name, image, text, choices=choices), choice_ids=ids)

    def parse(self, question: Question, answer: Answer) -> dict[str, Any]:
        """Returns the soft score ``p``, ``p_corrected`` (without the bare space), and whether the top token
        is right.

        The sums are neither clipped nor deduplicated (quirk): a token that begins two strings counts twice.
        """
        found, choices = answer.probabilities or {}, question.choices
        for string in choices:
            if not math.isfinite(found.get(string, math.nan)):
                raise Unparsed(f"the judge returned no probability of {string!r}")
        # quirk Q1: a tokenizer that splits off digits begins " 7" with the bare space. The official sum of a
        # count answer therefore includes the probability of a space.
        corrected = [string for string in choices if not (string.startswith(" ") and string[1:].isdigit())]
        return {
            "p": sum(found[string] for string in choices),
            "p_corrected": sum(found[string] for string in corrected),
            "argmax": answer.text,
            # quirks Q3 and Q4: leading spaces matter, a bare space is wrong, and only the reply is
            # lower-cased
            "correct": (answer.text or "").lower() in choices,
            "outside": answer.outside,
        }

    def score(self, item: Item, answers: Answers) -> Score:
        score = _exact(item, answers)
        asked = [(f"vqa/{n}", *pair) for n, pair in enumerate(item.data["vqa_list"])]
        detail = {
            question: f"{wanted}: {value['p']:.4f}, said {json.dumps(value['argmax'], ensure_ascii=False)}"
            for name, question, wanted in [*asked, (_VQASCORE, "VQAScore", "Yes")]
            if (value := answers[name].value)
        }
        return Score({name: 100.0 * score.values[name] for name in METHODS}, score.keys, detail)

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """Returns the four metrics, 0-100; Soft-TIFA also as ``_corrected``, by skill (AM) and by atomicity
        (GM).

        The ``_official`` metrics have no value unless all 800 prompts have a score. If the judge's backend
        returned only the top tokens, ``_upper`` metrics are upper bounds. ``outside_mass`` (0-1) is then the
        unseen probability: its mean and its maximum over all questions.
        """
        exact = _all_exact(scores)
        found = {name: mean(exact, name, percent=True) for name in (*METHODS, *_CORRECTED)}
        found |= by_skill(exact) | by_atomicity(exact)
        incomplete = None if len(exact) == self.prompt_count else Metric(None, len(exact), scale=100.0)
        found |= {f"{name}_official": incomplete or found[name] for name in METHODS}
        unseen = _unseen(scores)
        if any(unseen):
            found |= {name: mean(exact, name, percent=True) for name in _UPPER}
            found["outside_mass"] = Metric(arithmetic_mean(unseen), len(exact))
            found["outside_mass_max"] = Metric(max(unseen), len(exact))
        return found

    def notes(self, scores: Scores) -> Sequence[str]:
        unseen = _unseen(scores)
        if not any(unseen):
            return ()
        return [
            "the judge's endpoint shows only the likeliest tokens: a mean "
            f"{statistics.fmean(unseen):.2%} of the probability, and at most {max(unseen):.2%}, was outside of them "
            "and counts as wrong; the …_upper metrics count all of it as right"
        ]

    def official_files(self, scores: Scores) -> dict[str, str]:
        """The image paths by prompt and, if every prompt has a score, the official score list of each method.

        Score lists contain no prompts: after a gap, every score would belong to the wrong prompt.
        """
        paths = {one.item.prompt: portable_path(one.image) for one in _in_file_order(scores) if one.image}
        files = {"image_filepaths.json": json.dumps(paths, indent=1, ensure_ascii=False) + "\n"}
        exact = _all_exact(scores)
        if len(exact) == self.prompt_count:
            lists = {
                "soft_tifa": [[point.values["p"] for point in one.points] for one in exact],
                "tifa": [[int(point.values["correct"]) for point in one.points] for one in exact],
                "vqascore": [[one.values["vqascore"]] for one in exact],
            }
            files |= {f"score_lists_{name}.json": json.dumps(of) + "\n" for name, of in lists.items()}
        return files


def accepted(question: str, answer: str) -> tuple[str, ...]:
    """Returns the strings that count as a right answer to ``question``, in the official order.

    Quirk: ``answer`` matters only for a question that starts with "How many". Any other question expects yes.
    """
    if not question.startswith("How many"):
        return _YES
    digit = _DIGITS.get(answer, "other")  # quirk: an answer that is no number word gets the digit "other"
    word = answer.capitalize()
    return answer, word, f" {answer}", f" {word}", digit, f" {digit}"


def prompt_score(atomicity: int, skills: Sequence[str], atoms: Sequence[Mapping[str, float]]) -> Score:
    """Returns Soft-TIFA GM and AM of a prompt, 0-1, from the soft scores ``p`` of its ``atoms``; each atom is
    a point.

    If the atoms have ``p_corrected`` or ``p_upper``, the score has the ``_corrected`` or ``_upper`` values
    too. ``atomicity`` may be less than the number of atoms: the count-one atoms of "a" are scored but not
    counted.
    """
    values = {}
    for kind in ("", "_corrected", "_upper"):
        if f"p{kind}" in atoms[0]:
            soft = [atom[f"p{kind}"] for atom in atoms]
            values[f"soft_tifa_gm{kind}"] = geometric_mean(soft)
            values[f"soft_tifa_am{kind}"] = arithmetic_mean(soft)
    of_atoms = [Score(atom, {"skill": skill}) for atom, skill in zip(atoms, skills, strict=True)]
    return Score(values, {"atomicity": atomicity}, points=of_atoms)


def by_skill(prompts: Sequence[Score]) -> dict[str, Metric]:
    """Returns ``skill/<skill>`` (AM): the mean over all atoms of a skill. Atoms of a prompt are one
    cluster."""
    return mean_by(points(prompts), "p", "skill", prefix="skill/", order=SKILLS, percent=True)


def by_atomicity(prompts: Sequence[Score]) -> dict[str, Metric]:
    """Returns ``atomicity/<k>`` (GM): the mean of the prompts' geometric means over *all* of their atoms."""
    return mean_by(prompts, "soft_tifa_gm", "atomicity", prefix="atomicity/", order=ATOMICITIES, percent=True)


def _in_file_order(scores: Scores) -> list[ScoredItem]:
    return sorted(scores.items, key=lambda one: one.item.data["index"])


def _all_exact(scores: Scores) -> list[Score]:
    return [_exact(one.item, one.answers) for one in _in_file_order(scores) if one.score]


def _unseen(scores: Scores) -> list[float]:
    """Returns, for every question, the probability mass outside the tokens that the judge's backend
    returned."""
    done = [one.answers.values() for one in _in_file_order(scores) if one.score]
    return [answer.value["outside"] or 0.0 for answers in done for answer in answers]


def _exact(item: Item, answers: Answers) -> Score:
    """Returns the scores of one image, 0-1: by method, without the bare space, and as upper bounds."""
    atoms = [answers[f"vqa/{n}"].value for n in range(len(item.data["vqa_list"]))]
    whole = answers[_VQASCORE].value
    # An answer outside the top tokens scores 0, and a single 0 makes the geometric mean 0. The true score of
    # such a prompt is anywhere up to p_upper.
    atoms = [{name: atom[name] for name in _POINT} | {"p_upper": _upper(atom)} for atom in atoms]
    score = prompt_score(item.data["atom_count"], item.data["skills"], atoms)
    values = {
        **score.values,
        "tifa": arithmetic_mean(atom["correct"] for atom in atoms),
        "vqascore": whole["p"],
        "vqascore_upper": _upper(whole),
    }
    return replace(score, values=values).of_item(item.id)


def _upper(answer: Mapping[str, Any]) -> float:
    score: float = answer["p"]
    return max(score, min(1.0, score + (answer["outside"] or 0.0)))
