"""The scores in a judge's reply, exactly as the official evaluators find them.

``quirk`` comments name what a reader would otherwise mend, and with it change which replies have a score.
"""

from __future__ import annotations

import re

SCORE = "score"
PARTS = ("consistency", "realism", "aesthetic_quality")
"""The three scores of the legacy protocol."""

# quirk: between name and digit only this may stand, so "**Score:** 1" and a full-width colon are no score
_BETWEEN = r"\*{0,2}\s*(?::\s*)?"
# quirk: "Score: 0.5" and "Score: 0/1" are 0, "Score: 10" is none; the name may be the end of a longer word
_LABELLED_BIT = re.compile(rf"score{_BETWEEN}([01])\b", re.IGNORECASE)
_LABEL = rf"(consistency|realism|aesthetic quality){_BETWEEN}"
# quirk: one digit whatever follows it ("12" is 1, "1.5" is 1), of any script and up to 9
_LABELLED_DIGIT = re.compile(rf"{_LABEL}(\d)", re.IGNORECASE)
_LABELLED_NUMBER = re.compile(rf"{_LABEL}(\d+(?:\.\d+)?)", re.IGNORECASE)
_THOUGHT = re.compile(r"<think>.*?</think>\s*", re.DOTALL)
_THOUGHT_END = re.compile(r"</think>\s*")


def without_thoughts(reply: str) -> str:
    """``reply`` without whole think blocks and stray closing tags, stripped; an unclosed block stays."""
    # behind the last closing tag each opening one would be followed to the end of the reply
    thoughts, end, answer = reply.rpartition("</think>")
    return (_THOUGHT_END.sub("", _THOUGHT.sub("", thoughts + end)) + answer.lstrip()).strip()


def verified_score(reply: str) -> dict[str, float]:
    """``{"score": 0.0 or 1.0}``: the first labelled one, else the only line that is nothing but 0 or 1; else empty."""
    if labelled := _LABELLED_BIT.search(reply):
        return {SCORE: float(labelled[1])}
    bare = _bare_lines(reply, "01")
    return {SCORE: float(bare[0])} if len(bare) == 1 else {}


def legacy_scores(reply: str) -> dict[str, float]:
    """Those of :data:`PARTS` that ``reply`` holds: the last labelled one of each; without any label the first
    three lines that are nothing but 0, 1 or 2."""
    if labelled := _labelled(_LABELLED_DIGIT, reply):
        return labelled  # quirk: with one label the lines are not looked at, so that the other scores are missing
    bare = _bare_lines(reply, "012")
    return dict(zip(PARTS, map(float, bare), strict=False)) if len(bare) >= len(PARTS) else {}


def legacy_stated(reply: str) -> dict[str, float]:
    """The labelled scores with all their digits, the last one of each."""
    return _labelled(_LABELLED_NUMBER, reply)


def _labelled(scores: re.Pattern[str], reply: str) -> dict[str, float]:
    return {name.lower().replace(" ", "_"): float(number) for name, number in scores.findall(reply)}


def _bare_lines(reply: str, digits: str) -> list[str]:
    lines = (line.strip() for line in reply.split("\n"))
    return [line for line in lines if len(line) == 1 and line in digits]
