"""The entries of a user's PYTHONPATH that a Python can import from. eval.sh runs this file, with no package at hand."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

_VERSION_IN_PATH = re.compile(r"/python(\d+\.\d+)(?:/|$)")
_VERSION_IN_MODULE = re.compile(r"\.cpython-(\d)(\d+)")


def usable_paths(paths: str, program: str | Path) -> list[str]:
    """Returns the entries of the PYTHONPATH ``paths`` without packages installed for another Python than ``program``.

    Such packages would hide those of the program's own environment, and fail to import.
    """
    # a venv and a conda environment have such a folder, named after their Python; conda links python3.1 to it
    folders = Path(program).parent.parent.glob("lib/python3.*")
    own = {folder.resolve().name.removeprefix("python") for folder in folders}
    entries = filter(None, paths.split(os.pathsep))
    return [entry for entry in entries if not own or not (made_for := _made_for(entry)) or own & made_for]


def _made_for(entry: str) -> set[str]:
    """The versions of Python that the packages in the folder ``entry`` are for; empty: any, or it holds none."""
    if named := _VERSION_IN_PATH.search(entry):
        return {named[1]}
    folder = Path(entry)
    if not any(folder.glob("*.dist-info")):
        return set()
    compiled = (module for pattern in ("*.so", "*/*.so") for module in folder.glob(pattern))
    return {
        ".".join(found.groups()) for module in compiled if (found := _VERSION_IN_MODULE.search(module.name))
    }


def main() -> None:
    """Print the usable part of PYTHONPATH for the program that the first argument names; say what is left out."""
    given = os.environ.get("PYTHONPATH", "")
    kept = usable_paths(given, sys.argv[1])
    for entry in given.split(os.pathsep):
        if entry and entry not in kept:
            sys.stderr.write(f"note: PYTHONPATH names {entry}, packages of another Python: left out\n")
    sys.stdout.write(os.pathsep.join(kept))


if __name__ == "__main__":
    main()
