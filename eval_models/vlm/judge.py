"""A vision-language judge that runs in this process with transformers.

The checkpoint's processor is loaded without video support and prepares each image once for all questions
about it.

transformers prepares images with torchvision if installed, else with Pillow, and the pixels differ. To keep
scores independent of the installation, this module always uses the Pillow class if one exists. Images of the
Qwen family are the exception for resizing: torch resizes them like torchvision, as the official scripts do.
The remaining shift and scale yield the same numbers in half precision either way.
"""

from __future__ import annotations

import functools
import json
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple, cast

from PIL import Image

from eval_models.encoders.encoder import kept_models
from eval_models.encoders.weights import load_pretrained, loading, quieten_transformers
from eval_models.vlm.inference import Inputs, LocalModel, UnfitPicture, check_sampling
from imageevalkit.assets.weights import WeightsSource, find_weights, package_versions
from imageevalkit.benchmark.answerer import device_lost
from imageevalkit.benchmark.question import Answer, JudgeUnusable, Picture, Question
from imageevalkit.common.errors import CellFailure, say
from imageevalkit.common.redaction import one_line
from imageevalkit.judges.choice import WEIGHTS_USER, Judge, TransformersSettings

PREPARED_BY = "transformers' Pillow variants; Qwen: resized as by torchvision"
"""Describes this module's image preparation in the identity of the judge."""


class _Job(NamedTuple):
    """Questions that are prepared and answered together.

    If ``one_image`` is true, the prompts are equal up to the last picture, and with ``shares`` the questions
    share its forward pass. Otherwise the job is a single first-token question, or several replies with equal
    sampling, each about its own image. ``images`` caches opened pictures, also for the halves of a failed
    job.
    """

    questions: Sequence[Question]
    images: dict[Picture, Image.Image]
    one_image: bool = False
    shares: bool = False


