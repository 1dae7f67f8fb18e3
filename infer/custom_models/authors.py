"""The base of models that run their authors' code, and functions that read settings from authors' programs.

The programs are parsed, never run. Prefetch puts the repositories, assets of the entries, into ``code/``.
"""

from __future__ import annotations

import ast
import doctest
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from custom_models.model_utils.loading import LocalModel, loading, weights_folder
from imageevalkit.generate.model import ModelUnusable

CODE = Path(__file__).resolve().parent / "code"
_FENCED = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(eq=False)
class AuthorsModel(LocalModel):
    """The base of models that run their authors' code.

    A subclass names its repository (``code``). Settings that affect pixels have no default: the model's entry
    sets them.

    Raises ModelUnusable if code, packages, weights or a GPU are missing.
    """

    code: ClassVar[str]
    """The name of the folder in ``code/`` and of the requirements file in requirements/model/."""
    below: ClassVar[tuple[str, ...]] = ()
    """Folders of the repository that are also added to ``sys.path``."""
    files: ClassVar[tuple[str, ...]] = ()
    """Patterns of the needed weight files; empty means all files."""

    device: str = "cuda"

    def check(self) -> None:
        self.repository = use(self.code, *self.below)

    def weights(self) -> str:
        """Returns the folder of the weights; downloads them if necessary."""
        return str(weights_folder(self.model_path, self.revision, self.files))

    def loading(self, path: str) -> Any:
        return loading(path, self.code)


def use(name: str, *below: str) -> Path:
    """Adds repository ``name`` and its folders ``below`` to ``sys.path``. Returns the repository's folder.

    Raises ModelUnusable if the repository is missing.
    """
    folder = folder_of(name)
    # at the end of sys.path: a repository's `utils` or `models` must not hide our modules
    for path in (folder, *(folder / part for part in below)):
        if str(path) not in sys.path:
            sys.path.append(str(path))
    return folder


def folder_of(name: str) -> Path:
    """Returns the folder of repository ``name``. Raises ModelUnusable if it is missing."""
    folder = CODE / name
    if not folder.is_dir():
        raise ModelUnusable(f"the authors' code is not at {folder}: {_how_to_get(name)}")
    return folder


def _how_to_get(name: str) -> str:
    # imported here, because the registry imports this package's settings; no model loads
    from custom_models.load_model import MODEL_SETTINGS

    models = [
        model
        for entries in MODEL_SETTINGS.values()
        for model, entry in entries.items()
        if any(asset.get("to") == name for asset in entry.get("assets", ()))
    ]
    if not models:
        return "no model of the registry has it among its assets"
    return f"run bash eval.sh prefetch --model_names {' or '.join(dict.fromkeys(models))}"


def set_in_file(name: str, file: str, variable: str, weights: str = "") -> Any:
    """Returns the literal value of ``variable`` in the program ``file`` of the authors' repository ``name``.

    In a Markdown file the first Python example that contains the string ``weights`` counts.

    Raises ModelUnusable if the repository is missing or the file has no such value.
    """
    path = folder_of(name) / file
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelUnusable(f"{path} cannot be read: {error}") from error
    return _literal(_FENCED.findall(text) if path.suffix == ".md" else [text], variable, str(path), weights)


def set_in_docstring(function: Callable[..., Any], variable: str) -> Any:
    """Returns the literal value of ``variable`` in the docstring example of ``function``, or raises
    ModelUnusable."""
    examples = doctest.DocTestParser().get_examples(function.__doc__ or "")
    where = f"the example of {function.__module__}.{function.__qualname__}"
    return _literal(["".join(example.source for example in examples)], variable, where)


def _literal(programs: Iterable[str], variable: str, where: str, weights: str = "") -> Any:
    for program in programs:
        try:
            tree = ast.parse(program)
        except SyntaxError:  # an incomplete excerpt
            continue
        if weights and weights not in {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)}:
            continue
        for node in tree.body:
            if isinstance(node, ast.Assign) and [ast.unparse(one) for one in node.targets] == [variable]:
                with suppress(ValueError):
                    return ast.literal_eval(node.value)
        raise ModelUnusable(f"{where} does not say {variable}{f' for {weights}' if weights else ''}")
    raise ModelUnusable(f"{where} has no example of {weights or variable}")
