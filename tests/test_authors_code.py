"""Words that authors keep in their programs: read, never run."""

from __future__ import annotations

from pathlib import Path

import pytest

from custom_models import authors_code
from custom_models.model_utils.emu3 import Emu3T2I
from imageevalkit.generation.contract import ModelUnusable


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(authors_code, "CODE", tmp_path)
    (tmp_path / "emu3").mkdir()
    (tmp_path / "emu3/program.py").write_text('raise SystemExit\nWORDS = " very fine."\nNUMBER = [1]\n')
    return tmp_path


def test_text_of_a_program(code: Path) -> None:
    assert authors_code.text_in("emu3", "program.py", "WORDS") == " very fine."


@pytest.mark.parametrize(
    ("file", "variable", "says"),
    [
        ("program.py", "NUMBER", "does not say NUMBER"),
        ("program.py", "OTHER", "does not say OTHER"),
        ("none.py", "WORDS", "cannot be read"),
    ],
)
def test_what_is_not_there_is_one_line(code: Path, file: str, variable: str, says: str) -> None:
    with pytest.raises(ModelUnusable, match=says):
        authors_code.text_in("emu3", file, variable)


def test_code_of_several_models_names_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authors_code, "CODE", tmp_path)
    with pytest.raises(ModelUnusable, match=r"--model_names show-o or show-o-512$"):
        authors_code.use("show-o")
    with pytest.raises(ModelUnusable, match=r"no model of the registry has it among its assets$"):
        authors_code.use("nobodys")


def test_emu3_without_its_authors_code_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authors_code, "CODE", tmp_path)
    with pytest.raises(ModelUnusable, match=r"run bash utils/prefetch\.sh --model_names emu3$"):
        Emu3T2I("BAAI/Emu3-Gen-hf")
