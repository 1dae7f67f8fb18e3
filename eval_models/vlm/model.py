"""An image-text-to-text model of transformers, loaded, with the processor of its checkpoint.

The processor is without video, and prepares each image once for all questions about it. transformers prepares images
with torchvision where that is installed, else with Pillow, whose pixels differ: two judges of one name. So here it is
always the class for Pillow, where there is one. Only the images of the Qwen family are resized as torchvision does it,
which the official scripts use: on the CPU that is an operator of torch. What is left, a shift and a scale, gives either
way the same numbers in half precision.
"""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple

from PIL import Image

from imageevalkit.errors import CellFailure, say
from imageevalkit.judges.answerer import WEIGHTS_USER
from imageevalkit.judges.settings import TransformersSettings
from imageevalkit.weights import WeightsSource, missing_package, why_not_loaded

PREPARED_BY = "transformers' Pillow variants; Qwen: resized as by torchvision"
"""What stands in the name of scores for the pixels of this module."""
_OUT_OF_MEMORY = (
    "does not fit into GPU memory; give the job more GPUs (EVAL_GPU_MAP), "
    "set dtype=bfloat16, or choose a smaller judge"
)


class LocalModel(NamedTuple):
    """``model`` in evaluation mode and its ``processor``; ``positions``: the longest context, None if unknown."""

    model: Any
    processor: Any
    positions: int | None


def load_model(source: WeightsSource, settings: TransformersSettings) -> LocalModel:
    """Load the weights and the processor. Raises CellFailure: one line why that is not possible here."""
    try:
        import torch
        import transformers
        from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
        from transformers.models.auto.processing_auto import PROCESSOR_MAPPING
    except ImportError as error:
        raise missing_package(WEIGHTS_USER, error) from error

    # its bars and its advice to programmers would garble the log of the job
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    path, commit = source.model_path, source.commit
    try:
        config = transformers.AutoConfig.from_pretrained(path, revision=commit)
        if type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING or type(config) not in PROCESSOR_MAPPING:
            raise CellFailure(
                f"judge: {path} ({config.model_type}) is no image-text-to-text model of transformers "
                f"{transformers.__version__}; choose another judge"
            )
        processor = load_processor(PROCESSOR_MAPPING[type(config)], path, commit, settings)
        model = _weights(path, commit, settings)
    except CellFailure:
        raise
    except torch.OutOfMemoryError as error:
        raise CellFailure(f"judge: {path} {_OUT_OF_MEMORY}") from error
    except ImportError as error:
        raise missing_package(WEIGHTS_USER, error) from error
    except Exception as error:  # the hub, a damaged file, a device that torch does not have
        raise CellFailure(f"judge: {why_not_loaded(path, error)}") from error
    text = config.get_text_config()
    return LocalModel(model, processor, getattr(text, "max_position_embeddings", None))


def _weights(path: str, commit: str | None, settings: TransformersSettings) -> Any:
    import torch
    from transformers import AutoModelForImageTextToText

    device_map = settings.device_map
    if not device_map and torch.cuda.is_available():
        device_map = "auto" if importlib.util.find_spec("accelerate") else "cuda"
    elif not device_map:
        device_map = "mps" if torch.backends.mps.is_available() else "cpu"
    spread = device_map in ("auto", "balanced", "balanced_low_0", "sequential")
    model, loading = AutoModelForImageTextToText.from_pretrained(
        path,
        output_loading_info=True,
        revision=commit,
        dtype=settings.dtype,
        device_map=device_map if spread else None,
        attn_implementation=settings.attn_implementation,
    )
    # transformers only warns, and a judge with random weights answers all the same
    missing = sorted(loading["missing_keys"])
    if missing:
        raise CellFailure(
            f"judge: {path} lacks {len(missing)} of its weights (first: {missing[0]}); download it anew"
        )
    if not spread:
        model = model.to(device_map)
    # there is no map where one device holds all
    outside = {str(place) for place in getattr(model, "hf_device_map", {}).values()} & {"cpu", "disk"}
    if spread and outside:
        say(
            f"judge: parts of {path} do not fit into GPU memory and are on {', '.join(sorted(outside))}: slow"
        )
    return model.eval()


def load_processor(
    processor_class: Any, model_path: str, revision: str | None, settings: TransformersSettings
) -> Any:
    """The processor of the checkpoint, its tokenizer padding on the left.

    Raises:
        CellFailure: it has no chat template, or no such pixel limits; and what transformers raises.
    """
    from transformers import AutoImageProcessor

    class ImagesOnly(processor_class):
        """Without its video processor: no judge sees a video, and loading one needs torchvision."""

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
    # the area of images; in the Qwen family it goes by the names of edges
    edges = dict(images.size) if settings.min_pixels or settings.max_pixels else {}
    known = getattr(getattr(images, "valid_kwargs", None), "__annotations__", {})
    for name, edge in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge")):
        pixels = getattr(settings, name)
        if pixels is None:
            continue
        if name not in known or edge not in edges:
            raise CellFailure(f"judge: the image processor of {model_path} takes no {name}; leave it out")
        edges[edge] = pixels
    if edges:
        images.size = edges
    processor.tokenizer.padding_side = "left"
    processor.image_processor = ImagesOnce(images)
    return processor


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
        from transformers.image_utils import make_flat_list_of_images
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        flat = make_flat_list_of_images(images)
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
