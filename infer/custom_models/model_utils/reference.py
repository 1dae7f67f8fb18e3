"""Reference models without a neural network: floors and a ceiling of benchmarks. They run on any machine.

* ``reference-typeset`` draws the requested text in plain type: the ceiling of text benchmarks.
* ``reference-blank`` draws a white image: the floor of benchmarks that reward doing nothing.
* ``reference-noise`` draws uniform random pixels: the floor of benchmarks that need content.
* ``reference-identity`` returns the input image: the floor of edit benchmarks that reward preservation.
"""

from __future__ import annotations

import random
import re
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

from PIL import Image, ImageDraw, ImageFont

from custom_models.model_utils.inputs import split_inputs, split_subject
from imageevalkit.generate.model import ImageModel, ItemFailed, ModelUnusable


class _Reference(ImageModel):
    """Text to image with ``width`` × ``height`` pixels, or the size that the benchmark asks for.

    Prompt and, if honoured, seed decide the image.
    """

    takes_size = True

    def __init__(self, model_path: str | None = None, width: int = 1024, height: int = 1024) -> None:
        self.size = (width, height)

    def draw(self, size: tuple[int, int], text: str, seed: int) -> Image.Image:
        """Returns the image of ``size`` (width, height) for a prompt."""
        raise NotImplementedError

    def generate(self, given: Any, seed: int = 42, size: tuple[int, int] | None = None) -> Image.Image:
        """Returns the image for a prompt."""
        return self.draw(size or self.size, given, seed)


class _Subject(_Reference):
    """Subject-driven generation that ignores the subject: text to image with the prompt."""

    def generate(
        self, given: Sequence[str | Image.Image], seed: int = 42, size: tuple[int, int] | None = None
    ) -> Image.Image:
        """Returns the image for the prompt. Raises ItemFailed without an image or a prompt."""
        return self.draw(size or self.size, split_subject(given).prompt, seed)


class _Edit(_Reference):
    """Edit. The output has the size of the last input image."""

    takes_size = False

    def __init__(self, model_path: str | None = None) -> None:
        super().__init__()

    def edit(self, images: Sequence[Image.Image], text: str, seed: int) -> Image.Image:
        """Returns the image for the input images (RGB) and the instruction."""
        return self.draw(images[-1].size, text, seed)

    def generate(
        self, given: Sequence[str | Image.Image], seed: int = 42, size: tuple[int, int] | None = None
    ) -> Image.Image:
        """Returns the edited image. Raises ItemFailed without an input image. ``size`` has no effect."""
        images, instruction = split_inputs(given)
        if not images:
            raise ItemFailed("the item has no input image to edit", attempts=0)
        return self.edit(images, instruction, seed)


class ReferenceBlank(_Reference):
    """A white image."""

    model_name = "reference-blank"
    seed_honoured = False

    def draw(self, size: tuple[int, int], text: str, seed: int) -> Image.Image:
        return Image.new("RGB", size, "white")


class ReferenceBlankSubject(_Subject, ReferenceBlank):
    """A white image of the size for text to image."""


class ReferenceBlankEdit(_Edit, ReferenceBlank):
    """A white image of the size of the last input image."""


class ReferenceNoise(_Reference):
    """RGB noise. Equal prompts and seeds yield equal noise on every machine."""

    model_name = "reference-noise"
    seed_honoured = True

    def draw(self, size: tuple[int, int], text: str, seed: int) -> Image.Image:
        width, height = size
        # random.Random hashes a str with SHA-512, not with the per-process hash()
        return Image.frombytes("RGB", size, random.Random(f"{seed}:{text}").randbytes(3 * width * height))


class ReferenceNoiseSubject(_Subject, ReferenceNoise):
    """Noise from prompt and seed, of the size for text to image."""


class ReferenceNoiseEdit(_Edit, ReferenceNoise):
    """Noise from instruction and seed, of the size of the last input image."""


class ReferenceIdentity(_Edit):
    """The first input image as RGB with unchanged pixels."""

    model_name = "reference-identity"
    seed_honoured = False

    def edit(self, images: Sequence[Image.Image], text: str, seed: int) -> Image.Image:
        return images[0]


