"""Model classes written word for word as the extension guide says run through ``eval.sh`` unchanged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

from tests.support.checkout import (
    EDITS,
    MANY,
    add_benchmark,
    add_model,
    make_checkout,
    needs_driver_env,
    run_eval,
)

_T2I = '''
from PIL import Image


class GuideT2I:
    def __init__(self, model_path, **kw):
        self.model_name = "guide"
        self.kw = kw

    def generate(self, prompt, seed=42):
        """
        prompt: 文生图prompt
        seed:   inference的随机数种子
        """
        return Image.new("RGB", (self.kw["side"], 32), (len(prompt), seed % 256, 0))
'''
_EDIT = '''
from PIL import Image, ImageOps


class GuideEdit:
    def __init__(self, model_path, **kw):
        self.model_name = "guide"
        self.kw = kw

    def generate(self, input_list, seed=42):
        """
        input_list: (str, PIL.Image) 的 list
        seed:       inference的随机数种子
        """
        (image,) = [part for part in input_list if not isinstance(part, str)]
        return ImageOps.invert(image).resize((self.kw["side"], image.height))
'''


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_checkout(tmp_path / "checkout")


@needs_driver_env
def test_one_name_for_a_class_of_each_task(checkout: Path) -> None:
    for task, class_name, code in (("t2i", "GuideT2I", _T2I), ("edit", "GuideEdit", _EDIT)):
        add_model(checkout, f"guide-{task}", class_name, code, task=task, model_kwargs={"side": 16})
    registry = checkout / "infer/custom_models/load_model.py"
    for task in ("t2i", "edit"):
        line = f"MODEL_SETTINGS[{task!r}]['guide'] = MODEL_SETTINGS[{task!r}]['guide-{task}']\n"
        registry.write_text(registry.read_text() + line)
    add_benchmark(checkout, "many", "Many", MANY)
    add_benchmark(checkout, "edits", "Edits", EDITS, task="edit")
    words = ["--model_names", "guide", "--ds_names", "many;edits", "--eval", "false", "--limit", "3"]
    run = run_eval(checkout, *words, "--custom_model_kwargses", "side=48")
    assert run.returncode == 0, run.stdout + run.stderr
    made = sorted((checkout / "output" / "guide").rglob("*.png"))
    assert [os.fspath(path.relative_to(checkout / "output" / "guide")) for path in made] == [
        *(f"edits/images/{i}.png" for i in range(3)),
        *(f"many/{i:04d}.png" for i in range(3)),
    ]
    for i, path in enumerate(made):
        with Image.open(path) as image:
            image.load()
            assert image.width == 48
            if i < 3:
                # EDITS colours its images (40 i, 90, 20)
                assert image.getpixel((0, 0)) == (255 - 40 * i, 165, 235)


@needs_driver_env
def test_the_plan_names_the_class_that_makes_the_images(checkout: Path) -> None:
    add_model(checkout, "mine", "GuideT2I", _T2I, model_kwargs={"side": 16})
    add_model(checkout, "always-mine", "GuideT2I", _T2I, model_kwargs={"side": 16}, api=False)
    words = [
        "--model_names",
        "mine;always-mine",
        "--ds_names",
        "quicktext",
        "--eval",
        "false",
        "--limit",
        "2",
    ]
    api = {"API_KEY": "EMPTY", "BASE_URL": "http://127.0.0.1:9/v1"}
    here = run_eval(checkout, *words, "--dry_run").stdout
    assert "mine/quicktext: 2 images to generate, 0 to reuse, 0 to repair, by mine.GuideT2I\n" in here
    there = run_eval(checkout, *words, "--dry_run", "--use_api", "true", **api).stdout
    assert "by openai_images.OpenAIImagesT2I at 127.0.0.1\n" in there
    assert there.count("by always_mine.GuideT2I\n") == 1
