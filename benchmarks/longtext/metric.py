"""LongText-Bench's score: how many ground-truth words (en) or characters (zh) can be read in the image.

The rules are those of the official evaluator, quirks included: ``quirk`` comments name what a reader would
otherwise mend, and with it change published numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from imageevalkit.cell.results import Metric
from imageevalkit.metrics import intervals

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")

_ACCENTED = "àâäéèêëîïôöùûüç"
_LETTERS = f"\u4e00-\u9fa5A-Za-z0-9{_ACCENTED}{_ACCENTED.upper()}"
_IGNORED: dict[str, re.Pattern[str]] = {
    "en": re.compile(rf"[^{_LETTERS}\s]"),
    "zh": re.compile(rf"[^{_LETTERS}]"),
}
_NO_TEXT = "No text recognized."


class Match(NamedTuple):
    """What was read of one image: ``match`` of ``total`` expected units; ``read`` units were read in all."""

    match: int
    total: int
    read: int


class Scored(NamedTuple):
    """One image's match with its grouping keys."""

    language: Language
    prompt_id: int
    category: str
    length: str
    match: Match


def clean_reading(text: str) -> str:
    """What a reader replied, without its "nothing here" sentence.

    Quirk: only the sentence with its full stop goes. Judges are told to answer without the stop, so that
    answer stays and counts as read text; so does the hallucination "addCriterion".
    """
    return text.replace(_NO_TEXT, "")


def units(text: str, language: Language) -> list[str]:
    """The words (en, lower-cased) or characters (zh, case kept: a quirk) that are compared.

    Characters outside the white list vanish and join their neighbours ("Don't" is ``dont``); full-width
    letters and digits are outside it.
    """
    kept = _IGNORED[language].sub("", text)
    return kept.lower().split() if language == "en" else list(kept)


def match_count(expected: Sequence[str], read: str, language: Language) -> Match:
    """Compare what was ``read`` with the ``expected`` strings as multisets of units.

    Pure recall: order is ignored and surplus units cost nothing.

    Raises:
        ValueError: ``expected`` holds no unit at all, so that there is nothing to score.
    """
    wanted = Counter(units(" ".join(expected), language))
    if not wanted:
        raise ValueError(f"the expected text {list(expected)!r} holds nothing that can be compared")
    found = Counter(units(clean_reading(read), language))
    return Match((wanted & found).total(), wanted.total(), found.total())


def text_score(matches: Iterable[Match]) -> float | None:
    """Σ match / Σ total (micro average: long texts weigh more), in 0-1; None without matches."""
    match, total, _ = _sums(matches)
    return match / total if total else None


def precision(matches: Iterable[Match]) -> float | None:
    """Σ match / Σ read, in 0-1; None when nothing was read. Not in the official score; shows repetition."""
    match, _, read = _sums(matches)
    return match / read if read else None


def interval(scored: Iterable[Scored]) -> tuple[float, float] | None:
    """95 % interval of the text score, see :func:`imageevalkit.metrics.intervals.interval`.

    Prompts count, not images: the images of one prompt share its text.
    """
    clusters: dict[tuple[str, int], tuple[int, int]] = {}
    for one in scored:
        match, total = clusters.get((one.language, one.prompt_id), (0, 0))
        clusters[one.language, one.prompt_id] = (match + one.match.match, total + one.match.total)
    return intervals.interval(list(clusters.values()))


def metrics(scored: Sequence[Scored]) -> dict[str, Metric]:
    """Every metric of a cell by name.

    Per language: ``en`` (the text score, the headline), ``en/precision``, and the text score by category
    (``en/sign``) and by length (``en/short``). Only groups that occur are listed; ``n`` counts images.
    """
    result: dict[str, Metric] = {}
    for language in LANGUAGES:
        group = [one for one in scored if one.language == language]
        if not group:
            continue
        result[language] = _metric(group)
        result[f"{language}/precision"] = Metric(precision(one.match for one in group), len(group))
        for key in dict.fromkeys(one.category for one in group):
            result[f"{language}/{key}"] = _metric([one for one in group if one.category == key])
        for key in dict.fromkeys(one.length for one in group):
            result[f"{language}/{key}"] = _metric([one for one in group if one.length == key])
    return result


def _metric(group: Sequence[Scored]) -> Metric:
    return Metric(text_score(one.match for one in group), len(group), interval(group))


def _sums(matches: Iterable[Match]) -> tuple[int, int, int]:
    match = total = read = 0
    for one in matches:
        match += one.match
        total += one.total
        read += one.read
    return match, total, read