class ReferenceTypeset(_Reference):
    """The quoted strings of the prompt in black on a light background; without quotes the whole prompt.

    Prompt and seed decide a faint tint and an offset of a few pixels.
    """

    model_name = "reference-typeset"
    seed_honoured = True

    def __init__(
        self,
        model_path: str | None = None,
        width: int = 1024,
        height: int = 1024,
        font_path: str | None = None,
    ) -> None:
        super().__init__(width=width, height=height)
        self._typesetter = _Typesetter(font_path)

    def draw(self, size: tuple[int, int], text: str, seed: int) -> Image.Image:
        rng = random.Random(f"{seed}:{text}")
        width, height = size
        image = Image.new("RGB", size, _tint(rng))
        margin = round(_MARGIN * min(size))
        left, top = margin + rng.randrange(_PLACES), margin + rng.randrange(_PLACES)
        box = (left, top, width - margin, height - margin)
        self._typesetter.draw(image, box, quoted_strings(text) or [text])
        return image


class ReferenceTypesetSubject(_Subject, ReferenceTypeset):
    """The text that the prompt asks for, of the size for text to image."""


class ReferenceTypesetEdit(_Edit, ReferenceTypeset):
    """The last input image, scaled down, with the instruction below it. The output has that image's size."""

    def __init__(self, model_path: str | None = None, font_path: str | None = None) -> None:
        ReferenceTypeset.__init__(self, font_path=font_path)

    def edit(self, images: Sequence[Image.Image], text: str, seed: int) -> Image.Image:
        source = images[-1]
        width, height = source.size
        picture = source.resize((max(1, width * 3 // 4), max(1, height * 3 // 4)), Image.Resampling.LANCZOS)
        image = Image.new("RGB", source.size, _tint(random.Random(f"{seed}:{text}")))
        image.paste(picture, ((width - picture.width) // 2, 0))
        margin = round(_MARGIN * min(source.size))
        self._typesetter.draw(image, (margin, picture.height + margin // 2, width - margin, height), [text])
        return image


def _tint(rng: random.Random) -> tuple[int, int, int]:
    red, green, blue = (rng.randint(240, 255) for _ in range(3))
    return red, green, blue


# ---- Type

_LARGEST = 72
_SMALLEST = 8
# All lengths below are in units of the font size.
# PP-OCRv4's recogniser loses spaces of ordinary width between Latin words. This gap makes its detector box
# every word separately. Word recall on 80 English LongText-Bench prompts: 0.997; with a gap of 0.45: 0.988.
_WORD_GAP = 1.5
_LINE_HEIGHT = 1.4
_BLOCK_GAP = 0.4
_MARGIN = 0.04
"""The margin as a share of the canvas's shorter side."""
_PLACES = 8
"""The seed moves the layout by fewer pixels than this."""

_CJK = r"\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
# A line may break between any two CJK characters, but closing punctuation stays with the character before it.
# Latin words are cut after 40 characters, else a single URL would force tiny type.
_TOKEN = re.compile(rf"(\s*)([{_CJK}][，。、；：！？）」』》”’]*|[^\s{_CJK}]{{1,40}})")


class _Token(NamedTuple):
    text: str
    gap: float
    """The space before the token, in font sizes, unless the token starts a line."""
    width: float


_Line = list[_Token]


class _Typesetter:
    """Draws blocks of text in the largest size that fits a box."""

    def __init__(self, font_path: str | None) -> None:
        self._path = font_path or _default_font()
        self._font = cache(self._load)
        # widths are measured once, at a size with negligible rounding, and then scaled
        self._width = lru_cache(maxsize=10_000)(lambda text: self._font(200).getlength(text) / 200)
        self._font(200)

    def _load(self, size: int) -> ImageFont.FreeTypeFont:
        try:
            # not Raqm: it shapes across tokens and is not in every Pillow, and scores must not depend on it
            return ImageFont.truetype(self._path, size, layout_engine=ImageFont.Layout.BASIC)
        except OSError as error:
            raise ModelUnusable(f"reference-typeset: cannot read the font {self._path}: {error}") from error

    def draw(self, image: Image.Image, box: tuple[int, int, int, int], blocks: Sequence[str]) -> None:
        """Draws ``blocks`` in black, one below the other, into ``box`` (left, top, right, bottom; pixels).

        Text that is too long for the smallest type runs out at the bottom.
        """
        left, top, right, bottom = box
        tokens = [[self._tokens(line) for line in block.splitlines()] for block in blocks]

        def is_too_large(size: int) -> bool:
            return not _fits(
                _wrap(tokens, (right - left) / size), (right - left) / size, (bottom - top) / size
            )

        larger = range(_SMALLEST + 1, _LARGEST + 1)
        size = _SMALLEST + bisect_left(larger, True, key=is_too_large)
        font = self._font(size)
        pen = ImageDraw.Draw(image)
        y = float(top)
        for block in _wrap(tokens, (right - left) / size):
            for line in block:
                x = float(left)
                for n, token in enumerate(line):
                    x += token.gap * size if n else 0
                    pen.text((x, y), token.text, font=font, fill="black")
                    x += token.width * size
                y += _LINE_HEIGHT * size
            y += _BLOCK_GAP * size

    def _tokens(self, line: str) -> _Line:
        return [
            _Token(text, _WORD_GAP if space else 0.0, self._width(text))
            for space, text in _TOKEN.findall(line)
        ]


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
    """Breaks every line of every block at ``width`` (in font sizes), first fit."""
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


# ---- Quotations

_CLOSING = {
    '"': '"',
    "＂": "＂",
    "“": "”",
    "„": "“”",
    "「": "」",
    "『": "』",
    "«": "»",
    "‘": "’",
    "'": "'",
}
_SINGLE = "'‘"
# "don't", "the dogs' bowl", "’90s" and "rock 'n' roll" contain no quotations
_OPENING_SINGLE = re.compile(r"(?<![A-Za-z0-9'’])['‘](?=[^\s'’])(?!\d\ds)(?!n['’])")
_CLOSING_SINGLE = re.compile(r"(?<=\S)['’](?![A-Za-z0-9])")


def quoted_strings(prompt: str) -> list[str]:
    """Returns the quoted strings of ``prompt`` in order, without their marks: the text that the image must
    show.

    A nested quotation stays part of the outer one. Known marks: "…", “…”, „…“, 「…」, 『…』, «…», and '…' or ‘…’
    unless they are apostrophes. An unclosed mark is skipped, and so is a straight double mark after a digit
    (inches).
    """
    prompt = _mend_curly(prompt)
    found = []
    at = 0
    while at < len(prompt):
        end = _end_of_quotation(prompt, at)
        if end is None:
            at += 1
            continue
        text = prompt[at + 1 : end].strip()
        if text:
            found.append(text)
        at = end + 1
    return found


def _mend_curly(prompt: str) -> str:
    """Returns ``prompt`` with straight double marks if its curly marks do not pair up (”a”, “a“, “a")."""
    depth = 0
    for char in prompt:
        depth += (char in "“„") - (char == "”")
        if depth < 0:
            break
    return re.sub("[“”]", '"', prompt) if depth and "„" not in prompt else prompt


def _end_of_quotation(prompt: str, at: int) -> int | None:
    """Returns the index of the mark that closes the quotation at ``at``; None if no quotation opens there."""
    mark = prompt[at]
    closing = _CLOSING.get(mark)
    if closing is None:
        return None
    if mark in _SINGLE:
        return _end_of_single(prompt, at)
    if mark == closing:
        inches = at > 0 and prompt[at - 1] in "0123456789"
        end = prompt.find(closing, at + 1)
        return None if inches or end < 0 else end
    depth = 0
    for i in range(at, len(prompt)):
        depth += (prompt[i] == mark) - (prompt[i] in closing)
        if depth == 0:
            return i
    return None


def _end_of_single(prompt: str, at: int) -> int | None:
    if not _OPENING_SINGLE.match(prompt, at):
        return None
    closing = _CLOSING_SINGLE.search(prompt, at + 1)
    if not closing:
        return None
    # an apostrophe that looks like an opening mark ("'tis") is skipped in favour of the next opening mark
    reopened = _OPENING_SINGLE.search(prompt, at + 1, closing.start())
    return None if reopened else closing.start()
