"""The words of a CVTG-2K prompt, compared with the words that were read in its image."""

from __future__ import annotations

import difflib
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

_ASCII = str.maketrans("‘’“”–—", "''\"\"--")


def quoted_words(prompt: str) -> list[str]:
    """Returns the words between ASCII single quotes, lower-cased."""
    return [word for text in re.findall("'(.*?)'", prompt) for word in text.lower().split()]


def similarity(word: str, other: str) -> float:
    """Returns 1 - edit distance / longer length. Without any equal character it is slightly above 0."""
    from rapidfuzz.distance import Levenshtein  # the driver imports this module before packages are installed

    return 1 - Levenshtein.distance(word, other) / (max(len(word), len(other)) + 1e-5)


def official_match(expected: Sequence[str], read: Sequence[str]) -> tuple[int, list[float]]:
    """Returns the number of ``expected`` words in ``read``, and the similarity of each to the nearest word."""
    # quirk: one word that was read serves every repetition in the prompt
    correct = sum(word in read for word in expected)
    # quirk: the nearest word is difflib's, which may not have the smallest edit distance
    near = (difflib.get_close_matches(word, read, 1, 0)[0] for word in expected)
    return correct, [similarity(*pair) for pair in zip(expected, near, strict=True)]


def corrected_match(expected: Sequence[str], read: Sequence[str]) -> tuple[int, list[float]]:
    """Returns the same as :func:`official_match`, but a word that was read serves one expected word."""
    return common(expected, read), [max(similarity(word, one) for one in read) for word in expected]


def common(expected: Iterable[str], read: Iterable[str]) -> int:
    """Returns the number of words that both have, with repetitions."""
    return (Counter(expected) & Counter(read)).total()


def folded(words: Iterable[str]) -> list[str]:
    """Returns the words in ASCII: the OCR model knows no other character."""
    found = []
    for word in words:
        plain = unicodedata.normalize("NFKD", word.translate(_ASCII))
        found.append(plain.encode("ascii", "ignore").decode() or word)
    return found


def stripped(words: Iterable[str]) -> list[str]:
    """Returns the words without punctuation at their ends. A word of only punctuation stays."""
    return [word.strip(string.punctuation) or word for word in words]
