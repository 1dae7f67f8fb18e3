"""Entries of the reference models, the floor and the ceiling of benchmarks. They run on any machine."""

from __future__ import annotations

from typing import Any

from custom_models.model_settings import Settings


def _entries(ending: str, *others: str) -> dict[str, dict[str, Any]]:
    """Returns the entries by model name: the class ``ReferenceTypeset<ending>`` is reference-typeset.
    ``others`` have a class without the ending."""
    names = ("Typeset", "Blank", "Noise")
    classes = {name: f"Reference{name}{ending}" for name in names} | {
        name: f"Reference{name}" for name in others
    }
    common = {"model_path": "", "module": ".model_utils.reference", "gpus": 0, "api": False}
    return {f"reference-{name.lower()}": {**common, "class": cls} for name, cls in classes.items()}


SETTINGS: Settings = {
    "t2i": _entries(""),
    "edit": _entries("Edit", "Identity"),
    "subject": _entries("Subject"),
}
