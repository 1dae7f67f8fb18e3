"""An image's embedding as the text of an answer, and how far two are apart: no torch."""

from __future__ import annotations

import base64
import json
import sys
from array import array
from collections.abc import Iterable, Sequence


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


def distances(embeddings: Sequence[Sequence[float]]) -> list[list[float]]:
    """DreamSim's distance of each two of ``embeddings``: 1 - cosine, 0 (the same) to 2.

    The package computes it in float32; here the same values are float64 (differences below 1e-6).

    Raises:
        ValueError: the embeddings are not as long as each other, or one is zero.
    """
    import numpy as np

    if len({len(embedding) for embedding in embeddings}) != 1:
        raise ValueError("embeddings of different lengths have no distance")
    vectors = np.asarray(embeddings, dtype=np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not lengths.all():
        raise ValueError("an embedding of zeros has no distance")
    vectors /= lengths
    found: list[list[float]] = (1 - vectors @ vectors.T).tolist()
    return found


def _little_endian(values: array[float]) -> array[float]:
    if sys.byteorder == "big":
        values.byteswap()
    return values
