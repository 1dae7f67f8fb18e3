"""The style encoders against plain torch, and against the official classes, on tiny random weights."""

from __future__ import annotations

import json
import random
import shutil
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

from eval_models.encoders import style
from eval_models.encoders.style import StyleEncoder, load_csd, style_vectors
from eval_models.encoders.weights import find
from imageevalkit.benchmark.question import Answer, Encoding, Picture, Question
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.images import sha256_file
from tests.support.image_questions import ask_about
from tests.support.mirror import shared_mirror
from tests.support.official_oneig import official_source
from tests.support.openai_visual import openai_visual
from tests.support.tiny_encoders import (
    CSD_WIDTH,
    STYLES,
    csd_state,
    save_csd,
    save_references,
    save_style_encoders,
)
from tests.torch.test_encoder_pixels import torchvision_pixels

_SIDE = 32
_CLOSE = 1e-6


pytestmark = pytest.mark.usefixtures("one_thread")


class Tiny(NamedTuple):
    """Saved encoders, reference files, and questions about images of odd sizes as JPEG, in turn about each style."""

    weights: Mapping[str, str]
    references: Mapping[str, Path]
    questions: Sequence[Question]

    def encoder(self, batch_size: int = 4) -> StyleEncoder:
        return StyleEncoder(self.references, weights=self.weights, device="cpu", batch_size=batch_size)


@pytest.fixture(scope="module", name="tiny")
def fixture_tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("style")
    sizes = [(48, 48), (45, 33), (33, 47), (64, 50), (40, 71), (32, 35)]
    questions = [
        ask_about(save_picture(folder / f"{n:03d}.png", size, n), STYLES[n % len(STYLES)])
        for n, size in enumerate(sizes)
    ]
    return Tiny(save_style_encoders(folder), save_references(folder), questions)


def save_picture(path: Path, size: tuple[int, int], seed: int) -> Picture:
    """Colours that change within an encoder's patch, so that a wrong pixel or order shows."""
    small = Image.frombytes("RGB", (12, 12), random.Random(seed).randbytes(432))
    small.resize(size, Image.Resampling.BICUBIC).save(path)
    return Picture(path, sha256_file(path), encoding=Encoding("JPEG"))


def as_jpeg(picture: Picture, folder: Path) -> Path:
    """The file that the official splitter writes."""
    path = folder / f"{picture.path.stem}.jpg"
    with Image.open(picture.path) as image:
        image.save(path)
    return path


def numbers(answers: Sequence[Answer]) -> dict[str, dict[str, list[float]]]:
    found = {}
    for answer in answers:
        assert answer.text is not None, answer.error
        found[answer.question.item] = json.loads(answer.text)
    assert len(found) == len(answers)
    return found


def plain_csd(pixels: Any, state: Mapping[str, Any]) -> Any:
    """The style vector (1, width) of one image by the official recipe, in plain torch."""
    import torch

    visual = openai_visual(projection=CSD_WIDTH)
    visual.proj = None
    backbone = {k.removeprefix("backbone."): v for k, v in state.items() if k.startswith("backbone.")}
    visual.load_state_dict(backbone)
    return torch.nn.functional.normalize(visual(pixels) @ state["last_layer_style"], dim=1, p=2)


def test_products_with_the_references_of_the_questions_style(tiny: Tiny, tmp_path: Path) -> None:
    import torch
    from transformers import CLIPVisionModelWithProjection
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    found = numbers(list(tiny.encoder().ask(tiny.questions)))
    alone = numbers(list(tiny.encoder(batch_size=1).ask(tiny.questions)))
    csd_references, se_references = (
        torch.load(path, weights_only=True) for path in (tiny.references["csd"], tiny.references["se"])
    )
    se = CLIPVisionModelWithProjection.from_pretrained(tiny.weights["se"]).to(torch.bfloat16).eval()
    processor = CLIPImageProcessorPil(
        size={"shortest_edge": _SIDE}, crop_size={"height": _SIDE, "width": _SIDE}
    )
    vectors = []
    for question in tiny.questions:
        (picture,) = question.pictures
        image = Image.open(as_jpeg(picture, tmp_path)).convert("RGB")
        got = found[question.item]
        with torch.no_grad():
            vector = plain_csd(torch.from_numpy(torchvision_pixels(image, _SIDE))[None], csd_state())
            pixels = processor(images=image, return_tensors="pt").pixel_values.to(torch.bfloat16)
            embed = torch.nn.functional.normalize(se(pixels).image_embeds, p=2, dim=-1)
        vectors.append(vector)
        expected = (vector @ csd_references[question.text].T)[0].tolist()
        assert got["csd"] == pytest.approx(expected, abs=_CLOSE, rel=0)
        # a batch may round other bits of a bfloat16 than one image alone: one step of 2⁻⁸ below 1, seldom two
        product = (embed @ se_references[question.text].T)[0]
        assert got["se"] == pytest.approx(product.tolist(), abs=2**-7, rel=0)
        assert alone[question.item]["se"] == product.tolist(), "as the official class: a batch of one"
        assert got["se"] == torch.tensor(got["se"]).bfloat16().tolist()
        exact = (embed.float() @ se_references[question.text].float().T)[0]
        assert got["se_exact"] == pytest.approx(exact.tolist(), abs=2**-7, rel=0)
        assert got["se_exact"] != got["se"]
    # the check above means something: the images are not all alike
    assert (torch.cat(vectors) @ torch.cat(vectors).T).fill_diagonal_(0).max() < 0.99


