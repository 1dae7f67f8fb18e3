"""Settings that authors give in their programs, and in the examples of their documentation: read, never run."""

from __future__ import annotations

import ast
import doctest
import re
from collections.abc import Callable, Iterable
from typing import Any

from custom_models import authors_code
from imageevalkit.generation.model import ModelUnusable

_FENCED = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def set_in_readme(name: str, file: str, weights: str, variable: str) -> Any:
    """What ``variable`` is in the first example of a Markdown ``file`` that loads exactly ``weights``.

    ``name`` is the authors' repository, as in :mod:`custom_models.authors_code`; ``variable`` is set to a literal.

    Raises:
        ModelUnusable: the repository is not there, or says no such thing.
    """
    path = authors_code.folder_of(name) / file
    try:
        programs = _FENCED.findall(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelUnusable(f"{path} cannot be read: {error}") from error
    about = (tree for tree in _trees(programs) if weights in _constants(tree))
    for tree in about:
        return _literal(tree, variable, f"the example of {weights} in {path}")
    raise ModelUnusable(f"{path} has no example of {weights}")


def set_in_program(name: str, file: str, variable: str) -> Any:
    """What ``variable`` is in the program ``file`` of the authors' repository. Raises ModelUnusable as above."""
    path = authors_code.folder_of(name) / file
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError) as error:
        raise ModelUnusable(f"{path} cannot be read: {error}") from error
    return _literal(tree, variable, str(path))


def set_in_docstring(function: Callable[..., Any], variable: str) -> Any:
    """What ``variable`` is in the example of the docstring of ``function``. Raises ModelUnusable as above."""
    examples = doctest.DocTestParser().get_examples(function.__doc__ or "")
    where = f"the example of {function.__module__}.{function.__qualname__}"
    for tree in _trees(["".join(example.source for example in examples)]):
        return _literal(tree, variable, where)
    raise ModelUnusable(f"{where} is no Python")


def _trees(programs: Iterable[str]) -> Iterable[ast.Module]:
    for program in programs:
        try:
            yield ast.parse(program)
        except SyntaxError:  # an excerpt that means nothing by itself
            continue


def _constants(tree: ast.Module) -> set[Any]:
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}


def _literal(tree: ast.Module, variable: str, where: str) -> Any:
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [variable]:
            try:
                return ast.literal_eval(node.value)
            except ValueError:
                continue
    raise ModelUnusable(f"{where} does not say {variable}")
