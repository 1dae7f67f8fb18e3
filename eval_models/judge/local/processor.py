"""transformers' processor of a checkpoint, without video, and preparing each image once for all questions about it.

transformers prepares images with torchvision where that is installed, else with Pillow, whose pixels differ: two judges
of one name. So here it is always the class for Pillow, where there is one. Only the images of the Qwen family are
resized as torchvision does it, which the official scripts use: on the CPU that is an operator of torch. What is left, a
shift and a scale, gives either way the same numbers in half precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from PIL import Image

from eval_models.judge.local.settings import TransformersSettings
from imageevalkit.errors import CellFailure

PREPARED_BY = "transformers' Pillow variants; Qwen: resized as by torchvision"
"""What stands in the name of scores for the pixels of this module."""


def load_processor(
    processor_class: Any, model_path: str, revision: str | None, settings: TransformersSettings
) -> Any:
    """The processor of the checkpoint, its tokenizer padding on the left.

    Raises:
        CellFailure: it has no chat template, or no such pixel limits; and what transformers raises.
    """
    from transformers import AutoImageProcessor

    processor = _without_video(processor_class).from_pretrained(model_path, revision=revision)
    processor.image_processor = AutoImageProcessor.from_pretrained(
        model_path, revision=revision, backend="pil"
    )
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
    """Stands in for an image processor: the same images again, as in the next question, cost nothing.

    The Qwen family's gets them in the size that it wants, and leaves them so.
    """

    def __init__(self, image_processor: Any) -> None:
        self._image_processor = image_processor
        self._images: list[Any] = []
        self._options = ""
        self._prepared: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._image_processor, name)

    def __call__(self, images: Any, **options: Any) -> Any:
        """What the image processor makes of ``images``, Pillow's, which may be in nested lists."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        flat = list(_flat(images))
        same = len(flat) == len(self._images) and all(a is b for a, b in zip(flat, self._images, strict=True))
        if not same or repr(options) != self._options:
            if isinstance(self._image_processor, Qwen2VLImageProcessorPil):
                images = [_resized(image, self._image_processor) for image in flat]
            self._prepared = self._image_processor(images, **options)
            self._images, self._options = flat, repr(options)
        # a processor may take things out of it
        return type(self._prepared)(dict(self._prepared))


def _resized(image: Image.Image, image_processor: Any) -> Image.Image:
    """``image`` (RGB) in the size that a Qwen ``image_processor`` wants, with the pixels of torchvision's bicubic."""
    import torch
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    edges = dict(image_processor.size)
    height, width = smart_resize(
        image.height,
        image.width,
        factor=image_processor.patch_size * image_processor.merge_size,
        min_pixels=edges["shortest_edge"],
        max_pixels=edges["longest_edge"],
    )
    if (width, height) == image.size:
        return image
    rows = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(image.height, image.width, 3)
    resized = torch.nn.functional.interpolate(
        rows.permute(2, 0, 1)[None], (height, width), mode="bicubic", antialias=True
    )
    return Image.frombytes("RGB", (width, height), resized[0].permute(1, 2, 0).numpy().tobytes())


def _flat(images: Any) -> Iterator[Any]:
    if isinstance(images, list | tuple):
        for image in images:
            yield from _flat(image)
    else:
        yield images
