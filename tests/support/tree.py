"""A copy of what the shell helpers need of the repository, to run them without touching this one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from imageevalkit.store.cell import REPO
from tests.support.checkout import run_command


def copy_tree(target: Path) -> Path:
    """Copy what the helpers run below ``target``; return the copy's root. It has no benchmarks."""
    root = target / "kit"
    unwanted = shutil.ignore_patterns("checkpoints", "code", "weights", "node_modules")
    for folder in ("imageevalkit", "utils", "requirements", "infer", "eval_models"):
        shutil.copytree(REPO / folder, root / folder, ignore=unwanted)
    for file in ("eval.sh", "config.sh"):
        shutil.copy2(REPO / file, root / file)
    return root


def lend_driver_environment(root: Path) -> None:
    """Give the copy a ``.venv`` that is up to date: the environment the tests run in."""
    environment = root / ".venv"
    (environment / "bin").mkdir(parents=True)
    python = environment / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    hash_of_list = run("sha256sum", root / "requirements" / "driver.txt", status=0).stdout.split()[0]
    (environment / ".imageevalkit-requirements").write_text(hash_of_list + "\n")


def run(
    *command: str | Path,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
    status: int | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command with ``environ`` over this process's environment; see :func:`run_command`."""
    return run_command(command, cwd, environment(environ or {}), status)


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with ``changes``; variables that would steer a helper are left out."""
    steering = ("CONDA_", "MAMBA_", "CUDA_BASE", "PYTHON", "HF_", "TRANSFORMERS_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(steering)}
    return {**kept, **changes}


def one_error(result: subprocess.CompletedProcess[str], status: int) -> str:
    """The single line on stderr of a command that must have failed with ``status``."""
    assert result.returncode == status, result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), result.stderr
    return lines[0]
