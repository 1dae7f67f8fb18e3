"""Finds the pinned prompts: in a mirror's list of texts, or in the official program, which is read, never run."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from imageevalkit.asset_manifest import PromptsAsset
from imageevalkit.assets import text_sha256
from imageevalkit.errors import CellFailure

MIRROR_LISTS = "judge_prompts*.json"


def texts_in_program(program: bytes) -> Iterator[str]:
    """Every string constant of a Python ``program``, and every f-string as the template it stands for.

    A template is one for ``str.format``, its fields named by the last name in them: ``{data['Prompt']}``,
    ``{data.Prompt}`` and ``{Prompt}`` are all ``{Prompt}``.

    Raises:
        CellFailure: it is no Python.
    """
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError) as error:
        raise CellFailure(f"it is no Python program ({error})") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(map(_template_part, node.values))


def _template_part(part: ast.expr) -> str:
    if isinstance(part, ast.FormattedValue):
        return f"{{{_field_name(part.value)}}}"
    literal = str(part.value) if isinstance(part, ast.Constant) else ""
    return literal.replace("{", "{{").replace("}", "}}")


def _field_name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Subscript) and isinstance(expression.slice, ast.Constant):
        return str(expression.slice.value)
    return expression.attr if isinstance(expression, ast.Attribute) else ast.unparse(expression)


def texts_in_mirror(folder: Path) -> dict[str, str]:
    """The texts by key in the lists of ``folder``: ``{key: {"text": …, "sha256": …}}``; none without lists.

    Raises:
        CellFailure: a list is no such object.
    """
    texts: dict[str, str] = {}
    for path in sorted(folder.glob(MIRROR_LISTS)):
        try:
            texts |= {key: str(entry["text"]) for key, entry in json.loads(path.read_bytes()).items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CellFailure(f"{path} is no list of texts") from None
    return texts


def pinned_texts(
    asset: PromptsAsset, listed: Mapping[str, str], program: Callable[[str], bytes]
) -> dict[str, str]:
    """The texts of ``asset`` by key: those ``listed``, the others out of ``program(path in the repository)``.

    What a text is, its pinned hash alone decides.

    Raises:
        CellFailure: a text is not there, or is another; the message names it.
    """
    in_file: dict[str, dict[str, str]] = {}
    found = {}
    for key, sha256 in asset.texts.items():
        file = key.partition("::")[0]
        if key in listed:
            candidates = {text_sha256(listed[key]): listed[key]}
        else:
            if file not in in_file:
                in_file[file] = {text_sha256(text): text for text in texts_in_program(program(file))}
            candidates = in_file[file]
        if sha256 not in candidates:
            raise CellFailure(f"{asset.source} does not hold the pinned text of {key} (sha256 {sha256})")
        found[key] = candidates[sha256]
    return found
