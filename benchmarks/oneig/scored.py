"""What is known of a prompt's images when every question was asked: the input of all metrics and official files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

Task = Literal["alignment", "text", "reasoning", "style", "diversity"]
TASKS: tuple[Task, ...] = ("alignment", "text", "reasoning", "style", "diversity")

Language = Literal["en", "zh"]


@dataclass(frozen=True)
class Prompt:
    """One line of the prompt file. ``class_item`` is the folder of its images ("anime"), ``id`` restarts in each.

    ``type`` ("NP", "T, P") and ``length`` ("short", "middle", "long") are empty in Chinese. ``label`` is the column
    "class": the style of anime prompts (empty: none), the subject of reasoning prompts, the scene of text prompts.

    ``questions`` and ``parents`` (alignment) are by question number, from 1; a root has no parents. ``expected_text``
    is the raw column of the text file, ``answer`` the reference of a reasoning prompt. Empty where a class has none.
    """

    class_item: str
    id: str
    text: str
    type: str = ""
    length: str = ""
    label: str = ""
    questions: Mapping[int, str] = field(default_factory=dict)
    parents: Mapping[int, Sequence[int]] = field(default_factory=dict)
    expected_text: str = ""
    answer: str = ""

    @property
    def style(self) -> str:
        """The key of the reference embeddings ("3d_rendering"); empty for a prompt without a style."""
        return self.label.lower().replace(" ", "_") if self.class_item == "anime" else ""


class Similarity(NamedTuple):
    """Cosine of image and reference answer: ``official`` in the official precision, ``exact`` in float32."""

    official: float
    exact: float


class StyleSimilarities(NamedTuple):
    """Dot products with the style's reference embeddings: of the CSD encoder (float32), and of the SE encoder in the
    official bfloat16 and, from the same features, in float32."""

    csd: Sequence[float]
    se: Sequence[float]
    se_exact: Sequence[float]


@dataclass(frozen=True)
class ScoredImage:
    """What the evaluators said of one image, by task; None where a task does not look at it or gave no answer.

    ``path`` is None for an image that is not there (never made, refused, corrupt). ``black``: every pixel is
    (0, 0, 0), so that the official splitter takes it for padding; no question was asked then.
    ``answers`` are the judge's replies by question number, as they came; ``reading`` is the reply to the OCR prompt.
    ``embedding`` is DreamSim's, of length 1.
    """

    path: Path | None
    black: bool = False
    answers: Mapping[int, str] | None = None
    reading: str | None = None
    similarity: Similarity | None = None
    style: StyleSimilarities | None = None
    embedding: Sequence[float] | None = None


@dataclass(frozen=True)
class ScoredPrompt:
    """A prompt with its images, as many as were to be made, in the order of their repetition.

    Without images nobody has tried to make one: officially there is no file of the prompt, else one with black cells.
    """

    prompt: Prompt
    images: Sequence[ScoredImage]
