"""An image-text-to-text model of transformers, loaded."""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple

from eval_models.judge.local.processor import load_processor
from eval_models.judge.local.settings import TransformersSettings
from eval_models.judge.local.weights import missing_package
from eval_models.weights_source import WeightsSource
from imageevalkit.errors import CellFailure, say
from imageevalkit.load_errors import why_not_loaded

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
    """Load the weights and the processor.

    Raises:
        CellFailure: one line why that is not possible here.
    """
    try:
        import torch
        import transformers
        from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
        from transformers.models.auto.processing_auto import PROCESSOR_MAPPING
    except ImportError as error:
        raise missing_package(error) from error

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
        raise missing_package(error) from error
    except Exception as error:  # the hub, a damaged file, a device that torch does not have
        raise CellFailure(f"judge: {why_not_loaded(path, error)}") from error
    text = config.get_text_config()
    return LocalModel(model, processor, getattr(text, "max_position_embeddings", None))


def _weights(path: str, commit: str | None, settings: TransformersSettings) -> Any:
    from transformers import AutoModelForImageTextToText

    device_map = settings.device_map or _best_device_map()
    spread = device_map in ("auto", "balanced", "balanced_low_0", "sequential")
    options: dict[str, Any] = {"revision": commit, "dtype": settings.dtype}
    if spread:
        options["device_map"] = device_map
    if settings.attn_implementation is not None:
        options["attn_implementation"] = settings.attn_implementation
    model, loading = AutoModelForImageTextToText.from_pretrained(path, output_loading_info=True, **options)
    # transformers only warns, and a judge with random weights answers all the same
    missing = sorted(loading["missing_keys"])
    if missing:
        raise CellFailure(
            f"judge: {path} lacks {len(missing)} of its weights (first: {missing[0]}); download it anew"
        )
    if not spread:
        model = model.to(device_map)
    else:
        # there is no map where one device holds all
        outside = {str(place) for place in getattr(model, "hf_device_map", {}).values()} & {"cpu", "disk"}
        if outside:
            say(
                f"judge: parts of {path} do not fit into GPU memory and are on {', '.join(sorted(outside))}: slow"
            )
    return model.eval()


def _best_device_map() -> str:
    import torch

    if torch.cuda.is_available():
        return "auto" if importlib.util.find_spec("accelerate") else "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
