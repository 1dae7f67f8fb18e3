"""Runs the official programs of OneIG-Bench on real grids, with evaluators that look their answers up.

    python -m tests.support.oneig_programs FOLDER

FOLDER holds the official ``scripts``, what the evaluators say of an image by its code (``facts.json``), the names of
all styles (``styles.json``), and the folder of each run with the arguments of its programs (``runs.json``). What they
raised goes to ``outcomes.json``.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import runpy
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

CELL = (32, 16)
_HALF = CELL[0] // 2
_DIGITS = 23  # shades that JPEG at its default quality cannot take for one another


def paint(code: int) -> Image.Image:
    """An image that says ``code`` (0 to 528) after JPEG too: two flat halves, each one block of its own."""
    image = Image.new("RGB", CELL)
    for place, digit in enumerate(divmod(code, _DIGITS)):
        shade = 20 + 10 * digit
        image.paste((shade, shade, shade), (place * _HALF, 0, (place + 1) * _HALF, CELL[1]))
    return image


def read_code(path: str) -> int:
    """The code of the image at ``path``, which must be of the size of one."""
    return _read_code(path, Path(path).stat().st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _read_code(path: str, _changed: int) -> int:
    with Image.open(path) as image:
        if image.size != CELL or image.format != "JPEG":
            raise AssertionError(f"{path} is {image.format} of {image.size}")
        high, low = (image.getpixel((x + _HALF // 2, CELL[1] // 2)) for x in (0, _HALF))
    digits = [round((shade[0] - 20) / 10) for shade in (high, low) if isinstance(shade, tuple)]
    return digits[0] * _DIGITS + digits[1]


class _Scalar:
    def __init__(self, value: float) -> None:
        self._value = value

    def item(self) -> float:
        return self._value


class _Tensor:
    """Whatever the official code moves about and multiplies; ``values`` is the outcome."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = values
        self.T = self

    def to(self, _device: str) -> _Tensor:
        return self

    def __matmul__(self, _other: _Tensor) -> Sequence[float]:
        return self.values


def _install(folder: Path) -> None:
    """Put modules in the place of the models."""
    facts = {int(code): said for code, said in json.loads((folder / "facts.json").read_text()).items()}

    class Judge:
        def __init__(self, _model: str) -> None:
            pass

        def infer_semantic(self, paths: Sequence[str], question: str) -> list[str]:
            return [facts[read_code(path)]["answers"][question] for path in paths]

        def infer_ocr(self, paths: Sequence[str], max_new_tokens: int) -> list[str]:
            return [facts[read_code(path)]["reading"] for path in paths]

    class Similarity:
        def text_img_similarity_score(self, paths: Sequence[str], _text: str) -> list[float] | None:
            # the real one prints what the image processor raises about an empty list
            return [facts[read_code(path)]["similarity"] for path in paths] or None

    def encoder(name: str) -> type:
        class Encoder:
            def __init__(self, **_options: str) -> None:
                pass

            def get_style_embedding(self, path: str) -> _Tensor:
                return _Tensor(facts[read_code(path)][name])

        return Encoder

    def distance(first: _Tensor, second: _Tensor) -> _Scalar:
        return _Scalar(1 - sum(a * b for a, b in zip(first.values, second.values, strict=True)))

    def preprocess(image: Any) -> _Tensor:
        return _Tensor(facts[read_code(image.filename)]["embedding"])

    styles = json.loads((folder / "styles.json").read_text())
    _module("megfile", smart_glob=lambda pattern: sorted(map(str, Path().glob(pattern))), smart_open=open)
    _module("dreamsim", dreamsim=lambda **_options: (distance, preprocess))
    _module("torchvision", disable_beta_transforms_warning=lambda: None)
    _module(
        "torch",
        cuda=types.SimpleNamespace(empty_cache=lambda: None),
        load=lambda *_args, **_options: dict.fromkeys(styles, _Tensor([])),
        max=lambda values: _Scalar(max(values)),
    )
    _module(
        "scripts.utils.inference",
        Qwen2_5VLBatchInferencer=Judge,
        LLM2CLIP=Similarity,
        CSDStyleEmbedding=encoder("csd"),
        SEStyleEmbedding=encoder("se"),
    )
    silent = types.SimpleNamespace(add_column=lambda *_a, **_o: None, add_row=lambda *_a: None)
    _module("rich")
    _module("rich.table", Table=lambda **_options: silent)
    _module("rich.console", Console=lambda: types.SimpleNamespace(print=lambda _table: None))


def _module(name: str, **contents: Any) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(contents)
    sys.modules[name] = module


def _raised(program: Any, arguments: Sequence[str] = ()) -> str:
    sys.argv = ["program", *arguments]
    try:
        program()
    except Exception as error:  # what it is goes to the test
        return type(error).__name__
    return ""


def main() -> None:
    """Run everything."""
    folder = Path(sys.argv[1])
    sys.path.insert(0, str(folder))
    _install(folder)
    outcomes: dict[str, dict[str, str]] = {}
    for run, programs in json.loads((folder / "runs.json").read_text()).items():
        os.chdir(folder / run)
        outcomes[run] = {
            task: _raised(importlib.import_module(f"scripts.{task}.{task}_score").main, arguments)
            for task, arguments in programs.items()
        }
        tables = Path("results")
        written = list(tables.iterdir())
        (tables / "m").mkdir()
        for path in written:
            path.rename(tables / "m" / path.name)
        outcomes[run]["fine_grained"] = _raised(
            functools.partial(runpy.run_path, "fine_grained_analysis.py", run_name="__main__")
        )
    (folder / "outcomes.json").write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main()
