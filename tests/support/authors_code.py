"""Stand-ins for authors' repositories: laid out and imported as those are, and put away after the test."""

from __future__ import annotations

import ast
import importlib.util
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from custom_models import authors_code

SUPPORT = Path(__file__).parent


@contextmanager
def stand_in(name: str, code: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder ``stand_in_<name>`` as repository ``name`` below ``code``.

    Afterwards all modules below the folder that holds ``code`` are forgotten, and those from before are back.
    """
    folder = code / name
    shutil.copytree(SUPPORT / f"stand_in_{name.replace('-', '_')}", folder)
    monkeypatch.setattr(authors_code, "CODE", code)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    before = dict(sys.modules)
    try:
        yield folder
    finally:
        for module, value in list(sys.modules.items()):
            origin = getattr(value, "__file__", None) or next(iter(getattr(value, "__path__", [])), "")
            if str(origin).startswith(str(code.parent)):
                del sys.modules[module]
        sys.modules.update(before)


def import_instead(name: str, file: Path) -> None:
    """Import ``file`` as module ``name``, in place of an installed one and of what that has loaded."""
    for loaded in [module for module in sys.modules if module == name or module.startswith(f"{name}.")]:
        del sys.modules[loaded]
    folder = [str(file.parent)] if file.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=folder)
    assert spec is not None and spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


def signatures(source: str) -> dict[str, list[tuple[str, str]]]:
    """``Class.method`` or ``function`` -> its parameters, each with its default ("" without one)."""
    module = ast.parse(source)
    found = {}
    holders: list[ast.Module | ast.ClassDef] = [module]
    holders += [node for node in module.body if isinstance(node, ast.ClassDef)]
    for holder in holders:
        prefix = f"{holder.name}." if isinstance(holder, ast.ClassDef) else ""
        for node in holder.body:
            if isinstance(node, ast.FunctionDef):
                found[prefix + node.name] = _parameters(node.args)
    return found


def _parameters(arguments: ast.arguments) -> list[tuple[str, str]]:
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [""] * (len(plain) - len(arguments.defaults)) + [
        ast.unparse(d).strip("'") for d in arguments.defaults
    ]
    listed = [(argument.arg, default) for argument, default in zip(plain, defaults, strict=True)]
    listed += [(f"*{arguments.vararg.arg}", "")] if arguments.vararg else []
    listed += [
        (argument.arg, ast.unparse(default) if default else "")
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    return listed + ([(f"**{arguments.kwarg.arg}", "")] if arguments.kwarg else [])
