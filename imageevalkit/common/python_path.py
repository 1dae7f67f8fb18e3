"""Filters PYTHONPATH for a Python version. eval.sh runs this file: it imports the standard library only."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

_VERSION_IN_PATH = re.compile(r"/python(\d+\.\d+)(?:/|$)")
_VERSION_IN_MODULE = re.compile(r"\.cpython-(\d)(\d+)")


def usable_paths(paths: str, program: str | Path) -> list[str]:
    """Returns the entries of the PYTHONPATH ``paths`` that hold no packages for another version of Python.

    Such packages would hide the packages in the environment of ``program``, and fail to import.
    """
    # Each venv or conda environment has a folder lib/python3.x; in conda, a link python3.1 leads to it.
    folders = Path(program).parent.parent.glob("lib/python3.*")
    own = {folder.resolve().name.removeprefix("python") for folder in folders}
    entries = filter(None, paths.split(os.pathsep))
    return [entry for entry in entries if not own or not (made_for := _made_for(entry)) or own & made_for]


def _made_for(entry: str) -> set[str]:
    """Returns the Python versions that the packages in folder ``entry`` need; empty if any version works."""
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
    """Prints the entries of PYTHONPATH that the program ``argv[1]`` can use, and a note on each other one."""
    given = os.environ.get("PYTHONPATH", "")
    kept = usable_paths(given, sys.argv[1])
    for entry in given.split(os.pathsep):
        if entry and entry not in kept:
            sys.stderr.write(f"note: PYTHONPATH names {entry}, packages of another Python: left out\n")
    sys.stdout.write(os.pathsep.join(kept))


if __name__ == "__main__":
    main()
