"""An image-text-to-text model of transformers, loaded, with the processor of its checkpoint.

The processor is without video, and prepares each image once for all questions about it. transformers prepares images
with torchvision where that is installed, else with Pillow, whose pixels differ: two judges of one name. So here it is
always the class for Pillow, where there is one. Only the images of the Qwen family are resized as torchvision does it,
which the official scripts use: on the CPU that is an operator of torch. What is left, a shift and a scale, gives either
way the same numbers in half precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eval_models.vlm.inference import LocalModel, UnfitPicture
from imageevalkit.errors import CellFailure, say
from imageevalkit.judges.answerer import WEIGHTS_USER
from imageevalkit.judges.settings import TransformersSettings
from imageevalkit.secrets import one_line
from imageevalkit.weights import WeightsSource, missing_package, why_not_loaded

PREPARED_BY = "transformers' Pillow variants; Qwen: resized as by torchvision"
"""What stands in the name of scores for the pixels of this module."""


def load_model(source: WeightsSource, settings: TransformersSettings) -> LocalModel:
    """Load the weights and the processor. Raises CellFailure: one line why that is not possible here."""
    path, commit = source.model_path, source.commit
    try:
        import torch
        import transformers
        from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
        from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

        # its bars and its advice to programmers would garble the log of the job
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
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
    except ImportError as error:
        raise missing_package(WEIGHTS_USER, error) from error
    except torch.OutOfMemoryError as error:
        raise CellFailure(
            f"judge: {path} does not fit into GPU memory; give the job more GPUs (EVAL_GPU_MAP), "
            "set dtype=bfloat16, or choose a smaller judge"
        ) from error
    except Exception as error:  # the hub, a damaged file, a device that torch does not have
        raise CellFailure(f"judge: {why_not_loaded(path, error)}") from error
    return LocalModel(model, processor, getattr(config.get_text_config(), "max_position_embeddings", None))


def _weights(path: str, commit: str | None, settings: TransformersSettings) -> Any:
    import torch
    from transformers import AutoModelForImageTextToText

    model, loading = AutoModelForImageTextToText.from_pretrained(
        path,
        output_loading_info=True,
        revision=commit,
        dtype=settings.dtype,
        device_map=settings.device_map or ("auto" if torch.accelerator.is_available() else "cpu"),
        attn_implementation=settings.attn_implementation,
    )
    # transformers only warns, and a judge with random weights answers all the same
    missing = sorted(loading["missing_keys"])
    if missing:
        raise CellFailure(
            f"judge: {path} lacks {len(missing)} of its weights (first: {missing[0]}); download it anew"
        )
    # there is no map where one device holds all
    outside = {str(place) for place in getattr(model, "hf_device_map", {}).values()} & {"cpu", "disk"}
    if outside and model.device.type != "cpu":
        say(
            f"judge: parts of {path} do not fit into GPU memory and are on {', '.join(sorted(outside))}: slow"
        )
    return model.eval()


def load_processor(
    processor_class: Any, model_path: str, revision: str | None, settings: TransformersSettings
) -> Any:
    """The processor of the checkpoint, padding on the left. Raises CellFailure: it lacks what the judge needs of it."""
    from transformers import AutoImageProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

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
    known = getattr(getattr(images, "valid_kwargs", None), "__annotations__", {})
    # the area of images, which in the Qwen family goes by the names of edges
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
    """``preprocess`` of an image processor, to which the same images again, as in the next question, cost nothing."""
    from transformers.image_utils import make_flat_list_of_images

    images, given = list[Any](), ""
    prepared: Any = None

    def preprocess_once(pictures: Any, *args: Any, **options: Any) -> Any:
        nonlocal images, given, prepared
        flat, now = make_flat_list_of_images(pictures), repr(options)
        if (list(map(id, flat)), now) != (list(map(id, images)), given):
            try:
                prepared = preprocess(pictures, *args, **options)
            except Exception as error:  # limits of its own, such as an extreme aspect ratio
                raise UnfitPicture(f"cannot be prepared: {one_line(error)}") from error
            images, given = flat, now
        return type(prepared)(dict(prepared))  # a processor may take things out of it

    return preprocess_once


def _resized(image: Any, size: Any, resample: Any, factor: int) -> Any:
    """The array of a Qwen ``image``, colours first, in the size that it wants, as torchvision's bicubic does it."""
    import torch
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    new = smart_resize(*image.shape[1:], factor, size.shortest_edge, size.longest_edge)
    pixels = torch.tensor(image)[None]
    return torch.nn.functional.interpolate(pixels, new, mode="bicubic", antialias=True)[0].numpy()
