"""The reference models: which text is found in a prompt, how legibly it is set, and what the seed changes."""

from __future__ import annotations

from typing import Any

import pytest
from PIL import Image

from custom_models.model_utils.reference import (
    ReferenceBlank,
    ReferenceBlankEdit,
    ReferenceIdentity,
    ReferenceNoise,
    ReferenceNoiseEdit,
    ReferenceTypeset,
    ReferenceTypesetEdit,
    quoted_strings,
)
from imageevalkit.common.images import is_flat
from imageevalkit.generate.model import ItemFailed

T2I: list[Any] = [ReferenceTypeset, ReferenceBlank, ReferenceNoise]
EDIT: list[Any] = [ReferenceTypesetEdit, ReferenceBlankEdit, ReferenceNoiseEdit]
PHOTO = Image.linear_gradient("L").resize((640, 480)).convert("RGBA")


@pytest.mark.parametrize(
    ("prompt", "strings"),
    [
        ('A sign "OPEN" above "Come in!"', ["OPEN", "Come in!"]),
        ("A sign “OPEN” above “Come in!”", ["OPEN", "Come in!"]),
        ("招牌写着“欢迎光临”，旁边是「营业中」和『请进』", ["欢迎光临", "营业中", "请进"]),
        ("The dogs' bowl at Anna's, don't read ’90s", []),
        ("Signs 'Don't stop' and ‘Don’t go’ in the '90s", ["Don't stop", "Don’t go"]),
        ("写着‘龙穴’和'出口'的牌子", ["龙穴", "出口"]),
        ("“外面“里面”外面”和“二”", ["外面“里面”外面", "二"]),
        ('mixed “one" and “two"', ["one", "two"]),
        ('A 5" nail and a sign "5 nails"', ["5 nails"]),
        ('never "closed', []),
        ('two lines "one\ntwo"', ["one\ntwo"]),
    ],
)
def test_quoted_strings(prompt: str, strings: list[str]) -> None:
    assert quoted_strings(prompt) == strings


@pytest.mark.parametrize("model_class", T2I)
def test_t2i_honours_the_size_and_is_determined_by_prompt_and_seed(model_class: Any) -> None:
    model = model_class(model_path=None, width=320, height=200)
    first = model.generate('a sign "OPEN"', seed=43)
    assert (first.size, first.mode) == ((320, 200), "RGB")
    assert first.tobytes() == model_class(width=320, height=200).generate('a sign "OPEN"', seed=43).tobytes()
    assert model_class().generate("a").size == (1024, 1024)


@pytest.mark.parametrize("model_class", [ReferenceTypeset, ReferenceNoise])
def test_repetitions_and_prompts_differ(model_class: Any) -> None:
    model = model_class(width=320, height=200)
    images = {model.generate(prompt, seed).tobytes() for prompt in ("a", "b") for seed in range(43, 47)}
    assert len(images) == 8


@pytest.mark.parametrize("model_class", EDIT)
def test_edit_keeps_the_size_of_the_last_image(model_class: Any) -> None:
    model = model_class(model_path=None)
    inputs = [Image.new("RGB", (10, 10)), "make it", PHOTO, "blue"]
    first = model.generate(inputs, seed=43)
    assert (first.size, first.mode) == (PHOTO.size, "RGB")
    assert first.tobytes() == model.generate(inputs, seed=43).tobytes()
    with pytest.raises(ItemFailed, match="no input image"):
        model.generate(["draw"], seed=43)


@pytest.mark.parametrize("mode", ["P", "RGBA", "I;16"])
def test_identity_returns_the_first_image_whatever_its_mode(mode: str) -> None:
    first = PHOTO.convert("RGB").convert(mode) if mode != "I;16" else Image.new(mode, (640, 480), 7)
    same = ReferenceIdentity().generate(["turn", first, "this into", Image.new("RGB", (10, 10))], seed=43)
    assert (same.mode, same.size) == ("RGB", first.size)
    assert same.tobytes() == first.convert("RGB").tobytes()
    with pytest.raises(ItemFailed, match="no input image"):
        ReferenceIdentity().generate(["draw"], seed=43)


def test_blank_is_flat_and_noise_is_uniform() -> None:
    assert is_flat(ReferenceBlank().generate("a"))
    histogram = ReferenceNoise(width=512, height=512).generate("a").histogram()
    expected = 512 * 512 / 256
    assert len(histogram) == 3 * 256
    assert all(0.8 * expected < count < 1.2 * expected for count in histogram)


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "word " * 2000,
        "字" * 3000,
        "😀 \ue000",
    ],
)
def test_any_prompt_is_typeset(prompt: str) -> None:
    assert ReferenceTypeset(width=256, height=64).generate(prompt).size == (256, 64)
