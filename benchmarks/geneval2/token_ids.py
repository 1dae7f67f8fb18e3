"""The tokens that the official judge's tokenizer begins accepted strings with (spec of GenEval 2, section 5).

They were computed from the Qwen vocabulary, not read off the judge itself; asking it by others is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

# by word: itself, capitalised, each of them after a space, the digit, and the bare space that begins space + digit
_WORDS = {
    "one": (603, 3966, 825, 3776, 16, 220),
    "two": (19789, 11613, 1378, 9043, 17, 220),
    "three": (27856, 19641, 2326, 14513, 18, 220),
    "four": (34024, 26972, 3040, 13322, 19, 220),
    "five": (52670, 37020, 4236, 20924, 20, 220),
    "six": (50364, 41460, 4743, 18680, 21, 220),
    "seven": (80185, 59528, 8094, 29948, 22, 220),
}
_YES = (9454, 9693, 9834, 7414)


def official_ids(accepted: Sequence[str]) -> tuple[int, ...]:
    """The ids of the ``accepted`` strings, in their order; none for an answer that the data do not have."""
    return _YES if accepted[0] == "Yes" else _WORDS.get(accepted[0], ())
