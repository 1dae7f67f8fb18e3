"""The user's settings of benchmarks (``--ds_kwargs``), as every stage of a run reads them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

VARIABLE = "IMAGEEVALKIT_DS_KWARGS"
"""Holds ``{benchmark: {name: value}}`` as JSON in the environment of every job: dataset classes take no arguments."""


def environ_of(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """What a job's environment needs so that :func:`settings_of` finds ``settings`` there."""
    given = {benchmark: dict(kwargs) for benchmark, kwargs in settings.items() if kwargs}
    return {VARIABLE: json.dumps(given, sort_keys=True)} if given else {}


def settings_of(benchmark: str) -> dict[str, Any]:
    """The settings that the user gave for ``benchmark``; none where a script is run by hand."""
    given: dict[str, dict[str, Any]] = json.loads(os.environ.get(VARIABLE) or "{}")
    return given.get(benchmark, {})
