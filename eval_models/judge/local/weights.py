"""Which weights a local judge has, and the packages that run it."""

from __future__ import annotations

from eval_models import weights_source
from eval_models.weights_source import WeightsSource, WeightsUser
from imageevalkit.errors import CellFailure

_JUDGE = WeightsUser("judge", "it needs an environment made by bash utils/make_env.sh --judge transformers")
_NEEDED = ("torch", "transformers", "tokenizers", "pillow")
# transformers prepares images with it where a class has no variant for Pillow
_OPTIONAL = ("torchvision",)


def find_weights(model_path: str, revision: str | None) -> WeightsSource:
    """See :func:`eval_models.weights_source.find_weights`."""
    return weights_source.find_weights(_JUDGE, model_path, revision)


def package_versions() -> dict[str, str]:
    """See :func:`eval_models.weights_source.package_versions`."""
    return weights_source.package_versions(_JUDGE, _NEEDED, _OPTIONAL)


def missing_package(error: ImportError) -> CellFailure:
    """See :func:`eval_models.weights_source.missing_package`."""
    return weights_source.missing_package(_JUDGE, error)
