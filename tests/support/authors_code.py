"""Stand-ins for authors' repositories: laid out and imported as those are, and put away after the test.

They have the modules' names and signatures, and next to nothing behind them; ``authors_calls`` has what reached them.
"""

from __future__ import annotations

import ast
import importlib.util
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from custom_models import authors
from imageevalkit.store.cell import REPO
from tests.support.authors_calls import CALLS

SUPPORT = Path(__file__).parent


@contextmanager
def stand_in(name: str, code: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder ``stand_in_<name>`` as repository ``name`` below ``code``.

    Afterwards all modules below the folder that holds ``code`` are forgotten, and those from before are back.
    """
    folder = code / name
    shutil.copytree(SUPPORT / f"stand_in_{name.replace('-', '_')}", folder)
    CALLS.clear()
    monkeypatch.setattr(authors, "CODE", code)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    before = dict(sys.modules)
    # a folder of ours of the same name, such as utils/
    _forget(REPO, {path.stem for path in folder.iterdir()})
    importlib.invalidate_caches()
    try:
        yield folder
    finally:
        _forget(code.parent)
        sys.modules.update(before)


def _forget(below: Path, names: set[str] | None = None) -> None:
    """Forget the modules in files or folders ``below``: of packages ``names``, or of all."""
    found = [
        name
        for name, module in list(sys.modules.items())
        if (names is None or name.partition(".")[0] in names)
        and any(place.startswith(f"{below}/") for place in _places(module))
    ]
    # only then: a module without a file asks its parent where it is
    for name in found:
        del sys.modules[name]


def _places(module: ModuleType) -> list[str]:
    file = getattr(module, "__file__", None)
    return [str(place) for place in ([file] if file else getattr(module, "__path__", ()))]


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
    with warnings.catch_warnings(action="ignore"):
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
    if arguments.vararg or arguments.kwonlyargs:
        listed.append((f"*{arguments.vararg.arg if arguments.vararg else ''}", ""))
    listed += [
        (argument.arg, ast.unparse(default) if default else "")
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    return listed + ([(f"**{arguments.kwarg.arg}", "")] if arguments.kwarg else [])
