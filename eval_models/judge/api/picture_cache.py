"""Pictures as JSON strings of data URLs, read and encoded once for all questions about them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from eval_models.judge.api.picture_bytes import sent_picture
from imageevalkit.cpu import on_cpu
from imageevalkit.evaluation.question import Picture, Question

# The questions about one picture come together; where they do not, reading it again is cheaper than the memory.
_MOST_KEPT = 16


class DataUrl(NamedTuple):
    """A data URL inside a JSON string: the opening quote and what stands before the base64, then the base64."""

    head: str
    base64: bytes


class PictureCache:
    """Keeps a picture for as long as further ``questions`` need it. Belongs to one event loop."""

    def __init__(self, questions: Iterable[Question]) -> None:
        self._uses = Counter(picture for question in questions for picture in question.pictures)
        self._kept: dict[Picture, asyncio.Task[DataUrl]] = {}

    async def get(self, picture: Picture) -> DataUrl:
        """``picture`` as it is sent, made off the event loop. Raises as ``sent_picture`` does."""
        if picture not in self._kept and self._uses[picture] < 2:
            return await on_cpu(_data_url, picture)
        if picture not in self._kept:
            self._kept[picture] = asyncio.create_task(on_cpu(_data_url, picture))
            if len(self._kept) > _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        return await asyncio.shield(self._kept[picture])

    def answered(self, question: Question) -> None:
        """``question`` needs its pictures no more."""
        for picture in question.pictures:
            self._uses[picture] -= 1
            if not self._uses[picture]:
                self._kept.pop(picture, None)


def _data_url(picture: Picture) -> DataUrl:
    import pybase64  # base64 of the standard library takes ten times as long and holds the interpreter lock

    data, media_type = sent_picture(picture)
    head = json.dumps(f"data:{media_type};base64,")[:-1]
    return DataUrl(head, pybase64.b64encode(data))
