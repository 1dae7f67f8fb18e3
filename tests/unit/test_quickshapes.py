"""quickshapes: drawn scenes get their due from the exact judge, and prompts say what scenes show."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from PIL import Image, ImageFilter

from benchmarks.quickshapes.benchmark import QuickShapes
from benchmarks.quickshapes.judge import objects_in
from benchmarks.quickshapes.prompts import (
    CATEGORIES,
    COLOURS,
    Found,
    Request,
    Wanted,
    problem_of,
    prompt_of,
    random_request,
    request_of,
)
from benchmarks.quickshapes.scenes import BACKGROUNDS, SIZE, Thing, arranged, draw, draw_things
from eval_models.ocr import PPOCR
from imageevalkit.benchmark.contract import Answers, Scores
from imageevalkit.benchmark.question import Answer, Picture
from imageevalkit.store.items import Item
from tests.support.function_judge import items

SCENES = [category for category in CATEGORIES if category != "words"]


def as_jpeg(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")


def noisy(image: Image.Image, random: Random) -> Image.Image:
    noise = np.random.default_rng(random.getrandbits(32)).normal(0, random.uniform(2, 14), (SIZE, SIZE, 3))
    return Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))


def blurred(image: Image.Image, random: Random) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(random.uniform(0.3, 1.0)))


DAMAGES: list[Callable[[Image.Image, Random], Image.Image]] = [
    lambda image, random: image,
    noisy,
    blurred,
    lambda image, random: as_jpeg(image, random.randint(40, 90)),
    lambda image, random: as_jpeg(noisy(blurred(image, random), random), random.randint(40, 90)),
]


def seen(thing: Thing) -> Found:
    """Returns the verdict of a perfect judge about a drawn object."""
    return Found(thing.shape, thing.colour, thing.x / SIZE, thing.y / SIZE, 1.0)


def disagreements(count: int) -> list[str]:
    """The verdicts that are not the perfect judge's, of two about each scene: its own request and another one."""
    random, wrong = Random(20261127), []
    for n in range(count):
        request = random_request(random, SCENES[n % len(SCENES)])
        things = arranged(request, random)
        image = DAMAGES[n % 7 % len(DAMAGES)](draw_things(things, random.choice(BACKGROUNDS)), random)
        truth, found = sorted(map(seen, things), key=lambda one: one.x), objects_in(image)
        assert problem_of(request, truth) == ""
        for asked in (request, random_request(random, request.category)):
            if bool(problem_of(asked, truth)) != bool(problem_of(asked, found)):
                wrong.append(f"{prompt_of(asked)}: {problem_of(asked, found)}")
    return wrong


def test_the_judge_agrees_on_two_thousand_scenes() -> None:
    assert len(disagreements(2000)) <= 0.005 * 2000


def test_the_colour_of_words_is_seen() -> None:
    random, wrong = Random(3), []
    for n in range(600):
        request = random_request(random, "words")
        image = DAMAGES[n % len(DAMAGES)](draw(request, random), random)
        if problem := problem_of(request, objects_in(image)):
            wrong.append(f"{prompt_of(request)}: {problem}")
    assert len(wrong) <= 0.005 * 600, wrong


def test_ocr_reads_the_words_of_the_benchmark() -> None:
    reader, random = PPOCR(), Random(4)
    for request in (request_of(item.data) for item in items(QuickShapes()) if "word" in item.data):
        buffer = io.BytesIO()
        draw(request, random).save(buffer, "PNG")
        assert reader.read(buffer.getvalue()) == request.word


TWO = (Wanted("star", "red"), Wanted("ring", "blue"))
STAR, RING = Found("star", "red", 0.3, 0.5, 1.0), Found("ring", "blue", 0.7, 0.6, 1.0)


