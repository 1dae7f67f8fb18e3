"""An image's embedding as the text of an answer, and how far two are apart: no torch, no numpy."""

from __future__ import annotations

import base64
import json
import math
import sys
from array import array
from collections.abc import Iterable, Sequence
from operator import mul


def embedding_text(values: Iterable[float]) -> str:
    """JSON ``{"embedding": base64}`` of ``values`` as float32, little-endian."""
    return json.dumps({"embedding": base64.b64encode(_little_endian(array("f", values)).tobytes()).decode()})


def read_embedding(text: str) -> Sequence[float]:
    """The float32 values that :func:`embedding_text` made ``text`` of.

    Raises:
        ValueError: it is no such text.
    """
    try:
        values = array("f")
        values.frombytes(base64.b64decode(json.loads(text)["embedding"], validate=True))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("no embedding as base64 of float32 values") from error
    return _little_endian(values)


def distance(a: Sequence[float], b: Sequence[float]) -> float:
    """DreamSim's distance of two images by their embeddings: 1 - cosine, 0 (the same) to 2.

    The package computes it in float32; here the same values are float64 (differences below 1e-6).

    Raises:
        ValueError: the embeddings are not as long as each other, or one is zero.
    """
    if len(a) != len(b):
        raise ValueError(f"embeddings of {len(a)} and {len(b)} values have no distance")
    lengths = math.sqrt(_dot(a, a) * _dot(b, b))
    if not lengths:
        raise ValueError("an embedding of zeros has no distance")
    return 1.0 - _dot(a, b) / lengths


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(map(mul, a, b))


def _little_endian(values: array[float]) -> array[float]:
    if sys.byteorder == "big":
        values.byteswap()
    return values
