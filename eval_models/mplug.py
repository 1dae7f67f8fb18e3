"""mPLUG, which answers DPG-Bench's questions, by ModelScope's own pipeline in an environment of its own."""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from eval_models.encoders.weights import ENCODERS, find, loading
from imageevalkit.benchmark.answerer import Answerer, digest, without_packages
from imageevalkit.benchmark.question import Answer, Question
from imageevalkit.cell.results import Evaluator
from imageevalkit.images import CorruptImage
from imageevalkit.judges.api import open_picture
from imageevalkit.secrets import one_line
from imageevalkit.weights import first_line, package_versions


class MPlug(Answerer):
    """Asked by a message of a picture and a question; an answer is a text as JSON, "yes" or another word or two."""

    def __init__(self, weights: Mapping[str, str] | None = None, device: str = "") -> None:
        self.weights, self.device = weights or {}, device

    @cached_property
    def evaluator(self) -> Evaluator:
        packages = package_versions(ENCODERS, ("modelscope", "torch", "transformers", "pillow"))
        identity = {"encoder": "mplug", "weights": find("mplug", self.weights).identity, "packages": packages}
        name = f"mplug/{digest(without_packages(identity))[:8]}"
        return Evaluator(name, official=True, details={"encoder": identity})

    def ask(self, questions: Sequence[Question], workers: int = 1) -> Iterator[Answer]:
        """One after the other, as the official program does: the pipeline takes one image and one question."""
        if not questions:
            return
        answer = self._pipeline()
        for question in questions:
            started = time.monotonic()
            text, error = None, ""
            try:
                (picture,) = question.pictures
                text = json.dumps(answer({"image": open_picture(picture), "question": question.text})["text"])
            except CorruptImage as reason:
                error = f"unreadable image: {one_line(reason)}"
            except Exception as reason:  # whatever the pipeline raises costs this question, not the cell
                error = first_line(reason)
            yield Answer(question, text, error, seconds=time.monotonic() - started)

    def _pipeline(self) -> Any:
        source = find("mplug", self.weights)
        # it tells at length what it does
        with loading(source), contextlib.redirect_stdout(io.StringIO()):
            import torch
            from modelscope.pipelines import pipeline
            from modelscope.utils.constant import Tasks

            device = self.device or ("gpu" if torch.cuda.is_available() else "cpu")
            return pipeline(Tasks.visual_question_answering, model=source.model_path, device=device)
