"""A vision-language judge that runs in this process, in transformers."""

from __future__ import annotations

import functools
import json
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

from PIL import Image

from eval_models.vlm.inference import Inputs, LocalModel, UnfitPicture, check_sampling
from eval_models.vlm.model import PREPARED_BY, load_model
from imageevalkit.benchmark.question import Answer, JudgeUnusable, Picture, Question
from imageevalkit.errors import CellFailure, say
from imageevalkit.judges.answerer import WEIGHTS_USER, Judge
from imageevalkit.judges.settings import TransformersSettings
from imageevalkit.secrets import one_line
from imageevalkit.weights import WeightsSource, find_weights, package_versions


class _Job(NamedTuple):
    """Questions that are prepared and answered together.

    ``one_image``: they are about the same pictures, with the same words before the end of the last, whose pass
    through the model they share if ``shares``. Otherwise it is one question of a first token, or several of
    equal sampling of replies, each about its own image. ``images`` are opened once, also where its halves are tried.
    """

    questions: Sequence[Question]
    images: dict[Picture, Image.Image]
    one_image: bool = False
    shares: bool = False


class TransformersJudge(Judge):
    """Questions about one image share its pass through the model; replies about many are generated in batches.

    Beside a GPU, a thread prepares the next images while the model works.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._settings = TransformersSettings(**self.kwargs)
        self._batch_size = self._settings.batch_size
        self._answered = False

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        return {
            "backend": "transformers",
            **self._source.identity,
            "settings": self._settings.identity,
            "images_prepared_by": PREPARED_BY,
            "packages": package_versions(
                WEIGHTS_USER,
                ("torch", "transformers", "tokenizers", "pillow"),
                # transformers prepares images with it where a class has no variant for Pillow
                optional=("torchvision",),
            ),
        }

    def holdup(self) -> str:
        return "" if "_local" in vars(self) else "loading judge"

    def ask(self, questions: Sequence[Question], workers: int = 1) -> Iterator[Answer]:
        """Questions about one image are answered one after the other, generated ones last."""
        for question in questions:
            check_sampling(question)
        if not questions:
            return
        self._check_choices(questions)
        plan, again = self._plan(questions), deque[_Job]()
        ready: deque[tuple[_Job, Callable[[], list[Inputs]]]] = deque()
        thread = ThreadPoolExecutor(1, "prepare")
        try:
            while True:
                while len(ready) < 2 and (job := again.popleft() if again else next(plan, None)):
                    groups = [[question] for question in job.questions] if job.one_image else [job.questions]
                    prepare = functools.partial(self._local.prompts, groups, job.images)
                    # a model on the CPU uses all cores: a thread beside it would only make its own spin in waiting
                    ready.append((job, thread.submit(prepare).result if self._beside_gpu else prepare))
                if not ready:
                    return
                job, prepared = ready.popleft()
                started = time.monotonic()
                answers = self._answers(job, prepared)
                if not answers:
                    half = len(job.questions) // 2
                    parts = job.questions[:half], job.questions[half:]
                    again += (
                        job._replace(questions=part, one_image=job.one_image and len(part) > 1)
                        for part in parts
                    )
                seconds = (time.monotonic() - started) / max(1, len(answers))
                yield from (replace(answer, seconds=seconds) for answer in answers)
        finally:
            thread.shutdown(cancel_futures=True)

    def _check_choices(self, questions: Sequence[Question]) -> None:
        expected = {q.choices: q.choice_ids for q in questions if q.choice_ids}
        for choices, ids in expected.items():
            for choice, id, found in zip(choices, ids, self._local.first_tokens(choices), strict=True):
                if id != found:
                    raise JudgeUnusable(
                        f"judge: its tokenizer begins {choice!r} with token {found} instead of {id}: these are not "
                        "the weights that the official scores come from; choose another judge by name"
                    )

    def _plan(self, questions: Sequence[Question]) -> Iterator[_Job]:
        """All questions about one image are a job; so are as many others as go through the model at once."""
        about: dict[Hashable, list[Question]] = {}
        for n, question in enumerate(questions):
            about.setdefault(_beginning(question) if question.pictures else n, []).append(question)
        shared = [group for group in about.values() if len(group) > 1]
        apart = [group[0] for group in about.values() if len(group) == 1]
        if shared:
            shares = self._shares()  # before a thread prepares images, as its trial does too
            yield from (_Job(group, {}, True, shares) for group in shared)
        for numbers in self._local.batches(apart):
            group = [apart[n] for n in numbers]
            while group:
                size = 1 if group[0].of_first_token else self._batch_size  # which may shrink meanwhile
                yield _Job(group[:size], {})
                group = group[size:]

    def _shares(self) -> bool:
        import torch

        try:
            return self._local.shares
        except torch.OutOfMemoryError as error:
            raise self._too_large() from error

    def _answers(self, job: _Job, prepared: Callable[[], list[Inputs]]) -> list[Answer]:
        """The answer to each question of ``job``; none if it failed and its halves are to be tried."""
        import torch

        questions = job.questions
        try:
            prompts = prepared()
            if job.one_image:
                ask = self._local.shared_answers if job.shares else self._local.apart_answers
                answers = ask(questions, prompts, self._batch_size)
            else:
                answers = self._local.answers(questions, prompts[0])
        except torch.AcceleratorError as error:
            # a fault of the device makes every later call fail as well
            raise JudgeUnusable(f"judge: the GPU failed ({one_line(error, 200)}); run it again") from error
        except UnfitPicture as error:
            if job.one_image:  # it is that of all
                return [Answer(question, None, one_line(error)) for question in questions]
            reason, exhausted = one_line(error), False
        except Exception as error:  # whatever a model raises costs these questions, unless the device failed
            reason, exhausted = one_line(error), isinstance(error, torch.OutOfMemoryError)
        else:
            self._answered = True
            return answers
        if exhausted:
            torch.cuda.empty_cache()  # only here: the traceback held the tensors
        if len(questions) > 1:
            size = min(len(questions), self._batch_size) // 2
            if exhausted and size:
                self._batch_size = size
                say(f"judge: out of GPU memory; from now on {size} questions go through the model at once")
            return []
        if exhausted and not self._answered:
            raise self._too_large()
        if exhausted:
            self._batch_size = self._settings.batch_size  # the image is to blame, not how many there were
            reason = "out of GPU memory; the judge's max_pixels makes images smaller"
        return [Answer(questions[0], None, reason)]

    def _too_large(self) -> CellFailure:
        return CellFailure(
            f"judge: {self._source.model_path} leaves too little GPU memory for one question; set its "
            "max_pixels, give the job more GPUs (EVAL_GPU_MAP), or choose a smaller judge"
        )

    @property
    def _beside_gpu(self) -> bool:
        return str(self._local.model.device.type) != "cpu"

    @functools.cached_property
    def _source(self) -> WeightsSource:
        return find_weights(WEIGHTS_USER, self.choice.setting.model_path, self._settings.revision)

    @functools.cached_property
    def _local(self) -> LocalModel:
        return load_model(self._source, self._settings)


def _beginning(question: Question) -> Hashable:
    """All up to the last picture, and what else the chat template may write before it."""
    parts = [(n, m.role, part) for n, m in enumerate(question.messages) for part in m.parts]
    end = max(n for n, (*_, part) in enumerate(parts, start=1) if isinstance(part, Picture))
    return tuple(parts[:end]), json.dumps(question.sampling.extra.get("chat_template_kwargs"), sort_keys=True)
