"""The command utils/check_empty_image.py."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from imageevalkit.store.cell import REPO
from tests.support.blank_images import BLANK, CORRUPT, write_images
from tests.support.tree import one_error, run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path)


def command(*arguments: str | Path, cwd: Path | None = None) -> CompletedProcess[str]:
    return run(sys.executable, REPO / "utils" / "check_empty_image.py", *arguments, cwd=cwd)


def test_command_names_what_it_found_from_any_folder(folder: Path, tmp_path: Path) -> None:
    result = command(".", cwd=folder)
    assert result.returncode == 1
    assert "blank: sub/navy.jpg" in result.stdout and "corrupt: torn_b.jpg" in result.stdout
    assert result.stdout.splitlines()[-1] == "9 images: 2 blank, 3 corrupt, 0 unreadable"
    as_json = json.loads(command(folder, "--json").stdout)
    assert as_json["blank"] == BLANK and set(as_json["corrupt"]) == CORRUPT


def test_only_good_images_is_status_0(folder: Path) -> None:
    assert command(folder, "--threshold", "0.98").returncode == 1
    for name in [*BLANK, *CORRUPT]:
        (folder / name).unlink()
    result = command(folder)
    assert result.returncode == 0 and result.stdout.startswith("4 images: 0 blank")


def test_no_image_at_all_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert "no image" in one_error(command(tmp_path), 1)


def test_wrong_usage_is_one_line_and_status_2(tmp_path: Path) -> None:
    assert "no folder" in one_error(command(tmp_path / "nowhere"), 2)
    assert "DIR" in one_error(command(), 2)
    assert "--threshold" in one_error(command(tmp_path, "--threshold", "98"), 2)
    assert "--fast" in one_error(command(tmp_path, "--fast"), 2)


def test_python_without_pillow_says_which_one_to_use(tmp_path: Path) -> None:
    script = REPO / "utils" / "check_empty_image.py"
    result = run(sys.executable, "-S", "-I", script, tmp_path)
    assert result.returncode != 0 and "PIL" in result.stderr and ".venv/bin/python" in result.stderr
    assert "Traceback" not in result.stderr and os.linesep in result.stderr
