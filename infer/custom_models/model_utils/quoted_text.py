"""The strings that a prompt puts in quotation marks: the text it asks an image to show."""

from __future__ import annotations

import re

_CLOSING = {
    '"': '"',
    "＂": "＂",
    "“": "”",
    "„": "“”",
    "「": "」",
    "『": "』",
    "«": "»",
    "‘": "’",
    "'": "'",
}
_SINGLE = "'‘"
# "don't", "the dogs' bowl", "’90s" and "rock 'n' roll" are no quotations
_OPENING_SINGLE = re.compile(r"(?<![A-Za-z0-9'’])['‘](?=[^\s'’])(?!\d\ds)(?!n['’])")
_CLOSING_SINGLE = re.compile(r"(?<=\S)['’](?![A-Za-z0-9])")


def quoted_strings(prompt: str) -> list[str]:
    """Every quoted string of ``prompt`` in order, without its marks.

    A quotation inside another stays part of it. Known marks: "…", “…”, „…“, 「…」, 『…』, «…», and '…' or ‘…’
    where they are no apostrophes. A mark that is never closed is passed over, as is a straight double mark
    after a digit (inches).
    """
    prompt = _mend_curly(prompt)
    found = []
    at = 0
    while at < len(prompt):
        end = _end_of_quotation(prompt, at)
        if end is None:
            at += 1
            continue
        text = prompt[at + 1 : end].strip()
        if text:
            found.append(text)
        at = end + 1
    return found


def _mend_curly(prompt: str) -> str:
    """``prompt`` with straight double marks where its curly ones do not pair up (”a”, “a“, “a")."""
    depth = 0
    for char in prompt:
        depth += (char in "“„") - (char == "”")
        if depth < 0:
            break
    return re.sub("[“”]", '"', prompt) if depth and "„" not in prompt else prompt


def _end_of_quotation(prompt: str, at: int) -> int | None:
    """The index of the mark that closes the quotation opening at ``at``; None when none opens there."""
    mark = prompt[at]
    closing = _CLOSING.get(mark)
    if closing is None:
        return None
    if mark in _SINGLE:
        return _end_of_single(prompt, at)
    if mark == closing:
        inches = at > 0 and prompt[at - 1] in "0123456789"
        end = prompt.find(closing, at + 1)
        return None if inches or end < 0 else end
    depth = 0
    for i in range(at, len(prompt)):
        depth += (prompt[i] == mark) - (prompt[i] in closing)
        if depth == 0:
            return i
    return None


def _end_of_single(prompt: str, at: int) -> int | None:
    if not _OPENING_SINGLE.match(prompt, at):
        return None
    closing = _CLOSING_SINGLE.search(prompt, at + 1)
    if not closing:
        return None
    # an apostrophe that looks like an opening mark ("'tis") gives way to the next opening one
    reopened = _OPENING_SINGLE.search(prompt, at + 1, closing.start())
    return None if reopened else closing.start()
