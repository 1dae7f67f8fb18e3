"""Which packages our modules import, read from their source."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path

from imageevalkit.store.cell import REPO

# where the modules of a job are found: its script's folder, and PYTHONPATH
_ROOTS = (REPO / "infer", REPO)
# what a module comes with, where its name does not say so
_DISTRIBUTIONS = {
    "pynvml": ("nvidia-ml-py",),
    "PIL": ("pillow",),
    "yaml": ("pyyaml",),
    "cv2": ("opencv-python", "opencv-python-headless"),
    "open_clip": ("open-clip-torch",),
}


def third_party(modules: Iterable[str], idle: Collection[str] = ()) -> dict[str, str]:
    """The top-level modules that are neither ours nor the standard library's and that ``modules`` import, themselves
    or through modules of ours; with a place (``file:line``) of each.

    Of the modules and packages named ``idle`` only those imports count that run when they are imported.
    """
    found: dict[str, str] = {}
    waiting, seen = list(modules), set()
    while waiting:
        name = waiting.pop()
        path = _file(name)
        if name in seen or path is None:
            continue
        seen.add(name)
        is_idle = any(name == quiet or name.startswith(f"{quiet}.") for quiet in idle)
        for imported, line, at_once in _imports(name, path):
            if is_idle and not at_once:
                continue
            if _is_ours(imported):
                waiting.append(imported)
            elif (top := imported.partition(".")[0]) not in sys.stdlib_module_names:
                found.setdefault(top, f"{path.relative_to(REPO)}:{line}")
    return found


def distributions_of(module: str) -> tuple[str, ...]:
    """The names under which lists may have the package that brings the top-level ``module``."""
    return _DISTRIBUTIONS.get(module, (canonical(module),))


def canonical(name: str) -> str:
    """A distribution's name, normalised as PEP 503 says."""
    return re.sub(r"[-_.]+", "-", name).lower()


def modules_below(folder: str) -> list[str]:
    """The names of all modules in a folder of ours and its folders."""
    return [
        path.relative_to(REPO).with_suffix("").as_posix().replace("/", ".")
        for path in sorted((REPO / folder).rglob("*.py"))
    ]


def _is_ours(module: str) -> bool:
    top = module.partition(".")[0]
    return any((root / top).is_dir() or (root / f"{top}.py").is_file() for root in _ROOTS)


def _file(module: str) -> Path | None:
    for root in _ROOTS:
        path = root / module.replace(".", "/")
        for candidate in (path.with_suffix(".py") if path.name else path, path / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None


@cache
def _imports(name: str, path: Path) -> list[tuple[str, int, bool]]:
    """Name, line, and whether it runs when the module is imported, of every import in module ``name``'s file."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return list(_walk(ast.parse(path.read_text(encoding="utf-8")), package, at_once=True))


def _walk(node: ast.AST, package: str, at_once: bool) -> Iterator[tuple[str, int, bool]]:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.Import):
        yield from ((alias.name, node.lineno, at_once) for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        # level 1 is the module's own package, 2 the one around it
        above = package.rsplit(".", node.level - 1)[0] if node.level else ""
        module = ".".join(filter(None, (above, node.module)))
        yield module, node.lineno, at_once
        if _is_ours(module):
            # each may be a module of the package
            yield from ((f"{module}.{alias.name}", node.lineno, at_once) for alias in node.names)
    inside = at_once and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    may_fail = set(node.body) if isinstance(node, ast.Try) and _does_without(node) else set()
    for child in ast.iter_child_nodes(node):
        if child not in may_fail:
            yield from _walk(child, package, inside)


def _does_without(node: ast.Try) -> bool:
    """Whether a block that tries an import goes on where the package is missing."""
    return any(
        handler.type is not None
        and ast.unparse(handler.type) == "ImportError"
        and not any(isinstance(inner, ast.Raise | ast.Call) for inner in ast.walk(handler))
        for handler in node.handlers
    )
