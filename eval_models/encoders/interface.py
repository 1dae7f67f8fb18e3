"""What a benchmark asks of an encoder: numbers about an image, in the words that judges are asked in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from imageevalkit.evaluation.question import Answer, Question


@dataclass(frozen=True)
class EncoderOptions:
    """``weights`` are folders, files or hub ids by their names in :data:`eval_models.encoders.weights.WEIGHTS`, over
    the defaults there. ``device`` "" is the first GPU, else the CPU. ``batch_size`` counts images in one forward pass;
    it is halved where memory runs out."""

    weights: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    batch_size: int = 32


class Encoder(Protocol):
    """One measurement by image encoders, for one process. Making one is cheap; weights load with the first question."""

    @property
    def identity(self) -> dict[str, Any]:
        """All that decides what it answers: weights, precision, reference data, packages; JSON values, no places.

        Costs no model load.

        Raises:
            CellFailure: weights are missing, or a package is; the message says which and where to get them.
        """

    def ask(self, questions: Sequence[Question]) -> Iterator[Answer]:
        """The answer to each question, in any order, as they come; ``Reply.text`` is JSON.

        An image that does not decode is an answer with an error. The model is freed when the iterator ends.

        Raises:
            CellFailure: the weights do not load.
        """
