"""An encoder's numbers as the text of an answer."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from eval_models.encoders.batches import Encoded
from imageevalkit.evaluation.question import Answer, Reply


def number_answer(encoded: Encoded, numbers: Mapping[str, float | Sequence[float]]) -> Answer:
    """The answer whose text is ``numbers`` as JSON; an error where one of them is not finite."""
    flat = [n for found in numbers.values() for n in (found if isinstance(found, Sequence) else [found])]
    if not all(map(math.isfinite, flat)):
        # no JSON, and no measurement: half precision overflowed, or the weights are damaged
        return Answer(encoded.question, None, "the encoder gave no finite number", encoded.seconds)
    return Answer(encoded.question, Reply(json.dumps(dict(numbers))), seconds=encoded.seconds)


def error_answer(encoded: Encoded) -> Answer:
    """The answer of a picture without features."""
    return Answer(encoded.question, None, encoded.error, encoded.seconds)
