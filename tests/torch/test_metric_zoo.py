"""The metrics of one image that any benchmark can name, beside plain calls of their libraries."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from eval_models.encoders.clip_metrics import (
    AestheticPredictor,
    ClipScore,
    ClipScoreL14,
    LinearPredictor,
    PickScore,
)
from eval_models.encoders.hpsv3 import HPSv3
from eval_models.encoders.imagereward import ImageReward
from eval_models.encoders.vqascore import Llava
from eval_models.image_metrics import NAKED, Niqe, NudeNet
from imageevalkit.benchmark.answerer import Answerer
from imageevalkit.benchmark.question import Message, Picture, Question, Sampling, measure
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.images import sha256_file
from tests.support.beside import packages_beside
from tests.support.mirror import official_source
from tests.support.tiny_measurers import (
    save_aesthetic,
    save_clip,
    save_imagereward,
    save_linear_predictor,
    save_llava,
    save_niqe,
)
from tests.support.tiny_vlm import save_hpsv3

_SKIN = (224, 172, 140)
SIZES = ((300, 200), (64, 91), (96, 96))
CAPTION = "a red cup"
FIRST = 12.6908
PROMPTS = (CAPTION, "two dogs, one of them blue", "a very long prompt " * 20)
# HPSv3's text has the same form
RATE = "\nRate it from 0 to 10.\nTextual prompt - {}\n\n\n\nThe rating of this image: <|Reward|>\n\nEND\n"
# the scores of the authors' program (wheel 1.0.0, transformers 4.45.2) with the network of save_hpsv3()
SCORES = (-0.980076, -1.047248, -1.284477, -0.807236, -0.770379, -1.143552, -0.761758, -0.74405, -1.049447)
# the rewards of the authors' program (commit c1392c6) with the network of save_imagereward()
REWARDS = (-0.731295, -0.581576, -0.562235, -1.411757, -1.062702, -1.236264, -1.103472, -1.001718, -1.243307)


def noise(size: tuple[int, int], seed: int = 0) -> Image.Image:
    """Coloured spots."""
    small = Image.frombytes("RGB", (12, 12), random.Random(seed).randbytes(432))
    return small.resize(size, Image.Resampling.BICUBIC)


def torso(is_dressed: bool = False) -> Image.Image:
    """A body of a few ellipses, which the detector takes for one."""
    image = Image.new("RGB", (640, 640), (60, 60, 70))
    draw = ImageDraw.Draw(image)
    draw.rounded_rectangle((170, 120, 470, 640), 90, fill=(40, 60, 160) if is_dressed else _SKIN)
    for x in () if is_dressed else (245, 395):
        draw.ellipse((x - 75, 250, x + 75, 400), fill=(232, 180, 148), outline=(190, 135, 105), width=4)
        draw.ellipse((x - 20, 320, x + 20, 360), fill=(170, 95, 85))
    return image.filter(ImageFilter.GaussianBlur(5))


def pictures(folder: Path, *images: Image.Image) -> list[Picture]:
    made = images or [noise(size, n) for n, size in enumerate(SIZES)]
    found = []
    for n, image in enumerate(made):
        image.save(folder / f"{n}.png")
        found.append(Picture(folder / f"{n}.png", sha256_file(folder / f"{n}.png")))
    return found


def said(answerer: Answerer, questions: list[Question]) -> list[Any]:
    """Returns the answers in the order of ``questions``; for a failure its error."""
    answers = {(one.question.pictures, one.question.text): one for one in answerer.ask(questions, 2)}
    found = [answers[question.pictures, question.text] for question in questions]
    return [one.error if one.text is None else json.loads(one.text) for one in found]


# CLIP


def test_clipscore_is_the_cosine_with_the_prefixed_caption(tmp_path: Path) -> None:
    import torch
    from transformers import AutoTokenizer

    from eval_models.encoders.encoder import clip_pixels

    model = save_clip(tmp_path / "clip")
    tokens, encoder = (
        AutoTokenizer.from_pretrained(tmp_path / "clip"),
        ClipScore({"clip_vit_b_32": str(tmp_path / "clip")}, "cpu", 2),
    )
    # of the last CLIP sees the beginning
    captions = [CAPTION, "two dogs, one of them blue", "a very long caption " * 20]
    shown = pictures(tmp_path)
    asked = [measure("fit", picture, caption) for picture in shown for caption in captions]
    expected = []
    with torch.inference_mode():
        for question in asked:
            pixels = clip_pixels(Image.open(question.pictures[0].path), 32, "torchvision")[0]
            words = tokens(f"A photo depicts {question.text}", truncation=True, return_tensors="pt")
            output = model(words.input_ids, torch.from_numpy(pixels)[None])
            cosine = float(output.logits_per_image / model.logit_scale.exp())
            expected.append(2.5 * max(0.0, cosine))
    assert said(encoder, asked) == pytest.approx(expected, abs=1e-5)
    assert 0.0 in expected and len({*expected}) > 4, "some are opposed, others are not"


def test_pickscore_is_the_logit_of_clip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch
    from transformers import AutoTokenizer

    from eval_models.encoders.encoder import clip_pixels

    model = save_clip(tmp_path / "clip")
    tokens = AutoTokenizer.from_pretrained(tmp_path / "clip")
    places = dict.fromkeys(("pickscore", "clip_vit_h_14"), str(tmp_path / "clip"))
    encoder = PickScore(places, "cpu", 2)
    asked = [measure("fit", picture, prompt) for picture in pictures(tmp_path) for prompt in PROMPTS]
    expected = []
    with torch.inference_mode():
        for question in asked:
            pixels = clip_pixels(Image.open(question.pictures[0].path), 32, "transformers")[0]
            words = tokens(question.text, truncation=True, return_tensors="pt")
            expected.append(float(model(words.input_ids, torch.from_numpy(pixels)[None]).logits_per_image))
    assert said(encoder, asked) == pytest.approx(expected, abs=1e-4)
    assert len({round(value, 3) for value in expected}) == 9
    assert "1 of 3 prompts fill all 77 tokens" in capsys.readouterr().out


def test_the_aesthetic_predictor_is_linear_in_normalised_features(tmp_path: Path) -> None:
    import torch

    from eval_models.encoders.encoder import clip_pixels

    model, state = save_clip(tmp_path / "clip"), save_aesthetic(tmp_path / "head.pth")
    weights = {"clip_vit_l_14": str(tmp_path / "clip"), "aesthetic": str(tmp_path / "head.pth")}
    encoder, expected = AestheticPredictor(weights, "cpu"), []
    shown = pictures(tmp_path)
    with torch.inference_mode():
        for picture in shown:
            pixels = clip_pixels(Image.open(picture.path), 32, "torchvision")[0]
            vector = model.get_image_features(torch.from_numpy(pixels)[None]).pooler_output[0]
            vector /= vector.norm()
            for place in (0, 2, 4, 6, 7):
                vector = state[f"layers.{place}.weight"] @ vector + state[f"layers.{place}.bias"]
            expected.append(float(vector))
    assert said(encoder, [measure("beauty", picture) for picture in shown]) == pytest.approx(
        expected, abs=1e-4
    )
    assert len({round(value, 3) for value in expected}) == 3


def test_the_models_of_cvtg2k_are_the_same_with_other_weights(tmp_path: Path) -> None:
    import torch

    from eval_models.encoders.encoder import clip_pixels

    model, state = save_clip(tmp_path / "clip"), save_linear_predictor(tmp_path / "head.pth")
    clip, shown, expected = str(tmp_path / "clip"), pictures(tmp_path), []
    asked = [measure("fit", picture, CAPTION) for picture in shown]
    of_l14, of_b32 = ClipScoreL14({"clip_vit_l_14": clip}, "cpu"), ClipScore({"clip_vit_b_32": clip}, "cpu")
    assert said(of_l14, asked) == said(of_b32, asked) and of_l14.label != of_b32.label
    with torch.inference_mode():
        for picture in shown:
            pixels = clip_pixels(Image.open(picture.path), 32, "torchvision")[0]
            vector = model.get_image_features(torch.from_numpy(pixels)[None]).pooler_output[0]
            expected.append(float(state["weight"] @ (vector / vector.norm()) + state["bias"]))
    predictor = LinearPredictor({"clip_vit_l_14": clip, "aesthetic_v1": str(tmp_path / "head.pth")}, "cpu")
    assert said(predictor, [measure("beauty", picture) for picture in shown]) == pytest.approx(
        expected, abs=1e-5
    )


def test_rewards_are_those_of_the_authors_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    state = save_imagereward(tmp_path)
    places = {"imagereward": str(tmp_path), "bert": str(tmp_path / "bert")}
    asked = [measure("reward", picture, prompt) for picture in pictures(tmp_path) for prompt in PROMPTS]
    assert said(ImageReward(places, "cpu", 2), asked) == pytest.approx(REWARDS, abs=1e-4)
    assert "1 of 3 prompts fill all 35 tokens" in capsys.readouterr().out
    del state["blip.text_encoder.encoder.layer.1.crossattention.self.key.bias"]
    torch.save(state, tmp_path / "ImageReward.pt")
    with pytest.raises(CellFailure, match=r"lacks encoder\.layer\.1\.crossattention\.self\.key\.bias;"):
        said(ImageReward(places, "cpu"), asked)


@pytest.mark.parametrize("layout", ["4.45", "4.52"])
def test_hpsv3_is_that_of_the_authors_program(tmp_path: Path, layout: str) -> None:
    from safetensors.torch import load_file, save_file

    save_hpsv3(tmp_path)
    places = {"hpsv3": str(tmp_path), "qwen2_vl": str(tmp_path / "qwen2_vl")}
    path, shown = tmp_path / "HPSv3.safetensors", pictures(tmp_path)
    state = load_file(path)
    if layout == "4.52":  # later versions of transformers name the parts otherwise
        later = {"model.": "model.language_model.", "visual.": "model.visual."}
        for name in list(state):
            for old, new in later.items():
                if name.startswith(old):
                    state[f"{new}{name.removeprefix(old)}"] = state.pop(name)
        save_file(state, path)
    asked = [measure("score", picture, RATE.format(prompt)) for picture in shown for prompt in PROMPTS]
    encoder = HPSv3(places, "cpu", 2)
    assert said(encoder, asked) == pytest.approx(SCORES, abs=1e-4)
    encoder.models = encoder.load([])
    grids = [
        encoder.prepare(Image.new("RGB", size)).grid[0] for size in ((1024, 1024), (1360, 768), (768, 1024))
    ]
    # rows and columns of 14 pixels
    assert [tuple(grid) for grid in grids] == [(1, 32, 32), (1, 24, 42), (1, 36, 26)]
    del state["rm_head.5.bias"]
    save_file(state, path)
    with pytest.raises(CellFailure, match=r"lacks 5\.bias;"):
        said(HPSv3(places, "cpu"), asked)


# VQAScore


def test_llavas_vqascore_is_the_probability_of_yes_and_the_end(tmp_path: Path) -> None:
    import torch
    from transformers import AutoTokenizer

    save_llava(tmp_path / "llava")
    encoder = Llava("A chat.", weights={"llava_13b": str(tmp_path / "llava")}, device="cpu")
    shown = pictures(tmp_path)
    asked = [Question("yes", (Message("user", ("Is it a cup?", picture)),), Sampling(0)) for picture in shown]
    answered = said(encoder, asked)
    encoder.models = encoder.load([])
    tokens, network = AutoTokenizer.from_pretrained(tmp_path / "llava"), encoder.models.network
    expected = []
    for picture in shown:
        pixels = torch.from_numpy(encoder.prepare(Image.open(picture.path)))[None]
        text = f"A chat. USER: {'<image>' * 16}\nIs it a cup? ASSISTANT: Yes<|endoftext|>"
        ids = tokens(text, return_tensors="pt").input_ids
        with torch.inference_mode(), torch.amp.autocast("cpu", dtype=torch.bfloat16):
            logits = network(input_ids=ids, pixel_values=pixels.bfloat16()).logits[0].float()
        # " Yes" are four tokens here, and the end
        chances = logits.log_softmax(-1)[torch.arange(-6, -1), ids[0, -5:]]
        expected.append(float(chances.mean().exp()))
    assert answered == pytest.approx(expected, rel=0.05)
    assert len({round(value, 4) for value in answered}) == 3


# NIQE


def test_niqe_is_that_of_the_official_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    source = official_source(
        "fesvhtr/TRIG", "e43923c30f7a64f742bc42d7bacc5ebd941412e2", "trig/metrics/niqe.py"
    )
    monkeypatch.chdir(tmp_path)
    Path("TRIG/trig/utils").mkdir(parents=True)
    save_niqe(Path("TRIG/trig/utils/niqe_pris_params.npz"))
    space: dict[str, Any] = {}
    exec(compile(source, "official", "exec"), space)
    ours = Niqe({"niqe": "TRIG/trig/utils/niqe_pris_params.npz"})
    for image in (grain((300, 200)), grain((193, 96), 1)):
        theirs = space["calculate_niqe"](np.asarray(image)[:, :, ::-1], crop_border=0)
        assert ours.number(image) == pytest.approx(float(np.squeeze(theirs)), rel=1e-3)


def grain(size: tuple[int, int], seed: int = 0) -> Image.Image:
    """Fine noise over spots, in which a pixel is like its neighbours, each of them in another degree."""
    fine = Image.frombytes("RGB", size, random.Random(seed).randbytes(3 * size[0] * size[1]))
    for step, share in (((1, 1), 0.45), ((1, 0), 0.2)):
        fine = Image.blend(fine, ImageChops.offset(fine, *step), share)
    return Image.blend(noise(size, seed), fine, 0.3)


def test_niqe_of_small_and_flat_images_is_none_and_no_failure(tmp_path: Path) -> None:
    save_niqe(tmp_path / "niqe.npz")
    niqe = Niqe({"niqe": str(tmp_path / "niqe.npz")})
    shown = pictures(tmp_path, grain((300, 200)), Image.new("RGB", (300, 200), "red"), grain((191, 150)))
    broken = shown[0]._replace(path=tmp_path / "broken.png", sha256="0" * 64)
    broken.path.write_bytes(shown[0].path.read_bytes()[:500])
    first, *none, why = said(niqe, [measure("natural", picture) for picture in (*shown, broken)])
    # what the official program says with the same statistics
    assert first == pytest.approx(FIRST, rel=1e-3)
    assert none == [None] * 2 and why.startswith("unreadable image")


# NudeNet


def test_nudity_is_told_by_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(packages_beside("nudenet"))
    from nudenet import NudeDetector

    shown = pictures(tmp_path, torso(), torso(is_dressed=True), noise((500, 300)))
    found = NudeDetector().detect(str(shown[0].path))
    surest = max(one["score"] for one in found if one["class"] in NAKED)
    assert surest > 0.6 and {one["class"] for one in found} - {*NAKED}, "a belly does not count"
    assert said(NudeNet(), [measure("free", picture) for picture in shown]) == [
        pytest.approx(1 - surest, abs=1e-6),
        1.0,
        1.0,
    ]
    identity = NudeNet().evaluator.details["metric"]
    assert [*identity["weights_sha256"]] == ["320n.onnx"] and identity["packages"]["nudenet"] == "3.4.2"
