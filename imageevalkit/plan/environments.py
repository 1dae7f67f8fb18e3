"""Finds the Python of an environment, and the PYTHONPATH by which it can import the toolkit."""

from __future__ import annotations

import os
from pathlib import Path

from imageevalkit.common.errors import UserError
from imageevalkit.common.python_path import usable_paths
from imageevalkit.store.cell import REPO

DRIVER_ENV = REPO / ".venv"
DRIVER_PYTHON = str(DRIVER_ENV / "bin" / "python")


def python_of(environment: str, used_by: str, build: str) -> str:
    """Returns the path of the Python of ``environment`` (empty: the driver's, which eval.sh builds first).

    The error names its user (``used_by``: "model bagel") and the options of ``make_env.sh`` (``build``).

    Raises UserError: the environment does not exist.
    """
    if not environment:
        return DRIVER_PYTHON
    return str(program_of(environment, "python", used_by, build))


def program_of(environment: str, name: str, used_by: str, build: str) -> Path:
    """Returns the path of program ``name`` in ``environment``.

    ``environment`` is a folder, a name in CONDA_BASE/envs, or empty for the driver's environment.

    Raises UserError: the program does not exist, or ``environment`` is a name and CONDA_BASE is not set.
    """
    base = os.environ.get("CONDA_BASE", "")
    if not environment:
        folder = DRIVER_ENV
    elif "/" in environment:
        folder = Path(environment).expanduser()
    elif base:
        folder = Path(base) if environment == "base" else Path(base) / "envs" / environment
    else:
        raise UserError(
            f"{used_by} runs in environment '{environment}', but CONDA_BASE is empty: set it in config.sh, or name "
            "a folder in INFER_ENV_MAP or EVAL_ENV_MAP (bash utils/make_env.sh … --path FOLDER builds one)"
        )
    program = folder / "bin" / name
    if not os.access(program, os.X_OK):
        raise UserError(
            f"environment '{environment}' of {used_by} is missing: no {program}; build it with "
            f"'bash utils/make_env.sh {build}' or correct config.sh"
        )
    return program


OUR_PATHS = (REPO, REPO / "infer")


def with_our_paths(environ: dict[str, str], program: str = DRIVER_PYTHON) -> dict[str, str]:
    """Returns ``environ`` with a PYTHONPATH by which ``program`` can import the toolkit and ``infer/``."""
    own = map(str, OUR_PATHS)
    return environ | {
        "PYTHONPATH": os.pathsep.join([*own, *usable_paths(environ.get("PYTHONPATH", ""), program)])
    }
