"""Words that authors keep in their programs and examples: read, never run."""

from __future__ import annotations

from pathlib import Path

import pytest

from custom_models import authors
from custom_models.load_model import MODEL_SETTINGS
from custom_models.model_utils.diffusers_models import DiffusersT2I
from custom_models.model_utils.diffusers_special import QwenImage, QwenImage2512
from imageevalkit.generate.model import ModelUnusable
from tests.support.mirror import official_source


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(authors, "CODE", tmp_path)
    (tmp_path / "emu3").mkdir()
    (tmp_path / "emu3/program.py").write_text('raise SystemExit\nWORDS = " very fine."\n')
    return tmp_path


README = """
```python
raise SystemExit("Qwen/Qwen-Image-2512")
negative_prompt = "wax, " "blur"
```
```bash
negative_prompt = "Qwen/Qwen-Image"
```
```python
an excerpt of "Qwen/Qwen-Image" that is no program
```
```python
model_name = "Qwen/Qwen-Image"
positive_magic = {
    "en": ", sharp.",  # for English
    "zh": ", 清晰."
}
negative_prompt = " "
computed = str(1)
```
"""


@pytest.fixture
def qwen_readme(code: Path) -> Path:
    (code / "qwen-image").mkdir()
    (code / "qwen-image/README.md").write_text(README)
    return code


def test_words_of_programs_examples_and_docstrings(qwen_readme: Path) -> None:
    def function() -> None:
        """
        Examples:
            ```py
            >>> words = "one, two"
            ```
        """

    assert authors.set_in_docstring(function, "words") == "one, two"
    assert authors.set_in_file("emu3", "program.py", "WORDS") == " very fine."
    for weights, variable, expected in (
        ("Qwen/Qwen-Image-2512", "negative_prompt", "wax, blur"),
        ("Qwen/Qwen-Image", "negative_prompt", " "),
        ("Qwen/Qwen-Image", "positive_magic", {"en": ", sharp.", "zh": ", 清晰."}),
    ):
        assert authors.set_in_file("qwen-image", "README.md", variable, weights) == expected


def test_what_is_not_said_is_one_line(qwen_readme: Path) -> None:
    for arguments, says in (
        (("emu3", "program.py", "OTHER"), "does not say OTHER"),
        (("emu3", "none.py", "WORDS"), "cannot be read"),
        (("qwen-image", "README.md", "computed", "Qwen/Qwen-Image"), "does not say computed"),
        (("qwen-image", "README.md", "negative_prompt", "Qwen/Qwen"), "has no example of Qwen/Qwen$"),
    ):
        with pytest.raises(ModelUnusable, match=says):
            authors.set_in_file(*arguments)
    with pytest.raises(ModelUnusable, match=r"--model_names show-o or show-o-512$"):
        authors.use("show-o")


def test_qwen_image_ends_prompts_in_their_language(
    qwen_readme: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = _settings_given(monkeypatch)
    model = QwenImage("Qwen/Qwen-Image")
    assert model._prompt("a cat") == "a cat, sharp."
    assert model._prompt("a sign that reads 猫") == "a sign that reads 猫, 清晰."
    assert given == {"prompt_suffix": ""}
    QwenImage("Qwen/Qwen-Image", prompt_suffix=" !")
    assert given == {"prompt_suffix": " !"}


def test_qwen_image_2512_has_its_authors_negative_prompt(
    qwen_readme: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = _settings_given(monkeypatch)
    QwenImage2512("Qwen/Qwen-Image-2512")
    assert given == {"negative_prompt": "wax, blur"}
    QwenImage2512("Qwen/Qwen-Image-2512", negative_prompt=" ")
    assert given == {"negative_prompt": " "}


def _settings_given(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Returns the arguments of the last DiffusersT2I."""
    given: dict[str, object] = {}

    def built(self: object, model_path: str, **settings: object) -> None:
        given.clear()
        given.update(settings)

    monkeypatch.setattr(DiffusersT2I, "__init__", built)
    return given


def test_authors_readme_at_the_pinned_commit_says_it(code: Path) -> None:
    pins = {
        (asset["commit"], asset["to"])
        for name in ("qwen-image", "qwen-image-2512")
        for asset in MODEL_SETTINGS["t2i"][name]["assets"]
    }
    ((commit, to),) = pins
    (code / to).mkdir()
    (code / to / "README.md").write_text(official_source("QwenLM/Qwen-Image", commit, "README.md"))
    magic = authors.set_in_file(to, "README.md", "positive_magic", "Qwen/Qwen-Image")
    negative = authors.set_in_file(to, "README.md", "negative_prompt", "Qwen/Qwen-Image-2512")
    assert sorted(language for language, text in magic.items() if text.startswith(", ")) == ["en", "zh"]
    assert len(negative) > 50
