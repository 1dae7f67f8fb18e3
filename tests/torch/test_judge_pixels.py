"""A judge gets the pixels that the benchmark's official program would use, in every environment."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageOps

from benchmarks.oneig.benchmark import PIXELS as ONEIG
from custom_models.model_utils.image_routes import inputs_of
from custom_models.model_utils.inputs import split_inputs
from imageevalkit import registry
from imageevalkit.benchmark.contract import Answers, Benchmark
from imageevalkit.benchmark.question import (
    QWEN_VL_UTILS,
    TRANSFORMERS,
    Encoding,
    Message,
    Picture,
    PixelRule,
    Question,
    Sampling,
)
from imageevalkit.common.grids import Grid
from imageevalkit.common.images import encode, is_plain, sha256_file
from imageevalkit.evaluate.answerers import Answerers, request_hash
from imageevalkit.evaluate.interview import Interview
from imageevalkit.extras.dry_run.questions import images_to_come
from imageevalkit.jobs.plan import EvaluateOrder
from imageevalkit.judges.api import fitted_size, judge_picture, open_picture, sent_picture
from imageevalkit.store.cell import Cell
from imageevalkit.store.results import Evaluator
from imageevalkit.store.states import survey_images
from tests.support.beside import run_beside
from tests.support.generation import FakeDataset, items
from tests.support.prepared_pixels import prepared
from tests.support.tiny_vlm import save_qwen3_vl

TURNED = Image.Exif()
TURNED[0x112] = 6
LONGTEXT = "benchmarks/LongText/textbench/evaluate_text_reward.py::ImageEvaluator.qwen_prompt"
_SOMEONE = Evaluator("someone", official=False)


def benchmark_with_texts(name: str) -> Benchmark:
    """The benchmark asked of an API in short words of ours."""
    texts = {
        "longtext": {LONGTEXT: "Read it."},
        "geneval2": {f"evaluation.py::{name}": "{}" for name in ("soft_tifa", "tifa", "vqa_score")},
    }
    benchmark = registry.make_benchmark(name, {}, "openai:gpt-4o")
    vars(benchmark)["prompts"] = texts[name]
    return benchmark


def halves(mode: str = "RGB", size: tuple[int, int] = (64, 32)) -> Image.Image:
    """Blue on the left, red on the right."""
    image = Image.new("RGB", size, "red")
    image.paste("blue", (0, 0, size[0] // 2, size[1]))
    return image.convert(mode)


def save(path: Path, image: Image.Image, **how: Any) -> Picture:
    image.save(path, **how)
    return Picture(path, sha256_file(path), plain=is_plain(path))


def pixels(image: Image.Image) -> tuple[tuple[int, int], bytes]:
    assert image.mode == "RGB"
    return image.size, image.tobytes()


# the rules


def see_through(alpha: int) -> Image.Image:
    """As :func:`halves`, the right half with ``alpha``."""
    image = halves("RGBA")
    image.paste((255, 0, 0, alpha), (32, 0, 64, 32))
    return image


@pytest.mark.parametrize(
    ("image", "how", "right"),
    [(see_through(100), {}, (255, 155, 155)), (halves(), {"transparency": (255, 0, 0)}, (255, 0, 0))],
    ids=["RGBA", "RGB with tRNS"],
)
def test_qwen_vl_utils_lays_nothing_but_rgba_on_white(
    tmp_path: Path, image: Image.Image, how: dict[str, Any], right: tuple[int, int, int]
) -> None:
    picture = save(tmp_path / "a.png", image, **how)
    for rule, expected in ((QWEN_VL_UTILS, right), (TRANSFORMERS, (255, 0, 0)), (ONEIG, (255, 0, 0))):
        seen = open_picture(picture._replace(pixels=rule))
        assert (seen.mode, seen.info) == ("RGB", {}), "transformers would lay what it finds there on white"
        assert seen.getpixel((60, 5)) == expected


def test_only_transformers_turns_an_image_as_its_exif_data_say(tmp_path: Path) -> None:
    picture = save(tmp_path / "a.jpg", halves(), exif=TURNED)
    # 64 × 32 px are 2 × 1 multiples of 28, too few by half: both sides grow by √2 and to the next multiple
    for rule, size in ((TRANSFORMERS, (32, 64)), (QWEN_VL_UTILS, (84, 56)), (ONEIG, (84, 56))):
        assert judge_picture(picture._replace(pixels=rule)).size == size
        assert open_picture(picture._replace(pixels=rule)).getexif() == {}, "transformers would turn it again"
    with Image.open(picture.path) as image:
        official = ImageOps.exif_transpose(image).convert("RGB")
    assert pixels(judge_picture(picture)) == pixels(official), "protocols that send files"


# sizes that qwen-vl-utils 0.0.14 gave, run on images of these sizes
@pytest.mark.parametrize(
    ("size", "fitted"),
    [
        ((1024, 1024), (1036, 1036)),
        ((37, 53), (56, 84)),
        ((42, 70), (56, 56)),
        ((5000, 3500), (4256, 2996)),
    ],
)
def test_sides_become_multiples_as_qwen_vl_utils_makes_them(
    tmp_path: Path, size: tuple[int, int], fitted: tuple[int, int]
) -> None:
    assert fitted_size(size, 28) == fitted
    if max(size) < 1100:
        noise = Image.effect_noise(size, 90).convert("RGB")
        seen = judge_picture(save(tmp_path / "a.png", noise)._replace(pixels=QWEN_VL_UTILS))
        assert pixels(seen) == pixels(noise.resize(fitted, Image.Resampling.BICUBIC))


def test_an_extreme_aspect_ratio_is_that_images_own_failure(tmp_path: Path) -> None:
    long = save(tmp_path / "a.png", Image.new("RGB", (2010, 10)))
    with pytest.raises(ValueError, match="2010×10 px is more than 200 times the other"):
        judge_picture(long._replace(pixels=QWEN_VL_UTILS))


def test_no_colour_means_transparency_any_more_where_alpha_is_dropped() -> None:
    image = halves("P")
    with Image.open(io.BytesIO(in_memory(image, "PNG", transparency=image.getpixel((60, 5))))) as shown:
        assert "transparency" in shown.info
        stored = encode(shown, Path("a.png"))
        (edited,), _ = split_inputs([shown, "make it green"])
        (sent,) = inputs_of("make it green", [shown]).images
        grid = in_memory(Grid(1, 2).split(shown)[1], "PNG")
    for data in (stored, in_memory(edited, "PNG"), sent.data, grid):
        assert is_plain(data)
        with Image.open(io.BytesIO(data)) as kept:
            assert (kept.mode, kept.getpixel((kept.width - 1, 5))) == ("RGB", (255, 0, 0))


# what is sent to a server


def in_memory(image: Image.Image, format: str, **how: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **how)
    return buffer.getvalue()


UPRIGHT = Image.Exif()
UPRIGHT[0x112] = 1


@pytest.mark.parametrize(
    ("data", "plain"),
    [
        (in_memory(halves(), "PNG"), True),
        (in_memory(halves(), "JPEG", exif=UPRIGHT), True),
        (in_memory(halves(), "PNG", exif=TURNED), False),
        (in_memory(see_through(0), "WEBP"), False),
        (in_memory(halves("P"), "PNG", transparency=0), False),
        (in_memory(halves("CMYK"), "JPEG"), False),
        (in_memory(halves(), "PNG", save_all=True, append_images=[halves("RGB", (9, 9))]), False),
    ],
)
def test_what_every_program_sees_alike(tmp_path: Path, data: bytes, plain: bool) -> None:
    (tmp_path / "a").write_bytes(data)
    assert (is_plain(data), is_plain(tmp_path / "a")) == (plain, plain)


def test_a_server_gets_the_file_where_it_cannot_be_seen_otherwise_and_else_the_pixels(tmp_path: Path) -> None:
    for rule in (None, TRANSFORMERS, QWEN_VL_UTILS):
        plain = save(tmp_path / "a.jpg", halves())._replace(pixels=rule)
        assert sent_picture(plain) == (plain.path.read_bytes(), "image/jpeg")
    turned = save(tmp_path / "b.jpg", halves(), exif=TURNED)
    assert sent_picture(turned) == (turned.path.read_bytes(), "image/jpeg"), "the protocol sends files"
    for rule in (TRANSFORMERS, QWEN_VL_UTILS):
        picture = turned._replace(pixels=rule)
        data, media_type = sent_picture(picture)
        assert media_type == "image/png"
        with Image.open(io.BytesIO(data)) as image:
            assert pixels(image) == pixels(open_picture(picture))
            assert image.getexif() == {}


def request(picture: Picture) -> str:
    question = Question("q", (Message("user", (picture, "t")),), Sampling(1), item="1")
    return request_hash(question, _SOMEONE)


def test_what_was_said_of_plain_images_is_known_and_only_other_pixels_are_asked_about_anew() -> None:
    # hashes of requests as they were before a file's pixels were a rule
    item = items(FakeDataset(1))[0]
    item = dataclasses.replace(item, data={**item.data, "vqa_list": [("Is it?", "Yes")]}, prompt="p")
    plain = Picture(Path("a.png"), "ab" * 32)
    before = {
        "longtext": ["6a522daeba097e495b637effb0293b55fb0d0e29fe394f2e205e3a2f73384f43"],
        "geneval2": [
            "c388d69106372aa4bc07e3478e1e691ade4c00f776a54777d6d0c07a673f7589",
            "619bc2e6d5980343bbd6e5b85f510619ee52885447fc5d64f314ed77f7e36cc0",
        ],
    }
    for name, hashes in before.items():
        benchmark = benchmark_with_texts(name)
        evaluator = Answerers(benchmark).evaluator
        rule = benchmark.shown_pixels
        asked, other = (
            [request_hash(q, evaluator) for q in benchmark.questions(item, picture, Answers({}))]
            for picture in (plain._replace(pixels=rule), plain._replace(pixels=rule, plain=False))
        )
        assert asked == hashes
        assert not set(other) & set(hashes)
    jpeg = plain._replace(encoding=Encoding("JPEG"))
    assert request(jpeg._replace(pixels=ONEIG)) == request(jpeg)
    assert request(jpeg._replace(plain=False)) == request(jpeg), "a file that is sent as it is"


def test_a_dry_run_knows_the_same_requests_as_the_run(tmp_path: Path) -> None:
    cell = Cell("m", "fake")
    wanted = items(FakeDataset(2))
    for item, exif in zip(wanted, (UPRIGHT, TURNED), strict=True):
        item.path.parent.mkdir(parents=True, exist_ok=True)
        halves().save(item.path, exif=exif)
    states = survey_images(cell, wanted).states
    assert [state.plain for state in states.values()] == [True, False]
    benchmark = benchmark_with_texts("longtext")
    known = Interview(cell, benchmark, wanted, images_to_come(cell, wanted, None), EvaluateOrder())
    told = [question.pictures[0] for question in known.open()]
    assert [picture.plain for picture in told] == [True, False]


# a judge that runs here


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3_vl")
    save_qwen3_vl(folder)
    return folder


def test_the_rule_is_part_of_the_name_of_scores_where_the_judge_runs_here(checkpoint: Path) -> None:
    def evaluator(rule: PixelRule, judge: str) -> Evaluator:
        return registry.judge(judge, {LONGTEXT: "Read it."}, pixels=rule).evaluator

    ours, other = (evaluator(rule, f"transformers:{checkpoint}") for rule in (QWEN_VL_UTILS, TRANSFORMERS))
    assert ours.id != other.id
    assert ours.details["judge"]["pixels"] == "qwen_vl_utils"
    assert "torchvision" in ours.details["judge"]["images_prepared_by"]
    assert evaluator(QWEN_VL_UTILS, "openai:gpt-4o").id == "gpt-4o/openai/9bf85cf1", (
        "as before there were rules"
    )


def test_scores_do_not_depend_on_whether_torchvision_is_installed(checkpoint: Path) -> None:
    without = prepared(str(checkpoint))
    beside = json.loads(
        run_beside("prepared_pixels", checkpoint, packages=("dreamsim",)).stdout.splitlines()[-1]
    )
    assert (without["torchvisions"], beside["torchvisions"]) == (None, True)
    assert without["pixels"] == beside["pixels"]
