"""What adapters of authors' code share while they load: one clear line for whatever goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from imageevalkit.generation.model import GenerationError, ModelUnusable
from imageevalkit.machine import is_of_the_accelerator
from imageevalkit.weights import first_line, why_not_loaded


@contextmanager
def loading(model_path: str, environment: str) -> Iterator[None]:
    """Name the cause when the authors' modules or the weights do not load.

    Args:
        model_path: the weights being loaded.
        environment: name of the list in requirements/model/ that has what the authors' code imports.

    Raises:
        ModelUnusable: an import failed (package missing, or of a version without that name), or the weights.
    """
    try:
        yield
    except GenerationError:
        raise
    except ImportError as error:
        raise ModelUnusable(
            f"the authors' code does not import in this environment ({first_line(error)}); "
            f"name one in INFER_ENV_MAP that has requirements/model/{environment}.txt"
        ) from error
    except Exception as error:
        if is_of_the_accelerator(error):
            raise  # the worker process decides what to do
        raise ModelUnusable(why_not_loaded(model_path, error)) from error
