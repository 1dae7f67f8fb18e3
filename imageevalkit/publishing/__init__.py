"""Results for others to load (``--publish DIR``), and for experiment trackers (``--export``), from result files alone.

Nothing is uploaded. What is published says nothing of this machine: see :func:`public`. Runs in the driver's
environment.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

from imageevalkit.cell import REPO, log_root, output_root
from imageevalkit.cell.results import Result
from imageevalkit.secrets import redact

_ABSOLUTE = re.compile(r"/|~|file:|[A-Za-z]:[\\/]")
_IN_PATH = r"""[^\s"'`,;:()<>|\[\]{}\\/]"""
# Below the first folder a name may have spaces; of "/imagine a cat and/or a dog" the first one would.
_FOLDER = rf"(?:{_IN_PATH}+(?: {_IN_PATH}+){{0,3}}/)"
# A URL, which stays; or a path of two names or more, as /imagine, and/or, and 1/2 are none. In JSON a line's end is \n.
_PLACE = re.compile(
    rf"""\b(?!file:)[A-Za-z][\w+.-]+://[^\s"'<>\\]*"""
    rf"""|(?:(?<![\w/.~\\)\]}}%>*…+-])|(?<=\\[nrt]))(?:file://[\w.-]*)?~?/{_IN_PATH}+/{_FOLDER}*(?P<name>{_IN_PATH}*)"""
)


def public(text: str) -> str:
    """``text``, which may be JSON, without secrets of the environment, and without the folders of this machine and its
    user: of the path of what lies elsewhere the name is left. URLs stay."""
    text = redact(text)
    ours = {
        output_root().absolute(): "output",
        log_root().absolute(): "log",
        REPO: ".",
        Path(tempfile.gettempdir()): "tmp",
    }
    homes = {Path(path).expanduser(): "~" for path in ("~", os.environ.get("HF_HOME") or "~")}
    # the longest first: one may lie in another
    for folder, name in sorted((homes | ours).items(), key=lambda one: -len(str(one[0]))):
        if len(folder.parts) > 1:
            text = re.sub(rf"(?:file://)?{re.escape(str(folder))}(?![\w.-])", name, text)
    return _PLACE.sub(_name_of, text)


def _name_of(found: re.Match[str]) -> str:
    if found["name"] is None:  # a URL
        return found[0]
    return found["name"] or found[0].rstrip("/").rpartition("/")[2]


def without_folders(value: Any) -> Any:
    """A JSON value of settings: of a text that is an absolute path only its name is left."""
    if isinstance(value, str):
        return PureWindowsPath(value).name if "\n" not in value and _ABSOLUTE.match(value) else value
    if isinstance(value, Mapping):
        return {name: without_folders(one) for name, one in value.items()}
    return [without_folders(one) for one in value] if isinstance(value, list | tuple) else value


def caveats(result: Result) -> list[str]:
    """Why its scores are not those of the benchmark: in what they differ from a whole, official measurement."""
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
