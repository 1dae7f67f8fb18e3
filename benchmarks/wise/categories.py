"""WISE's six categories: which prompt ids they hold, and their weights in the overall score.

The official programs go by ids alone. Whatever the ``Category`` text of an item says is not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

PROMPTS = 1000


class Category(NamedTuple):
    """``ids`` is the range of its prompt ids; ``domain`` the stem of the data file that holds them."""

    name: str
    domain: str
    ids: range
    weight: float


_CULTURE, _SPACE_TIME, _SCIENCE = "cultural_common_sense", "spatio-temporal_reasoning", "natural_science"

LEGACY: tuple[Category, ...] = (
    Category("culture", _CULTURE, range(1, 401), 0.4),
    Category("time", _SPACE_TIME, range(401, 568), 0.167),
    Category("space", _SPACE_TIME, range(568, 701), 0.133),
    Category("biology", _SCIENCE, range(701, 801), 0.1),
    Category("physics", _SCIENCE, range(801, 901), 0.1),
    Category("chemistry", _SCIENCE, range(901, 1001), 0.1),
)
"""Of the paper's prompts and of their rewritten form."""

VERIFIED: tuple[Category, ...] = (
    Category("culture", _CULTURE, range(1, 401), 0.4),
    Category("time", _SPACE_TIME, range(401, 521), 0.12),
    Category("space", _SPACE_TIME, range(521, 641), 0.12),
    Category("biology", _SCIENCE, range(641, 761), 0.12),
    Category("physics", _SCIENCE, range(761, 881), 0.12),
    Category("chemistry", _SCIENCE, range(881, 1001), 0.12),
)


def category_of(prompt_id: int, categories: Sequence[Category]) -> Category:
    """The one of ``categories`` that holds ``prompt_id``. Raises ValueError where none does."""
    for category in categories:
        if prompt_id in category.ids:
            return category
    raise ValueError(f"no category holds the prompt id {prompt_id}")


def domains(categories: Sequence[Category]) -> dict[str, list[Category]]:
    """The categories of each domain."""
    found: dict[str, list[Category]] = {}
    for category in categories:
        found.setdefault(category.domain, []).append(category)
    return found
