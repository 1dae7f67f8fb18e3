"""Runs of eval.sh with the project's own diffusion model, whose last checkpoint is better than an early one."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

from tests.support.checkout import make_checkout, needs_driver_env, run_eval
from tests.support.native_contract import apart

pytestmark = needs_driver_env
WORDS = ("--ds_names", "quickshapes", "--model_names")


def test_two_replicas_make_the_images_of_one(tmp_path: Path) -> None:
    checkout, made = make_checkout(tmp_path / "kit"), []
    for count in ("1", "2"):
        words = (*WORDS, "shapes-tiny", "--limit", "16", "--eval", "false", "--replicas", count)
        run_eval(checkout, *words, status=0, IMAGEEVALKIT_OUTPUT=str(tmp_path / count))
        paths = sorted((tmp_path / count / "shapes-tiny/quickshapes/images").iterdir())
        made.append([Image.open(path).convert("RGB") for path in paths])
    # workers may have other numbers of threads, which round otherwise
    assert max(map(apart, *made)) <= 2
    assert [len(images) for images in made] == [16, 16]


def test_a_comparison_ends_before_all_images_are_made(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path)
    late, early = "shapes-tiny", "shapes-tiny-early"
    done = run_eval(checkout, *WORDS, f"{late};{early}", "--until", f"{late} vs {early}", status=0)
    assert f"overall: {late} > {early}, settled after" in done.stdout
    for model in (late, early):
        result = json.loads((checkout / "output" / model / "quickshapes/result.json").read_text())
        assert result["coverage"]["judged"] == 96 - result["coverage"]["unasked"] <= 48
