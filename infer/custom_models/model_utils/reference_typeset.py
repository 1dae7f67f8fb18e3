"""``reference-typeset``: the text that a prompt asks for, in plain type; the ceiling of text benchmarks."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from custom_models.model_utils.inputs import last_image, split_subject
from custom_models.model_utils.quoted_text import quoted_strings
from imageevalkit.generation.model import ModelUnusable

_LARGEST = 72
_SMALLEST = 8
# All lengths below are in units of the font size.
# PP-OCRv4's recogniser loses blanks between Latin words at any ordinary width; this gap makes its detector
# box every word alone. Word recall on 80 English LongText-Bench prompts: 0.997; with a gap of 0.45: 0.988.
_WORD_GAP = 1.5
_LINE_HEIGHT = 1.4
_BLOCK_GAP = 0.4
_MARGIN = 0.04
"""Of the canvas's shorter side."""
_PLACES = 8
"""The layout moves by up to this many pixels with the seed."""

_CJK = r"\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
# A line may break between any two CJK characters, but closing punctuation stays with the one before it.
# Latin words longer than any real one are cut, lest one URL force tiny type.
_TOKEN = re.compile(rf"(\s*)([{_CJK}][，。、；：！？）」』》”’]*|[^\s{_CJK}]{{1,40}})")


class _Token(NamedTuple):
    text: str
    gap: float
    """White space before it, when it does not start a line; in font sizes."""
    width: float


_Line = list[_Token]


class _Typesetter:
    """Sets blocks of text as large as a box allows."""

    def __init__(self, font_path: str | None) -> None:
        self._path = font_path or _default_font()
        self._font = lru_cache(maxsize=None)(self._load)
        # widths are measured once, at a size where rounding is negligible, and scaled
        self._width = lru_cache(maxsize=10_000)(lambda text: self._font(200).getlength(text) / 200)
        self._font(200)

    def _load(self, size: int) -> ImageFont.FreeTypeFont:
        try:
            # Raqm would shape across tokens and is not in every Pillow; scores must not depend on it
            return ImageFont.truetype(self._path, size, layout_engine=ImageFont.Layout.BASIC)
        except OSError as error:
            raise ModelUnusable(f"reference-typeset: cannot read the font {self._path}: {error}") from error

    def draw(
        self, image: Image.Image, box: tuple[int, int, int, int], blocks: Sequence[str], ink: str = "black"
    ) -> None:
        """Draw ``blocks`` below each other into ``box`` (left, top, right, bottom; pixels) of ``image``.

        Text that does not fit even in the smallest type runs out at the bottom.
        """
        left, top, right, bottom = box
        tokens = [[self._tokens(line) for line in block.splitlines()] for block in blocks]
        size, lines = self._largest_fit(tokens, right - left, bottom - top)
        font = self._font(size)
        pen = ImageDraw.Draw(image)
        y = float(top)
        for block in lines:
            for line in block:
                x = float(left)
                for n, token in enumerate(line):
                    x += token.gap * size if n else 0
                    pen.text((x, y), token.text, font=font, fill=ink)
                    x += token.width * size
                y += _LINE_HEIGHT * size
            y += _BLOCK_GAP * size

    def _tokens(self, line: str) -> _Line:
        return [
            _Token(text, _WORD_GAP if space else 0.0, self._width(text))
            for space, text in _TOKEN.findall(line)
        ]

    def _largest_fit(
        self, blocks: Sequence[Sequence[_Line]], width: float, height: float
    ) -> tuple[int, list[list[_Line]]]:
        low, high = _SMALLEST, _LARGEST
        while low < high:
            size = (low + high + 1) // 2
            if self._fits(_wrap(blocks, width / size), width / size, height / size):
                low = size
            else:
                high = size - 1
        return low, _wrap(blocks, width / low)

    @staticmethod
    def _fits(blocks: Sequence[Sequence[_Line]], width: float, height: float) -> bool:
        lines = sum(len(block) for block in blocks)
        widest = max((token.width for block in blocks for line in block for token in line), default=0.0)
        return widest <= width and lines * _LINE_HEIGHT + (len(blocks) - 1) * _BLOCK_GAP <= height


def _default_font() -> str:
    try:
        from pylopdf_fonts_zh_cn import sans_path
    except ImportError as error:
        raise ModelUnusable(
            "reference-typeset: package pylopdf-fonts-zh-cn is missing; install it or set font_path"
        ) from error
    return str(sans_path())


def _wrap(blocks: Sequence[Sequence[_Line]], width: float) -> list[list[_Line]]:
    """Break every line of every block at ``width`` (in font sizes), first fit."""
    return [[piece for line in block for piece in _break(line, width)] for block in blocks]


def _break(line: _Line, width: float) -> list[_Line]:
    pieces: list[_Line] = [[]]
    used = 0.0
    for token in line:
        if pieces[-1] and used + token.gap + token.width > width:
            pieces.append([])
        used = used + token.gap + token.width if pieces[-1] else token.width
        pieces[-1].append(token)
    return pieces


def _tint(rng: random.Random) -> tuple[int, int, int]:
    red, green, blue = (rng.randint(240, 255) for _ in range(3))
    return red, green, blue


class ReferenceTypeset:
    """Text to image: the quoted strings of the prompt, or all of it when it quotes nothing, black on light.

    ``width`` and ``height`` are in pixels. Prompt and seed decide a faint tint and an offset of a few pixels.
    """

    model_name = "reference-typeset"

    def __init__(
        self,
        model_path: str | None = None,
        width: int = 1024,
        height: int = 1024,
        font_path: str | None = None,
    ) -> None:
        self.size = (width, height)
        self._typesetter = _Typesetter(font_path)

    def generate(self, prompt: str, seed: int = 42) -> Image.Image:
        """The typeset text; the same pixels for the same ``prompt`` and ``seed``."""
        rng = random.Random(f"{seed}:{prompt}")
        width, height = self.size
        image = Image.new("RGB", self.size, _tint(rng))
        margin = round(_MARGIN * min(self.size))
        left, top = margin + rng.randrange(_PLACES), margin + rng.randrange(_PLACES)
        self._typesetter.draw(
            image, (left, top, width - margin, height - margin), quoted_strings(prompt) or [prompt]
        )
        return image


class ReferenceTypesetEdit:
    """Edit: the last input image, scaled down, with the instruction set under it; in that image's size."""

    model_name = "reference-typeset"

    def __init__(self, model_path: str | None = None, font_path: str | None = None) -> None:
        self._typesetter = _Typesetter(font_path)

    def generate(self, input_list: Sequence[str | Image.Image], seed: int = 42) -> Image.Image:
        """The captioned image. Raises ItemFailed when there is no input image."""
        source, instruction = last_image(input_list)
        width, height = source.size
        picture = source.resize((max(1, width * 3 // 4), max(1, height * 3 // 4)), Image.Resampling.LANCZOS)
        image = Image.new("RGB", source.size, _tint(random.Random(f"{seed}:{instruction}")))
        image.paste(picture, ((width - picture.width) // 2, 0))
        margin = round(_MARGIN * min(source.size))
        self._typesetter.draw(
            image, (margin, picture.height + margin // 2, width - margin, height), [instruction]
        )
        return image


class ReferenceTypesetSubject(ReferenceTypeset):
    """Subject-driven: the text that the prompt asks for, in the size of text to image."""

    def generate(self, input_list: Sequence[str | Image.Image], seed: int = 42) -> Image.Image:
        """The typeset text of the prompt. Raises ItemFailed without an image or a prompt."""
        return super().generate(split_subject(input_list).prompt, seed)