@pytest.mark.parametrize(
    ("request_", "found", "problem"),
    [
        (Request("colours", TWO), [STAR, RING], ""),
        (Request("colours", TWO[::-1]), [STAR, RING], ""),
        (Request("position", TWO, "left of"), [STAR, RING], ""),
        (Request("position", TWO, "right of"), [STAR, RING], "the first object is not right of the second"),
        # the larger distance decides: the star is 0.4 to the left, but only 0.1 above
        (Request("position", TWO, "above"), [STAR, RING], "the first object is not above the second"),
        (Request("colours", TWO), [STAR], "1 objects, not 2"),
        (Request("colours", TWO), [STAR, RING, RING], "3 objects, not 2"),
        (Request("colours", TWO), [STAR, RING._replace(colour="red")], "objects are red star, red ring"),
        (Request("two objects", (TWO[0], Wanted("ring"))), [STAR, RING._replace(colour="red")], ""),
        (Request("words", word="GO", colour="red"), [STAR, STAR], ""),
        (Request("words", word="GO", colour="red"), [STAR, RING], "letters are blue"),
        (Request("words", word="GO", colour="red"), [], "no letters"),
    ],
)
def test_an_image_is_right_only_with_all_that_is_asked_and_nothing_more(
    request_: Request, found: list[Found], problem: str
) -> None:
    assert problem_of(request_, found) == problem


def test_an_image_of_one_colour_has_no_objects() -> None:
    assert objects_in(Image.new("RGB", (64, 64), "white")) == []


def test_an_object_of_two_colours_has_none() -> None:
    image = np.asarray(draw_things([Thing("square", "blue", 48, 48, 30)], (255, 255, 255))).copy()
    image[:48][(image[:48] != 255).any(-1)] = (252, 212, 40)
    (found,) = objects_in(Image.fromarray(image))
    assert found.colour == "unknown"


def test_the_size_of_an_image_does_not_matter() -> None:
    scene = draw_things([Thing("heart", "pink", 30, 60, 20, 5)], (255, 255, 255))
    (found,) = objects_in(scene.resize((512, 512), Image.Resampling.BICUBIC))
    assert (found.shape, found.colour) == ("heart", "pink")
    assert (found.x, found.y) == pytest.approx((30 / 96, 60 / 96), abs=0.03)


def test_requests_of_one_meaning_have_one_key() -> None:
    star, ring = TWO
    keys = {
        Request("position", (star, ring), "left of").key(),
        Request("position", (ring, star), "right of").key(),
    }
    assert len(keys) == 1
    assert Request("position", (star, ring), "right of").key() not in keys
    assert Request("colours", (star, ring)).key() == Request("colours", (ring, star)).key()


def test_the_benchmark_has_sixteen_prompts_of_each_category() -> None:
    made = items(QuickShapes())
    requests = [request_of(item.data) for item in made]
    assert [one.category for one in requests] == list(CATEGORIES) * 16
    assert [item.prompt for item in made] == [prompt_of(request) for request in requests]
    assert len({request.key() for request in requests}) == 96
    assert all(wanted.colour in ("", *COLOURS) for request in requests for wanted in request.things)


def answer(item: Item, name: str, text: str) -> Answer:
    """The parsed answer to the question ``name`` about an item."""
    benchmark = QuickShapes()
    asked = benchmark.questions(item, Picture(item.path, ""), Answers({}))
    given = Answer(next(one for one in asked if one.name == name), text)
    return replace(given, value=benchmark.parse(given.question, given))


@pytest.mark.parametrize(("read", "correct"), [("GO", 1), ("go", 1), (" G O\n", 1), ("GOO", 0), ("", 0)])
def test_a_word_is_right_if_ocr_reads_it(read: str, correct: int) -> None:
    item = next(item for item in items(QuickShapes()) if item.data.get("word") == "GO")
    letters = json.dumps([Found("ring", item.data["colour"], 0.5, 0.5, 0.8)._asdict()])
    answers = Answers({"objects": answer(item, "objects", letters), "word": answer(item, "word", read)})
    assert QuickShapes().score(item, answers).values == {"correct": correct}


def test_overall_is_the_mean_of_the_categories() -> None:
    found = QuickShapes().metrics(Scores([]))
    assert [*found][:1] == ["overall"]
