"""Write results for other people (``--publish DIR``) and for experiment trackers (``--export``).

``--publish`` uploads nothing. Published texts contain no secrets and no folders of this machine: see
:func:`public`. The code runs in the driver's environment.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

from imageevalkit.common.redaction import redact
from imageevalkit.store.cell import REPO, log_root, output_root
from imageevalkit.store.results import Result

_ABSOLUTE = re.compile(r"/|~|file:|[A-Za-z]:[\\/]")
_IN_PATH = r"""[^\s"'`,;:()<>|\[\]{}\\/]"""
# Only folders below the first one may have spaces: else "/imagine a cat and/or a dog" would be a path.
_FOLDER = rf"(?:{_IN_PATH}+(?: {_IN_PATH}+){{0,3}}/)"
# Matches URLs (they stay) and paths with at least two names: /imagine, and/or and 1/2 are no paths.
# A path may follow the escape \n, which ends a line in JSON.
_PLACE = re.compile(
    rf"""\b(?!file:)[A-Za-z][\w+.-]+://[^\s"'<>\\]*"""
    rf"""|(?:(?<![\w/.~\\)\]}}%>*…+-])|(?<=\\[nrt]))(?:file://[\w.-]*)?~?/{_IN_PATH}+/{_FOLDER}*(?P<name>{_IN_PATH}*)"""
)


def public(text: str) -> str:
    """Return ``text`` (possibly JSON) without secrets and without folders of this machine.

    A path outside the known folders is reduced to its last name. URLs stay."""
    text = redact(text)
    ours = {
        output_root().absolute(): "output",
        log_root().absolute(): "log",
        REPO: ".",
        Path(tempfile.gettempdir()): "tmp",
    }
    homes = {Path(path).expanduser(): "~" for path in ("~", os.environ.get("HF_HOME") or "~")}
    # the longest path first, because a folder may lie in another
    for folder, name in sorted((homes | ours).items(), key=lambda one: -len(str(one[0]))):
        if len(folder.parts) > 1:
            text = re.sub(rf"(?:file://)?{re.escape(str(folder))}(?![\w.-])", name, text)
    return _PLACE.sub(_name_of, text)


def _name_of(found: re.Match[str]) -> str:
    if found["name"] is None:  # a URL
        return found[0]
    return found["name"] or found[0].rstrip("/").rpartition("/")[2]


def without_folders(value: Any) -> Any:
    """Return a JSON value of settings in which each absolute path is replaced by its last name."""
    if isinstance(value, str):
        return PureWindowsPath(value).name if "\n" not in value and _ABSOLUTE.match(value) else value
    if isinstance(value, Mapping):
        return {name: without_folders(one) for name, one in value.items()}
    return [without_folders(one) for one in value] if isinstance(value, list | tuple) else value


def caveats(result: Result) -> list[str]:
    """Return how a result differs from a full, official measurement; an empty list if it is one."""
    coverage = result.coverage
    return [
        *[f"withheld: {result.withheld}"] * (not result.headline),
        *[f"only {coverage.judged} of {coverage.expected} items"] * (not coverage.complete),
        *[f"only the first {result.limit} items"] * bool(result.limit),
        *[result.drift] * bool(result.drift),
        *[f"measured by {result.evaluator.id}, which is not the official evaluator"]
        * (not result.evaluator.official),
        *["of rewritten prompts"] * (result.score_name("").partition("/")[0] != result.benchmark),
    ]
