"""A hub id without a pinned commit stays at the one that was downloaded first."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from custom_models.load_model import load_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Generates:
    def generate(self, prompt: str, seed: int = 42) -> None:
        raise NotImplementedError


class Pinned(Generates):
    def __init__(self, model_path: str, revision: str | None = None, **settings: Any) -> None:
        self.revision = revision


class Plain(Generates):
    """Written to the guide: it knows no revision."""

    revision = None

    def __init__(self, model_path: str) -> None:
        pass


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refs = tmp_path / "models--org--model/refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text(COMMIT)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    module = ModuleType("custom_models.model_utils.of_this_test")
    vars(module).update(Pinned=Pinned, Plain=Plain)
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.parametrize(
    ("class_name", "path", "kwargs", "revision"),
    [
        ("Pinned", "org/model", {}, COMMIT),
        ("Pinned", "org/other", {}, None),
        ("Plain", "org/model", {}, None),
    ],
)
def test_revision(class_name: str, path: str, kwargs: dict[str, Any], revision: str | None) -> None:
    setting = {"module": ".model_utils.of_this_test", "class": class_name, "model_path": path}
    assert load_model({**setting, "model_kwargs": kwargs}).revision == revision
