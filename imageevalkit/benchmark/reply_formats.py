"""Parsers for the verdict or grade in a judge's reply: text, Markdown or JSON, in English or Chinese."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

_YES_NO = {"yes": 1, "no": 0, "true": 1, "false": 0, "是": 1, "是的": 1, "否": 0, "不是": 0}
_WORD = re.compile(r"[^\W\d_]+")
# "yes or no" repeats the question: neither word is the judge's answer
_BOTH = re.compile(
    r"\b(?:yes ?(?:/|or) ?no|no ?(?:/|or) ?yes|true ?(?:/|or) ?false)\b|是 ?[/或] ?否", re.IGNORECASE
)
_ANSWER = (
    r"(?:final |my )?(?:answer|verdict|result|conclusion|judge?ment|response)"
    r"|(?:最终)?(?:答案|回答|结果|结论|判断)"
)
_SCORE = r"scores?|grades?|ratings?|value|points|得分|评分|分数|打分"
# "(1-5)" and "(out of 10)" are scales; "(4)" and "(4/5)" are grades
_SCALE = r"(?:\((?! ?[\d.]+ ?(?:/ ?[\d.]+ ?)?\))[^()]{0,60}\)|\d+ ?(?:[-–—~至到]|to) ?\d+(?= ?[:=]))?"
_AFTER_LABEL = rf" ?{_SCALE} ?[:=]? ?[{{\[(]? ?"
_NUMBER = r"(-?\d+(?:\.\d+)?)(?!\d|\.\d|[eE][-+]?\d)"
_UPPER = re.compile(rf" ?\(? ?(?:/|out of|of) ?{_NUMBER}")
_RANGE = re.compile(rf" ?(?:[-–—~至到]|to|through) ?{_NUMBER}")
_LABELLED_ANSWER = re.compile(
    rf"(?:{_ANSWER})(?: ?(?:is|是|为))? ?{_SCALE} ?[:=] ?(?P<word>[^\W\d_]+)", re.IGNORECASE
)
_MARKUP = re.compile(r"[\"'`*“”‘’]+|__+")
_FULL_WIDTH = {**{code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}, 0x3000: ord(" ")}
_MOST_JSON = 50  # attempts to parse JSON; each attempt may read the rest of the reply
_RULE = re.compile(r":?-+:?")


class Labelled(NamedTuple):
    """A ``value`` in JSON or a table, and its ``labels``: keys or headings, the closest label last."""

    labels: tuple[str, ...]
    value: Any


def yes_no_in(reply: str) -> int | None:
    """Returns 1 for yes, 0 for no, None if the reply is neither.

    In a text the first word counts, or else the last answer with a label ("**Answer:** Yes", "答案：是"). In JSON
    and tables the answer with a label counts, or else the verdict on which all values agree.
    """
    text, values = _BOTH.sub("", _plain(reply)).strip(), list(_labelled(reply))
    word = _WORD.search(text.lower())
    if word and word[0] in _YES_NO and not (values and text.startswith(("{", "["))):
        return _YES_NO[word[0]]
    answers = [one for one in values if any(re.fullmatch(_ANSWER, label) for label in one.labels)]
    for verdicts in (_verdicts(_outermost(answers)), _labelled_answers(text)[-1:], _verdicts(values)):
        if verdicts:
            return verdicts[0] if len(set(verdicts)) == 1 else None
    return None


def grade_in(reply: str, name: str, highest: float) -> float | None:
    """Returns the grade with the label ``name``, in a text the last such number; None if there is none.

    None also if JSON or tables contain different grades. In "4/5" the 5 must equal ``highest``.
    """
    words = _label(name).split()
    named = rf"{'[ _-]'.join(map(re.escape, words))}(?:[ _-]?(?:{_SCORE}))?"
    values = [one for one in _labelled(reply) if any(re.fullmatch(named, label) for label in one.labels)]
    numbers = [one for one in values if _number(one.value, highest) is not None]
    sure = [one for one in numbers if re.fullmatch(rf"{named}|{_SCORE}", one.labels[-1])] or numbers
    if sure:
        grades = {_number(one.value, highest) for one in _outermost(sure)}
        return grades.pop() if len(grades) == 1 else None
    text, last = _plain(reply), None
    pattern = rf"\b{named}(?![^\W_]){_AFTER_LABEL}(?:(?:{_SCORE})\b{_AFTER_LABEL})?{_NUMBER}"
    for match in re.finditer(pattern, text, re.IGNORECASE):
        upper, end = _UPPER.match(text, match.end()), _RANGE.match(text, match.end())
        is_range = end is not None and float(end[1]) > float(match[1])
        if not is_range and (upper is None or float(upper[1]) == highest):
            last = float(match[1])
    return last


def _plain(text: str) -> str:
    """Returns ``text`` in one line, without quotes and emphasis, with full-width characters as ASCII."""
    return " ".join(_MARKUP.sub("", text.translate(_FULL_WIDTH)).split())


def _label(text: str) -> str:
    """Returns a key or heading in lower case, without its scale, with spaces between words."""
    return " ".join(re.sub(r"\([^()]*\)|[_-]", " ", _plain(text)).strip(" :#").lower().split())


def _outermost(values: list[Labelled]) -> list[Labelled]:
    """Returns the ``values`` with the fewest labels."""
    fewest = min((len(one.labels) for one in values), default=0)
    return [one for one in values if len(one.labels) == fewest]


def _labelled_answers(text: str) -> list[int]:
    words = (match["word"].lower() for match in _LABELLED_ANSWER.finditer(text))
    return [_YES_NO[word] for word in words if word in _YES_NO]


def _verdicts(values: list[Labelled]) -> list[int]:
    """Returns the verdicts among ``values``: true, false, or a text that is only yes or no."""
    words = (_plain(str(one.value)).strip(" .。!").lower() for one in values)
    return [_YES_NO[word] for word in words if word in _YES_NO]


def _number(value: Any, highest: float) -> float | None:
    """Returns ``value`` as a grade; None if it is no grade, or a grade on another scale than ``highest``."""
    text = "" if isinstance(value, bool) else _plain(str(value))
    match = re.fullmatch(rf"{_NUMBER}(?: ?(?:/|out of|of) ?{_NUMBER})?(?: ?(?:points?|分))?", text)
    if match is None or (match[2] and float(match[2]) != highest):
        return None
    return float(match[1])


def _labelled(reply: str) -> Iterator[Labelled]:
    yield from _of_json(reply)
    yield from _of_tables(reply)


def _of_json(reply: str) -> Iterator[Labelled]:
    decoder, end = json.JSONDecoder(), 0
    for start in [match.start() for match in re.finditer(r"[{\[]", reply)][:_MOST_JSON]:
        if start >= end:
            try:
                value, end = decoder.raw_decode(reply, start)
                yield from _leaves(value, ())
            except (ValueError, RecursionError):
                continue


def _leaves(value: Any, labels: tuple[str, ...]) -> Iterator[Labelled]:
    if isinstance(value, dict):
        # in {"criterion": "Beauty", "score": 4} the text "Beauty" labels the 4
        names = tuple(_label(one) for one in value.values() if isinstance(one, str))
        for key, one in value.items():
            yield from _leaves(one, (*labels, *(() if isinstance(one, str) else names), _label(key)))
    elif isinstance(value, list):
        for one in value:
            yield from _leaves(one, labels)
    elif labels:
        yield Labelled(labels, value)


def _of_tables(reply: str) -> Iterator[Labelled]:
    """Yields the cells of Markdown tables, labelled with the first cell of the row and the column heading."""
    heading = list[str]()
    for line in reply.translate(_FULL_WIDTH).splitlines():
        if line.count("|") < 2:
            heading = []
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if all(_RULE.fullmatch(cell) for cell in cells):
            continue
        labels = heading if len(heading) == len(cells) else [""] * len(cells)
        for n, cell in enumerate(cells):
            row = (_label(cells[0]),) if n else ()
            found = (*row, *((_label(labels[n]),) if labels[n] else ()))
            if found:
                yield Labelled(found, cell)
        heading = heading or cells