def official_csd(visual: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The official class over ``visual``, which its package clip would have loaded."""
    clip = types.ModuleType("clip")
    clip.load = lambda path: (types.SimpleNamespace(visual=visual), None)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "clip", clip)
    module = types.ModuleType("CSD_config")
    exec(official_source("scripts/utils/CSD_config.py"), vars(module))
    return module


def test_like_the_official_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It loads OpenAI's archive, casts it to float32, and lays the checkpoint over it."""
    import torch

    checkpoint = tmp_path / "checkpoint.pth"
    save_csd(checkpoint)
    visual = openai_visual(projection=CSD_WIDTH, seed=5).half()
    official = official_csd(visual.float(), monkeypatch)
    model = official.CSD_CLIP("vit_large", "default")
    saved = torch.load(checkpoint, map_location="cpu", weights_only=False)
    model.load_state_dict(official.convert_state_dict(saved["model_state_dict"]), strict=False)
    pixels = torch.randn(3, 3, _SIDE, _SIDE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        _, _, expected = model(pixels)

    with torch.inference_mode():
        found = style_vectors(load_csd(find("csd", {"csd": str(checkpoint)}), "cpu"), pixels)
    assert torch.allclose(found, expected, atol=_CLOSE, rtol=0)


class _Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("code of the checkpoint runs",)


def test_a_checkpoint_never_runs_code(tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "checkpoint.pth"
    save_csd(path, training={"args": _Harmful()})
    with pytest.raises(CellFailure, match=r"checkpoint\.pth does not load") as error:
        load_csd(find("csd", {"csd": str(path)}), "cpu")
    assert "\n" not in str(error.value)
    assert "code of" not in capsys.readouterr().out


def test_files_that_are_not_those_of_the_encoder_are_one_line(tiny: Tiny, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pth"
    save_csd(path, keep=lambda name: "conv1.weight" not in name)
    (tmp_path / "cut.pth").write_bytes(Path(tiny.weights["csd"]).read_bytes()[:2000])
    wide = save_references(tmp_path, csd_width=CSD_WIDTH + 8)
    for encoder, said in (
        (
            StyleEncoder(tiny.references, weights={**tiny.weights, "csd": str(path)}),
            r"checkpoint\.pth does not",
        ),
        (StyleEncoder(tiny.references, weights={**tiny.weights, "csd": f"{tmp_path}/cut.pth"}), r"cut\.pth"),
        (StyleEncoder(wide, weights=tiny.weights), r"CSD_embed\.pt has no reference vectors of 24 numbers"),
        (
            StyleEncoder({**tiny.references, "se": tmp_path / "gone.pt"}, weights=tiny.weights),
            r"gone\.pt; download",
        ),
    ):
        with pytest.raises(CellFailure, match=rf"^encoders: .*{said}") as error:
            list(encoder.ask(tiny.questions))
        assert "\n" not in str(error.value)


def test_a_style_without_references_is_told_before_an_image_is_encoded(tiny: Tiny) -> None:
    odd = ask_about(tiny.questions[0].pictures[0], "manga", name="odd")
    with pytest.raises(CellFailure, match=r"CSD_embed\.pt has no .* the style 'manga'"):
        next(tiny.encoder().ask([tiny.questions[1], odd]))


def test_it_is_official_and_its_requests_are_those_on_record(tiny: Tiny) -> None:
    encoder = tiny.encoder()
    assert encoder.is_official
    assert not encoder.evaluator.official, "a part of every request, and so it was"
    packages = encoder.evaluator.details["encoder"]["packages"]
    assert packages.keys() == {"torch", "transformers", "numpy", "pillow"}
    assert encoder.label == encoder.evaluator.id == f"csd+se/{encoder.label[-8:]}"


def test_identity_is_of_content_and_settings_only(tiny: Tiny, tmp_path: Path) -> None:
    identity = tiny.encoder().identity
    assert json.loads(json.dumps(identity)) == identity
    assert str(Path(tiny.weights["se"]).parent) not in json.dumps(identity)
    folder = tmp_path / "moved"
    shutil.copytree(Path(tiny.weights["se"]).parent, folder)
    weights = {"csd": str(folder / "checkpoint.pth"), "se": str(folder / "se")}
    references = {kind: folder / path.name for kind, path in tiny.references.items()}
    found = [StyleEncoder(references, weights=weights, batch_size=7).identity]
    assert found == [identity]
    save_csd(folder / "checkpoint.pth", seed=9)
    found.append(StyleEncoder(references, weights=weights).identity)
    save_references(folder, styles=["clay"])
    found.append(StyleEncoder(references, weights=weights).identity)
    assert len({*map(json.dumps, found)}) == 3


def test_the_real_references_load(tiny: Tiny) -> None:
    """They were saved on a GPU; the style names are those of the prompts."""
    import torch

    (csd,) = shared_mirror().glob("OneIG-Bench/OneIG-Benchmark/*/scripts/style/CSD_embed.pt")
    for path, width, dtype, tolerance in (
        (csd, 768, torch.float32, 1e-5),
        (csd.with_name("SE_embed.pt"), 1280, torch.bfloat16, 4e-3),
    ):
        vectors = style.load_references(path, dtype, "cpu")
        assert len(vectors) == 29 and {"3d_rendering", "ukiyo-e"} <= vectors.keys()
        for found in vectors.values():
            assert (tuple(found.shape), found.dtype) == ((3, width), dtype)
            assert torch.allclose(found.float().norm(dim=1), torch.ones(3), atol=tolerance)
