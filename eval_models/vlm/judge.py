"""A vision-language judge that runs in this process, in transformers."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

from eval_models.vlm.inference import Inference, check_choice_ids
from eval_models.vlm.model import PREPARED_BY, LocalModel, load_model
from eval_models.vlm.prompts import PromptBatches, Prompts, check_question, reply_groups
from imageevalkit.benchmark.question import Answer, JudgeUnusable, Picture, Question
from imageevalkit.errors import CellFailure, say
from imageevalkit.judges.answerer import WEIGHTS_USER, Judge
from imageevalkit.judges.settings import TransformersSettings
from imageevalkit.secrets import one_line
from imageevalkit.weights import WeightsSource, find_weights, package_versions


class _Job(NamedTuple):
    """Questions that are prepared and answered together.

    ``one_image``: they are about the same pictures, with the same words before the end of the last. Otherwise it is
    one question with ``choices``, or several of equal sampling without, each about its own image.
    """

    questions: Sequence[Question]
    one_image: bool


class TransformersJudge(Judge):
    """All questions about one image share its preparation, its pass through the vision tower and the keys and values
    of what the prompts have in common (see :mod:`eval_models.vlm.inference`). Replies about images of which
    only one thing is asked are generated in batches. Beside a GPU, a thread prepares the next images while
    the model works.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._settings = TransformersSettings(**self.kwargs)
        self._batch_size = self._settings.batch_size
        self._answered = False

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """The checkpoint by content, the settings, what prepares images, the packages' versions."""
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
            check_question(question)
        if not questions:
            return
        check_choice_ids(questions, self._local.processor.tokenizer)
        for job, started, prepared in self._in_turn(self._plan(questions)):
            yield from self._answers(job, started, prepared)

    def _plan(self, questions: Sequence[Question]) -> list[_Job]:
        """All questions about one image are a job; so are as many others as go through the model at once."""
        about: dict[Hashable, list[Question]] = {}
        for n, question in enumerate(questions):
            about.setdefault(_beginning(question) if question.pictures else n, []).append(question)
        jobs = [_Job(group, True) for group in about.values() if len(group) > 1]
        return jobs + self._plan_apart([group[0] for group in about.values() if len(group) == 1])

    def _plan_apart(self, questions: Sequence[Question]) -> list[_Job]:
        """The same where no question shares an image with another."""
        jobs = [_Job([question], False) for question in questions if question.choices]
        replies = (question for question in questions if not question.choices)
        for group in reply_groups(replies, lambda q: q.sampling, self._local.model.generation_config):
            for start in range(0, len(group), self._batch_size):
                jobs.append(_Job(group[start : start + self._batch_size], False))
        return jobs

    def _in_turn(self, jobs: Sequence[_Job]) -> Iterator[tuple[_Job, float, PromptBatches]]:
        """Each job, when work on it began, and what the model takes for it."""
        if not self._beside_gpu:
            # the model uses all cores: a thread beside it would only make its threads spin while they wait
            yield from ((job, time.monotonic(), self._prepare(job)) for job in jobs)
            return
        thread = ThreadPoolExecutor(1, "prepare")
        try:
            upcoming = thread.submit(self._prepare, jobs[0])
            for n, job in enumerate(jobs, start=1):
                started = time.monotonic()
                prepared = upcoming.result()
                if n < len(jobs):
                    upcoming = thread.submit(self._prepare, jobs[n])
                yield job, started, prepared
        finally:
            thread.shutdown(cancel_futures=True)

    def _prepare(self, job: _Job) -> PromptBatches:
        groups = [[question] for question in job.questions] if job.one_image else [job.questions]
        return self._chat_prompts.prepared(groups)

    def _answers(self, job: _Job, started: float, prepared: PromptBatches) -> Iterator[Answer]:
        """The answer to each question of ``job``. A batch that fails is tried again in smaller ones."""
        yield from prepared.failures
        try:
            answers = list(self._inferred(job, prepared))
        except Exception as error:  # whatever a model raises costs these questions, unless the device failed
            yield from self._after_failure(job, prepared, error)
            return
        seconds = (time.monotonic() - started) / max(1, len(answers))
        self._answered = self._answered or bool(answers)
        for answer in answers:
            yield replace(answer, seconds=seconds)

    def _inferred(self, job: _Job, prepared: PromptBatches) -> Iterator[Answer]:
        batches = prepared.batches
        several = job.one_image and len(batches) > 1
        if several:
            questions, prompts = [question for (question,), _ in batches], [inputs for _, inputs in batches]
            if self._inference.may_share(prompts):
                yield from self._inference.shared_answers(questions, prompts)
                return
        generated: list[Question] = []
        for questions, inputs in batches:
            # or it was planned before memory ran out
            if (several and not questions[0].choices) or len(questions) > self._batch_size:
                generated += questions
            else:
                yield from self._inference.answers(questions, inputs)
        for apart in self._plan_apart(generated):
            yield from self._inferred(apart, self._prepare(apart))

    def _after_failure(self, job: _Job, prepared: PromptBatches, error: Exception) -> Iterator[Answer]:
        import torch

        questions = [question for batch, _ in prepared.batches for question in batch]
        if isinstance(error, torch.AcceleratorError):
            # a fault of the device makes every later call fail as well
            raise JudgeUnusable(f"judge: the GPU failed ({one_line(error, 200)}); run it again") from error
        exhausted = isinstance(error, torch.OutOfMemoryError)
        if exhausted:
            torch.cuda.empty_cache()
        if len(questions) == 1:
            if exhausted and not self._answered:
                raise CellFailure(
                    f"judge: {self._source.model_path} leaves too little GPU memory for one question; set its "
                    "max_pixels, give the job more GPUs (EVAL_GPU_MAP), or choose a smaller judge"
                ) from error
            advice = "out of GPU memory; the judge's max_pixels makes images smaller"
            yield Answer(questions[0], None, advice if exhausted else one_line(error))
            return
        half = len(questions) // 2
        if exhausted and not job.one_image:
            self._batch_size = half
            say(f"judge: out of GPU memory; from now on {half} replies are generated at once")
        for part in (questions[:half], questions[half:]):
            smaller = _Job(part, job.one_image)
            yield from self._answers(smaller, time.monotonic(), self._prepare(smaller))

    @property
    def _beside_gpu(self) -> bool:
        return str(self._local.model.device.type) != "cpu"

    @functools.cached_property
    def _source(self) -> WeightsSource:
        return find_weights(WEIGHTS_USER, self.choice.setting.model_path, self._settings.revision)

    @functools.cached_property
    def _local(self) -> LocalModel:
        return load_model(self._source, self._settings)

    @functools.cached_property
    def _chat_prompts(self) -> Prompts:
        return Prompts(self._local.processor, self._local.positions)

    @functools.cached_property
    def _inference(self) -> Inference:
        tokenizer = self._local.processor.tokenizer
        return Inference(self._local.model, tokenizer, self._settings.batch_size)


def _beginning(question: Question) -> Hashable:
    """All up to the last picture, and what else the chat template may write before it."""
    parts = [(n, m.role, part) for n, m in enumerate(question.messages) for part in m.parts]
    end = max(n for n, (*_, part) in enumerate(parts, start=1) if isinstance(part, Picture))
    return tuple(parts[:end]), json.dumps(question.sampling.extra.get("chat_template_kwargs"), sort_keys=True)
