"""transformers' processor of a checkpoint, without video, and preparing each image once for all questions about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from eval_models.judge.local.settings import TransformersSettings
from imageevalkit.errors import CellFailure


def load_processor(
    processor_class: Any, model_path: str, revision: str | None, settings: TransformersSettings
) -> Any:
    """The processor of the checkpoint, its tokenizer padding on the left.

    Raises:
        CellFailure: it has no chat template, or no such pixel limits; and what transformers raises.
    """
    processor = _without_video(processor_class).from_pretrained(model_path, revision=revision)
    if not getattr(processor, "chat_template", None):
        raise CellFailure(
            f"judge: {model_path} has no chat template, so it is no chat model; choose an instruction-tuned one"
        )
    _limit_pixels(processor.image_processor, model_path, settings)
    processor.tokenizer.padding_side = "left"
    processor.image_processor = ImagesOnce(processor.image_processor)
    return processor


def _limit_pixels(image_processor: Any, model_path: str, settings: TransformersSettings) -> None:
    """Set the area of images; in the Qwen family it goes by the names of edges."""
    limits = {"min_pixels": settings.min_pixels, "max_pixels": settings.max_pixels}
    if not any(limits.values()):
        return
    edges = dict(image_processor.size)
    taken = getattr(getattr(image_processor, "valid_kwargs", None), "__annotations__", {})
    for (name, pixels), edge in zip(limits.items(), ("shortest_edge", "longest_edge"), strict=True):
        if pixels is None:
            continue
        if name not in taken or edge not in edges:
            raise CellFailure(f"judge: the image processor of {model_path} takes no {name}; leave it out")
        edges[edge] = pixels
    image_processor.size = edges


def _without_video(processor_class: Any) -> Any:
    """The same class without its video processor: no judge sees a video, and loading one needs torchvision."""

    class ImagesOnly(processor_class):
        @classmethod
        def get_attributes(cls) -> list[str]:
            return [name for name in super().get_attributes() if name != "video_processor"]

    ImagesOnly.__name__ = processor_class.__name__
    return ImagesOnly


class ImagesOnce:
    """Stands in for an image processor: the same images again, as in the next question, cost nothing."""

    def __init__(self, image_processor: Any) -> None:
        self._image_processor = image_processor
        self._images: list[Any] = []
        self._options = ""
        self._prepared: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._image_processor, name)

    def __call__(self, images: Any, **options: Any) -> Any:
        """What the image processor makes of ``images``, which may be nested lists."""
        flat = list(_flat(images))
        same = len(flat) == len(self._images) and all(a is b for a, b in zip(flat, self._images, strict=True))
        if not same or repr(options) != self._options:
            self._prepared = self._image_processor(images, **options)
            self._images, self._options = flat, repr(options)
        # a processor may take things out of it
        return type(self._prepared)(dict(self._prepared))


def _flat(images: Any) -> Iterator[Any]:
    if isinstance(images, list | tuple):
        for image in images:
            yield from _flat(image)
    else:
        yield images
