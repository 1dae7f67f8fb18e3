"""The files that the official scripts of GenEval 2 read and write."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from imageevalkit.cell import REPO
from imageevalkit.errors import UserError
from imageevalkit.secrets import one_line

IMAGE_FILEPATHS = "image_filepaths.json"


def filepaths_text(images: Mapping[str, Path]) -> str:
    """``{prompt: image path}`` for the official ``evaluation.py``, run from the root of this repository.

    Paths below the root are relative, so that the folder can be copied to another machine.
    """
    paths = {prompt: path.resolve() for prompt, path in images.items()}
    shown = {
        prompt: (path.relative_to(REPO) if path.is_relative_to(REPO) else path).as_posix()
        for prompt, path in paths.items()
    }
    return json.dumps(shown, indent=1, ensure_ascii=False) + "\n"


def score_lists_text(lists: Sequence[Sequence[float]]) -> str:
    """A list of scores per prompt, in the order of the data file, as the official ``--output_file``."""
    return json.dumps([list(scores) for scores in lists]) + "\n"


def read_score_lists(path: Path) -> list[list[float]]:
    """The scores of each prompt, in the order of the data file.

    A score may exceed 1: the official sum counts a token twice where a tokenizer begins two answers with it.

    Raises:
        UserError: the file cannot be read, or is no list of lists of numbers that are not negative.
    """
    raw = _read_json(path)
    if not isinstance(raw, list) or not raw:
        raise UserError(f"{path} is no JSON list with a list of scores per prompt")
    for number, scores in enumerate(raw):
        if not isinstance(scores, list) or not scores or not all(map(_is_score, scores)):
            raise UserError(
                f"{path}: entry {number} is no list of scores: {one_line(json.dumps(scores), 60)}"
            )
    return raw


def _is_score(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value >= 0


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise UserError(f"{path} is no JSON ({one_line(error)})") from None
