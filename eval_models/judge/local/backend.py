"""A vision-language judge that runs in this process, in transformers."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from eval_models.judge.local.forward import Counts, Forward
from eval_models.judge.local.generation import generate_replies
from eval_models.judge.local.jobs import Job, plan, plan_apart
from eval_models.judge.local.model import LocalModel, load_model
from eval_models.judge.local.next_token import check_wanted_ids, logits_of, next_token_reply
from eval_models.judge.local.one_image import OneImage
from eval_models.judge.local.processor import PREPARED_BY
from eval_models.judge.local.prompts import Inputs, Prepared, Prompts
from eval_models.judge.local.sampling import check_question
from eval_models.judge.local.settings import TransformersSettings
from eval_models.judge.local.weights import find_weights, package_versions
from eval_models.judge.options import JudgeOptions
from eval_models.judge.registry import JudgeChoice
from eval_models.weights_source import WeightsSource
from imageevalkit.errors import CellFailure, say
from imageevalkit.evaluation.question import Answer, JudgeUnusable, Question, Reply
from imageevalkit.secrets import one_line


class _TooMany(Exception):
    """A batch is larger than what memory allows."""


class TransformersJudge:
    """See :class:`eval_models.judge.interface.Judge`; ``counts`` tells what its model did.

    All questions about one image share its preparation, its pass through the vision tower and the keys and values
    of what the prompts have in common (see :mod:`eval_models.judge.local.one_image`). Replies about images of which
    only one thing is asked are generated in batches. Beside a GPU, a thread prepares the next images while
    the model works.
    """

    def __init__(self, choice: JudgeChoice, options: JudgeOptions) -> None:
        kwargs = {**choice.setting.kwargs, **options.kwargs}
        self._model_path = choice.setting.model_path
        self._settings = TransformersSettings.from_kwargs(self._model_path, kwargs)
        self._batch_size = self._settings.batch_size
        self.counts = Counts()

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """See the interface: the checkpoint by content, the settings, what prepares images, the packages' versions."""
        return {
            "backend": "transformers",
            **self._source.identity,
            "settings": self._settings.identity,
            "images_prepared_by": PREPARED_BY,
            "packages": package_versions(),
        }

    def has_answered(self) -> None:
        """See the interface: it says nothing new of a model that runs here."""

    def holdup(self) -> str:
        """See the interface."""
        return "" if "_local" in vars(self) else "loading judge"

    def ask(self, questions: Sequence[Question]) -> Iterator[Answer]:
        """See the interface. Questions about one image are answered one after the other, generated ones last."""
        for question in questions:
            check_question(question)
        if not questions:
            return
        check_wanted_ids(questions, self._local.processor.tokenizer)
        jobs = plan(questions, self._batch_size, self._local.model.generation_config)
        for job, prepared, started in self._in_turn(jobs):
            yield from self._answers(job, prepared, started)

    def _in_turn(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Prepared, float]]:
        """Each job with what the model takes for it, and when work on it began."""
        if not self._beside_gpu:
            # the model uses all cores: a thread beside it would only make its threads spin while they wait
            for job in jobs:
                started = time.monotonic()
                yield job, self._prepare(job), started
            return
        thread = ThreadPoolExecutor(1, "prepare")
        try:
            upcoming = thread.submit(self._prepare, jobs[0])
            for job, following in zip(jobs, [*jobs[1:], None], strict=True):
                started = time.monotonic()
                prepared = upcoming.result()
                if following is not None:
                    upcoming = thread.submit(self._prepare, following)
                yield job, prepared, started
        finally:
            thread.shutdown(cancel_futures=True)

    def _answers(self, job: Job, prepared: Prepared, started: float) -> Iterator[Answer]:
        """The answer to each question of ``job``. A batch that fails is tried again in smaller ones."""
        for question, error in prepared.unanswerable:
            yield Answer(question, None, error)
        try:
            replies = list(self._replies(job, prepared))
        except (
            Exception
        ) as error:  # whatever a model raises costs these questions, unless the next line knows better
            yield from self._after_failure(job, prepared, error)
            return
        seconds = (time.monotonic() - started) / max(1, len(replies))
        self.counts.questions += len(replies)
        for question, reply in replies:
            yield Answer(question, reply, seconds=seconds)

    def _replies(self, job: Job, prepared: Prepared) -> Iterator[tuple[Question, Reply]]:
        if not job.one_image:
            for questions, inputs in prepared.batches:
                yield from self._batch(questions, inputs)
            return
        questions = [question for (question,), _ in prepared.batches]
        prompts = [inputs for _, inputs in prepared.batches]
        if len(questions) > 1 and self._one_image.may_share(questions, prompts):
            yield from self._one_image.replies(questions, prompts)
            return
        for question, prompt in zip(questions, prompts, strict=True):
            if question.wanted or len(questions) == 1:
                yield from self._batch([question], prompt)
        generated = [question for question in questions if not question.wanted and len(questions) > 1]
        for apart in plan_apart(generated, self._batch_size, self._local.model.generation_config):
            yield from self._replies(apart, self._prepare(apart))

    def _batch(self, questions: Sequence[Question], inputs: Inputs) -> Iterator[tuple[Question, Reply]]:
        """The replies to ``questions``, the rows of ``inputs``, in one go."""
        model, processor, _ = self._local
        if questions[0].wanted:
            (question,) = questions
            logits = logits_of(inputs, len(question.pictures), self._forward)
            tokenizer = processor.tokenizer
            yield question, next_token_reply(question, inputs, logits, tokenizer, model.generation_config)
            return
        if len(questions) > self._batch_size:  # it was planned before memory ran out
            raise _TooMany
        replies = generate_replies(questions, inputs, model, processor.tokenizer, self._forward)
        yield from zip(questions, replies, strict=True)

    def _after_failure(self, job: Job, prepared: Prepared, error: Exception) -> Iterator[Answer]:
        import torch

        questions = [question for batch, _ in prepared.batches for question in batch]
        if isinstance(error, torch.AcceleratorError):
            # a fault of the device makes every later call fail as well
            raise JudgeUnusable(f"judge: the GPU failed ({one_line(error, 200)}); run it again") from error
        exhausted = isinstance(error, torch.OutOfMemoryError)
        if exhausted:
            torch.cuda.empty_cache()
        if len(questions) == 1:
            if exhausted and not self.counts.questions:
                raise CellFailure(
                    f"judge: {self._model_path} leaves too little GPU memory for one question; set its max_pixels, "
                    "give the job more GPUs (EVAL_GPU_MAP), or choose a smaller judge"
                ) from error
            why = (
                "out of GPU memory; the judge's max_pixels makes images smaller"
                if exhausted
                else one_line(error)
            )
            yield Answer(questions[0], None, why)
            return
        half = len(questions) // 2
        if exhausted and not job.one_image:
            self._batch_size = half
            say(f"judge: out of GPU memory; from now on {half} replies are generated at once")
        for part in (questions[:half], questions[half:]):
            smaller = Job(tuple(part), job.one_image)
            yield from self._answers(smaller, self._prepare(smaller), time.monotonic())

    def _prepare(self, job: Job) -> Prepared:
        if job.one_image:
            return self._prompts.one_by_one(job.questions)
        return self._prompts.together(job.questions)

    @property
    def _beside_gpu(self) -> bool:
        return str(self._local.model.device.type) != "cpu"

    @functools.cached_property
    def _source(self) -> WeightsSource:
        return find_weights(self._model_path, self._settings.revision)

    @functools.cached_property
    def _local(self) -> LocalModel:
        return load_model(self._source, self._settings)

    @functools.cached_property
    def _prompts(self) -> Prompts:
        return Prompts(self._local.processor, self._local.positions)

    @functools.cached_property
    def _forward(self) -> Forward:
        return Forward(self._local.model, self.counts)

    @functools.cached_property
    def _one_image(self) -> OneImage:
        model, processor, _ = self._local
        return OneImage(model, processor.tokenizer, self._forward, self._settings.batch_size)