class TransformersJudge(Judge):
    """A judge in transformers. Questions about one image share its forward pass; other replies run in
    batches.

    With a GPU, a thread prepares the next images while the model works.
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
                # transformers uses torchvision for a class without a Pillow variant
                optional=("torchvision",),
            ),
        }

    def holdup(self) -> str:
        return "" if "_local" in vars(self) else "loading judge"

    def ask(self, questions: Sequence[Question], workers: int = 1) -> Iterator[Answer]:
        """Yields the answers. Answers about one image come together, generated replies last."""
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
                    prepare = functools.partial(self._local.prompts, job.questions, job.images)
                    # a model on the CPU uses all cores, so a preparing thread would slow it down
                    ready.append((job, thread.submit(prepare).result if self._beside_gpu else prepare))
                if not ready:
                    return
                job, prepared = ready.popleft()
                started = time.monotonic()
                answers = self._answers(job, prepared)
                if not answers:
                    half = len(job.questions) // 2
                    for part in (job.questions[:half], job.questions[half:]):
                        several = len(part) > 1
                        again.append(
                            _Job(part, job.images, job.one_image and several, job.shares and several)
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
        """Yields the jobs: one for all questions about the same image, and batches of the other questions."""
        about: dict[Hashable, list[Question]] = {}
        for n, question in enumerate(questions):
            about.setdefault(_beginning(question) if question.pictures else n, []).append(question)
        shared = [group for group in about.values() if len(group) > 1]
        apart = [group[0] for group in about.values() if len(group) == 1]
        if shared:
            shares = self._shares()  # before a thread starts: the trial uses the processor too
            yield from (_Job(group, {}, True, shares) for group in shared)
        # the size is read for each batch because it may shrink meanwhile
        for numbers in self._local.batches(apart, lambda q: 1 if q.of_first_token else self._batch_size):
            yield _Job([apart[n] for n in numbers], {})

    def _shares(self) -> bool:
        import torch

        try:
            return self._local.shares
        except torch.OutOfMemoryError as error:
            raise self._too_large() from error

    def _answers(self, job: _Job, prepared: Callable[[], list[Inputs]]) -> list[Answer]:
        """Returns the answer to each question of ``job``, or an empty list if the caller must retry its
        halves."""
        import torch

        questions = job.questions
        try:
            answers = self._local.answers(questions, prepared(), self._batch_size, job.shares)
        except torch.AcceleratorError as error:
            device_lost.set()
            raise JudgeUnusable(f"judge: the GPU failed ({one_line(error, 200)}); run it again") from error
        except UnfitPicture as error:
            if job.one_image:  # all questions share the picture
                return [Answer(question, None, one_line(error)) for question in questions]
            reason, exhausted = one_line(error), False
        except Exception as error:  # an error of the model fails these questions only
            reason, exhausted = one_line(error), isinstance(error, torch.OutOfMemoryError)
        else:
            self._answered = True
            return answers
        if exhausted:
            torch.cuda.empty_cache()  # only now: before, the traceback referenced the tensors
        if len(questions) > 1:
            size = min(len(questions), self._batch_size) // 2
            if exhausted and size:
                self._batch_size = size
                say(f"judge: out of GPU memory; from now on {size} questions go through the model at once")
            return []
        if exhausted and not self._answered:
            raise self._too_large()
        if exhausted:
            self._batch_size = self._settings.batch_size  # the image is too large, not the batch
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
        key = repr((self._source, self._settings))
        if key not in kept_models:
            kept_models.clear()  # frees the old model before the next one loads
            kept_models[key] = load_model(self._source, self._settings)
        return cast("LocalModel", kept_models[key])


def _beginning(question: Question) -> Hashable:
    """Returns a key of the prompt up to its last picture, with the variables of the chat template."""
    parts = [(n, m.role, part) for n, m in enumerate(question.messages) for part in m.parts]
    end = max(n for n, (*_, part) in enumerate(parts, start=1) if isinstance(part, Picture))
    return tuple(parts[:end]), json.dumps(question.sampling.extra.get("chat_template_kwargs"), sort_keys=True)


def load_model(source: WeightsSource, settings: TransformersSettings) -> LocalModel:
    """Loads the weights and the processor. Raises CellFailure with one line if that fails."""
    say(f"judge: loading {source.model_path}")
    path, commit = source.model_path, source.commit
    with loading(source, WEIGHTS_USER):
        import torch
        import transformers
        from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
        from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

        quieten_transformers()
        config = transformers.AutoConfig.from_pretrained(path, revision=commit)
        if type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING or type(config) not in PROCESSOR_MAPPING:
            raise CellFailure(
                f"judge: {path} ({config.model_type}) is no image-text-to-text model of transformers "
                f"{transformers.__version__}; choose another judge"
            )
        processor = load_processor(PROCESSOR_MAPPING[type(config)], path, commit, settings)
        model = load_pretrained(
            source,
            "AutoModelForImageTextToText",
            settings.dtype,
            device=None,
            user=WEIGHTS_USER,
            device_map=settings.device_map or ("auto" if torch.accelerator.is_available() else "cpu"),
            attn_implementation=settings.attn_implementation,
        )
    # without hf_device_map a single device holds the whole model
    outside = {str(place) for place in getattr(model, "hf_device_map", {}).values()} & {"cpu", "disk"}
    if outside and model.device.type != "cpu":
        say(
            f"judge: parts of {path} do not fit into GPU memory and are on {', '.join(sorted(outside))}: slow"
        )
    return LocalModel(model, processor, getattr(config.get_text_config(), "max_position_embeddings", None))


def load_processor(
    processor_class: Any, model_path: str, revision: str | None, settings: TransformersSettings
) -> Any:
    """Returns the checkpoint's processor with padding on the left.

    Raises CellFailure if the checkpoint has no chat template, or if its image processor lacks a chosen
    setting.
    """
    from transformers import AutoImageProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    class ImagesOnly(processor_class):
        """The processor without its video part: no judge sees a video, and loading that part needs
        torchvision."""

        @classmethod
        def get_attributes(cls) -> list[str]:
            return [name for name in super().get_attributes() if name != "video_processor"]

    ImagesOnly.__name__ = processor_class.__name__
    processor: Any = ImagesOnly.from_pretrained(model_path, revision=revision)
    images = AutoImageProcessor.from_pretrained(model_path, revision=revision, backend="pil")
    if not getattr(processor, "chat_template", None):
        raise CellFailure(
            f"judge: {model_path} has no chat template, so it is no chat model; choose an instruction-tuned one"
        )
    known = getattr(getattr(images, "valid_kwargs", None), "__annotations__", {})
    # in the Qwen family the limits of the image area have the names of edges
    for name, edge in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge")):
        pixels = getattr(settings, name)
        if pixels is None:
            continue
        if name not in known or edge not in dict(images.size):
            raise CellFailure(f"judge: the image processor of {model_path} takes no {name}; leave it out")
        images.size = {**dict(images.size), edge: pixels}
    if isinstance(images, Qwen2VLImageProcessorPil):
        images.resize = _resized
    images.preprocess = _once(images.preprocess)
    processor.tokenizer.padding_side = "left"
    processor.image_processor = images
    return processor


def _once(preprocess: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``preprocess`` of an image processor: a repeated call with the same images returns the last
    result."""
    from transformers.image_utils import make_flat_list_of_images

    images, given = list[Any](), ""
    prepared: Any = None

    def preprocess_once(pictures: Any, *args: Any, **options: Any) -> Any:
        nonlocal images, given, prepared
        flat, now = make_flat_list_of_images(pictures), repr(options)
        if (list(map(id, flat)), now) != (list(map(id, images)), given):
            try:
                prepared = preprocess(pictures, *args, **options)
            except Exception as error:  # limits of the processor, such as an extreme aspect ratio
                raise UnfitPicture(f"cannot be prepared: {one_line(error)}") from error
            images, given = flat, now
        return type(prepared)(dict(prepared))  # a copy, because a processor may remove entries

    return preprocess_once


def _resized(image: Any, size: Any, resample: Any, factor: int) -> Any:
    """Resizes a Qwen ``image`` (channels first) to its target size, like torchvision's bicubic. Returns an
    array."""
    import torch
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    new = smart_resize(*image.shape[1:], factor, size.shortest_edge, size.longest_edge)
    pixels = torch.tensor(image)[None]
    return torch.nn.functional.interpolate(pixels, new, mode="bicubic", antialias=True)[0].numpy()
