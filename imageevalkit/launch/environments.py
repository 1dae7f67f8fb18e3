"""From a name in INFER_ENV_MAP / EVAL_ENV_MAP to a Python, and the driver's own environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from imageevalkit.cell import REPO
from imageevalkit.errors import UserError

DRIVER_ENV = REPO / ".venv"


def folder_of(environment: str, used_by: str) -> Path:
    """The folder of ``environment``: '' is the driver's, a path is itself, a name is below CONDA_BASE/envs.

    ``used_by`` ("model bagel") completes the error.

    Raises:
        UserError: a name, but CONDA_BASE is not set.
    """
    if not environment:
        return DRIVER_ENV
    if "/" in environment:
        return Path(environment).expanduser()
    base = os.environ.get("CONDA_BASE")
    if not base:
        raise UserError(
            f"{used_by} runs in environment '{environment}', but CONDA_BASE is empty: set it in config.sh, or name "
            "a folder in INFER_ENV_MAP or EVAL_ENV_MAP (bash utils/make_env.sh … --path FOLDER builds one)"
        )
    return Path(base) if environment == "base" else Path(base) / "envs" / environment


def python_of(environment: str, used_by: str, build: str) -> str:
    """The Python of ``environment``.

    ``used_by`` ("model bagel") and ``build`` (the command that makes it) complete the error.

    Raises:
        UserError: it is not there. The driver's environment passes: it is made before the first job.
    """
    if not environment:
        return str(DRIVER_ENV / "bin" / "python")
    return str(program_of(environment, "python", used_by, build))


def program_of(environment: str, name: str, used_by: str, build: str) -> Path:
    """The program ``name`` of ``environment``, else like :func:`python_of`. Raises UserError: it is not there."""
    program = folder_of(environment, used_by) / "bin" / name
    if not os.access(program, os.X_OK):
        raise UserError(
            f"environment '{environment}' of {used_by} is missing: no {program}; build it with "
            f"'{build}' or correct config.sh"
        )
    return program


def ensure_driver_env() -> bool:
    """Make ``.venv``, or bring it up to date with requirements/driver.txt; quick, and False, when it is.

    Raises:
        UserError: it cannot be made (the script says why).
    """
    script, before = REPO / "utils" / "make_env.sh", _state()
    if subprocess.run(["bash", str(script), "--driver"], check=False).returncode:
        raise UserError(f"the driver's environment {DRIVER_ENV} cannot be made (see above)")
    return _state() != before


def _state() -> str:
    """What make_env.sh has written about ``.venv``; empty where it is not there."""
    stamp = DRIVER_ENV / ".imageevalkit-requirements"
    return stamp.read_text(encoding="utf-8") if stamp.is_file() else ""
