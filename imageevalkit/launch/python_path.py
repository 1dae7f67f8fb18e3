"""The entries of a user's PYTHONPATH that a Python can import from. eval.sh runs this file, with no package at hand."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

_VERSION_IN_PATH = re.compile(r"/python(\d+\.\d+)(?:/|$)")
_VERSION_IN_MODULE = re.compile(r"\.cpython-(\d)(\d+)")


def usable_paths(paths: str, program: str | Path) -> list[str]:
    """The entries of ``paths`` (a PYTHONPATH) without packages that were installed for another Python than ``program``.

    Such packages would hide those of the program's own environment, and fail to import.
    """
    # a venv and a conda environment have one such folder, named after their Python
    folders = Path(program).parent.parent.glob("lib/python3.*")
    version = next((folder.name.removeprefix("python") for folder in folders), "")
    return [
        entry for entry in paths.split(os.pathsep) if entry and _made_for(entry, version) in ("", version)
    ]


def _made_for(entry: str, version: str) -> str:
    """The version of the Python that the packages in the folder ``entry`` are for. Empty: any, or it holds none."""
    if not version:
        return ""
    if named := _VERSION_IN_PATH.search(entry):
        return named[1]
    folder = Path(entry)
    if not any(folder.glob("*.dist-info")):
        return ""
    compiled = (module for pattern in ("*.so", "*/*.so") for module in folder.glob(pattern))
    versions = {
        ".".join(found.groups()) for module in compiled if (found := _VERSION_IN_MODULE.search(module.name))
    }
    return version if version in versions else next(iter(versions), "")


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
