"""The command utils/check_empty_image.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from subprocess import CompletedProcess

from PIL import Image

from imageevalkit.store.cell import REPO
from tests.support.tree import one_error, run

SCRIPT = REPO / "utils" / "check_empty_image.py"


def command(*arguments: str | Path, cwd: Path | None = None) -> CompletedProcess[str]:
    return run(sys.executable, SCRIPT, *arguments, cwd=cwd)


def test_command_names_what_it_found_from_any_folder(tmp_path: Path) -> None:
    assert "no image" in one_error(command(tmp_path), 1)
    Image.linear_gradient("L").save(tmp_path / "good.png")
    result = command(tmp_path)
    assert result.returncode == 0 and result.stdout.startswith("1 images: 0 blank")
    (tmp_path / "sub").mkdir()
    Image.new("RGB", (64, 64), "navy").save(tmp_path / "sub/navy.jpg")
    (tmp_path / "torn.png").write_bytes((tmp_path / "good.png").read_bytes()[:-20])
    result = command(".", cwd=tmp_path)
    assert result.returncode == 1
    assert "blank: sub/navy.jpg" in result.stdout and "corrupt: torn.png" in result.stdout
    assert result.stdout.splitlines()[-1] == "3 images: 1 blank, 1 corrupt, 0 unreadable"
    as_json = json.loads(command(tmp_path, "--json").stdout)
    assert as_json["blank"] == ["sub/navy.jpg"] and [*as_json["corrupt"]] == ["torn.png"]
