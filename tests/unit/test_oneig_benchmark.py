"""OneIG-Bench's questions, answerers and names, on the real prompts; who answers is a fake."""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks.oneig.benchmark import OneIG, OneIGSettings
from benchmarks.oneig.data import CHINESE, ENGLISH
from benchmarks.oneig.scores import check_package
from imageevalkit import registry
from imageevalkit.benchmark.answerer import Answerer
from imageevalkit.benchmark.contract import JUDGE, Answers, ScoredItem, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Encoding, Picture, Question
from imageevalkit.common.errors import CellFailure, UserError
from imageevalkit.evaluate.answerers import Answerers, request_hash
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item, items_of
from imageevalkit.store.results import Evaluator
from tests.support.mirror import use_official_data
from tests.support.oneig_scored import embedding_text, real_benchmark

STYLED = "081"  # an anime prompt with the style minimalism


class FakeAnswerer(Answerer):
    """Says Yes to everything; its name is all that decides."""

    backend = "openai"

    def __init__(self, name: str, asked: list[str]) -> None:
        self.name, self._asked = name, asked

    @property
    def evaluator(self) -> Evaluator:
        return Evaluator(self.name, official=True)

    def ask(self, questions: Sequence[Question], workers: int = 1) -> Iterator[Answer]:
        for question in questions:
            self._asked.append(f"{self.name} {question.name}")
            yield Answer(question, "Yes")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the questions by evaluator, with fakes of the judge and of all encoders."""
    questions: list[str] = []
    monkeypatch.setattr(registry, "judge", lambda name, *_: FakeAnswerer("judge", questions))
    monkeypatch.setattr(registry, "measurer", lambda name, options: FakeAnswerer(name, questions))
    return questions


@pytest.fixture(autouse=True)
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def item(class_item: str, prompt_id: str, repetition: int = 1, name: str = "oneig") -> Item:
    entry = {
        "prompt": "p",
        "seed": repetition,
        "image_save_path": f"<MODEL_NAME>/{name}/images/{class_item}/{prompt_id}_{repetition}.png",
        "class_item": class_item,
        "id": prompt_id,
        "repetition": repetition,
    }

    class One:
        dataset_task, data = "t2i", (entry,)

    return items_of(One(), Cell("org/m", name))[0]


def picture(of: Item, colour: str | None = None) -> Picture:
    """An image of ``of``, of one ``colour`` if there is one."""
    of.path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", (8, 8), colour or "red")
    if colour is None:
        image.putpixel((1, 1), (0, 9, 9))
    image.save(of.path)
    return Picture(of.path, f"sha of {of.id} {colour}", flat=colour is not None)


def questions_of(benchmark: OneIG, one: Item, colour: str | None = None) -> list[Question]:
    return list(benchmark.questions(one, picture(one, colour), Answers({})))


def names(questions: Iterable[Question]) -> list[str]:
    return [question.name for question in questions]


def answered(benchmark: OneIG, one: Item, said: Mapping[str, str]) -> ScoredItem:
    """Returns the scored item for the replies ``said``, by question."""
    answers = {}
    for question in questions_of(benchmark, one):
        if question.name in said:
            answer = Answer(question, said[question.name])
            answers[question.name] = replace(answer, value=benchmark.parse(question, answer))
    score = benchmark.score(one, Answers(answers))
    return ScoredItem(one, one.path, Answers(answers), said, score)


def test_what_is_asked_about_an_image_of_each_class() -> None:
    benchmark = real_benchmark(ENGLISH)
    numbers = [f"alignment/{n}" for n in range(1, 21)]
    asked = {
        name: questions_of(benchmark, one)
        for name, one in {
            "plain": item("anime", "000"),
            "styled": item("anime", STYLED),
            "text": item("text", "004"),
            "reasoning": item("reasoning", "000"),
        }.items()
    }
    assert names(asked["plain"]) == [*numbers, "diversity"]
    assert [q.name for q in asked["styled"] if q.group != "alignment"] == ["style", "diversity"]
    assert names(asked["text"]) == ["text", "diversity"]
    assert names(asked["reasoning"]) == ["reasoning", "diversity"]
    assert questions_of(real_benchmark(ENGLISH, tasks="style"), item("anime", "000")) == []


def test_the_words_and_the_picture_of_each_question() -> None:
    benchmark = real_benchmark(ENGLISH)
    by_name = {
        question.name: question
        for one in (item("anime", STYLED), item("text", "004"), item("reasoning", "000"))
        for question in questions_of(benchmark, one)
    }
    assert by_name["alignment/1"].text.endswith("?. Yes or no?"), "the official full stop after the question"
    assert by_name["alignment/1"].sampling.max_tokens == 128
    assert by_name["text"].text == "Read."
    assert by_name["text"].sampling.max_tokens == 256, "a text of more than 60 words"
    assert by_name["style"].text == "minimalism"
    assert len(by_name["reasoning"].text) > 200, "the reference answer"
    assert by_name["diversity"].text == ""
    for question in by_name.values():
        (message,) = question.messages
        assert isinstance(message.parts[0], Picture), "the image comes first"
        assert message.parts[0].encoding == Encoding("JPEG"), "what the official splitter saves"


def test_a_black_image_is_padding_officially() -> None:
    black, white, image = item("text", "000", 1), item("text", "000", 2), item("text", "000", 3)
    official = real_benchmark(ENGLISH, tasks="text")
    corrected = real_benchmark(ENGLISH, tasks="text", rules="corrected")
    assert questions_of(official, black, "black") == []
    assert names(questions_of(official, white, "white")) == ["text"]
    assert names(questions_of(corrected, black, "black")) == ["text"]
    scores = Scores(
        [
            ScoredItem(black, black.path, Answers({}), {}, official.score(black, Answers({}))),
            *(answered(official, one, {"text": "Urban Areas"}) for one in (white, image)),
        ]
    )
    assert scores[0].detail == {"left out": "entirely black: padding to the official splitter"}
    assert official.metrics(scores)["text"].n == 1
    assert any("1 image is entirely black: left out" in note for note in official.notes(scores))
    (sample,) = json.loads(official.official_files(scores)["oneig_text.json"])["details"]
    assert [one["grid_idx"] for one in sample["ocr_details"]] == [1, 2]


@pytest.mark.parametrize(
    ("class_item", "prompt_id", "name", "text"),
    [
        ("reasoning", "000", "reasoning", '{"official": NaN, "exact": 0.3}'),
        ("anime", STYLED, "style", '{"csd": [], "se": [1], "se_exact": [1]}'),
        ("text", "000", "diversity", embedding_text((0.0, 0.0))),
    ],
)
def test_a_record_that_holds_no_numbers_is_no_score(
    class_item: str, prompt_id: str, name: str, text: str
) -> None:
    benchmark = real_benchmark(ENGLISH)
    (question,) = (q for q in questions_of(benchmark, item(class_item, prompt_id)) if q.name == name)
    with pytest.raises(Unparsed, match=r"no measurement|no numbers of an encoder"):
        benchmark.parse(question, Answer(question, text))


def test_every_answerer_gets_its_own_questions_the_encoders_first(asked: list[str]) -> None:
    benchmark = real_benchmark(ENGLISH, tasks="alignment,text,style,diversity")
    answerers = Answerers(benchmark)
    questions = [
        q for one in (item("text", "000"), item("anime", STYLED)) for q in questions_of(benchmark, one)
    ]
    assert len(list(answerers.ask(questions))) == len(questions)
    assert list(dict.fromkeys(who.partition(" ")[0] for who in asked)) == ["csd+se", "dreamsim", "judge"]
    assert [what for what in asked if what.startswith("csd+se")] == ["csd+se style"]


def test_the_name_of_a_score_tells_rules_tasks_and_number_of_images(asked: list[str]) -> None:
    given: Sequence[Mapping[str, Any]] = (
        {},
        {"rules": "corrected"},
        {"tasks": "alignment,text"},
        {"images_per_prompt": 2},
    )
    benchmarks = [real_benchmark(ENGLISH, **settings) for settings in given]
    evaluators = [Answerers(benchmark).evaluator for benchmark in benchmarks]
    assert len({evaluator.id for evaluator in evaluators}) == len(given)
    with_grid = Answerers(real_benchmark(ENGLISH, grid="2,2")).evaluator
    assert with_grid == evaluators[0], "how images came here decides nothing"
    assert [evaluator.official for evaluator in evaluators] == [True, False, True, False]
    assert {"tasks": ["alignment", "text"], "rules": "official", "images_per_prompt": 4}.items() <= (
        evaluators[2].details.items()
    )
    question = questions_of(benchmarks[0], item("anime", "000"))[0]
    hashes = {request_hash(question, Answerers(one).of(question).evaluator) for one in benchmarks}
    assert len(hashes) == 1, "what was answered once is not asked again for other rules"
    assert not real_benchmark(ENGLISH, weights={"se": "/mine"}).is_official


def test_the_encoders_get_the_users_weights_and_the_references_of_the_edition() -> None:
    benchmark = real_benchmark(CHINESE, weights={"se": "/mine"}, batch_size=8)
    assert list(benchmark.measurers) == ["reasoning", "style", "diversity", "alignment", "text"]
    name, options = benchmark.measurers["style"]
    assert (name, options["weights"], options["batch_size"]) == ("csd+se", {"se": "/mine"}, 8)
    assert options["references"]["csd"].endswith("benchmarks/oneig_zh/data/CSD_embed.pt")
    assert real_benchmark(ENGLISH, tasks="text").measurers == {"text": JUDGE}


@pytest.mark.parametrize(
    ("judge", "sampled"),
    [
        ("transformers:qwen2.5-vl-7b", (None, None, {})),
        ("transformers:qwen3-vl-8b", (None, 42, {})),
        ("vllm:/models/qwen2.5-vl-7b", (0.0, None, {"repetition_penalty": 1.05})),
        ("openai:qwen2.5-vl-7b", (0.0, None, {})),
    ],
)
def test_how_a_judge_draws(judge: str, sampled: tuple[Any, ...]) -> None:
    """The official judge and AISBench's by their checkpoints' own settings; a server is told to be greedy."""
    benchmark = real_benchmark(ENGLISH, judge, tasks="alignment,text")
    sampling = questions_of(benchmark, item("text", "000"))[0].sampling
    assert (sampling.temperature, sampling.seed, dict(sampling.extra)) == sampled


def test_who_may_judge_what() -> None:
    def judge(name: str, **settings: Any) -> str:
        benchmark = OneIG(OneIGSettings(**settings), name)
        benchmark.check()
        return benchmark.judge

    assert judge("") == "transformers:qwen2.5-vl-7b"
    assert judge("transformers:qwen3-vl-8b") == "transformers:qwen3-vl-8b"
    assert judge("ppocr", tasks="text,style") == "ppocr"
    assert judge("transformers:qwen2.5-vl-7b", tasks="style") == "", "nothing to ask it"
    with pytest.raises(UserError, match=r"unknown weights 'cds' \(did you mean 'csd'\?\)"):
        judge("", weights={"cds": "x"})
    with pytest.raises(UserError, match="'ppocr' reads text, but alignment needs a judge"):
        judge("ppocr")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"tasks": "alignement"}, r"no task 'alignement' \(did you mean 'alignment'\?\)"),
        ({"batch_size": 0}, r"images_per_prompt and batch_size are whole numbers"),
        ({"tasks": ""}, "tasks are '': name some of alignment, text,"),
        ({"grid": "2x2"}, r"grid '2x2' is not rows,cols"),
        ({"grid": "2,2", "images_per_prompt": 9}, r"grid must have 9 cells, the images_per_prompt"),
        ({"images_per_prompt": 1}, r"no diversity if images_per_prompt is 1"),
    ],
)
def test_settings_that_say_nothing_are_one_line(given: Mapping[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line) as error:
        OneIGSettings(**given)
    assert "\n" not in str(error.value)


def test_without_the_package_that_compares_texts_no_reading_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_package.cache_clear()
    one = item("text", "000")
    with pytest.raises(CellFailure, match=r"oneig: package rapidfuzz is missing .* bash utils/make_env.sh$"):
        questions_of(real_benchmark(ENGLISH, tasks="text"), one)
    other = item("object", "000")
    assert questions_of(real_benchmark(ENGLISH, tasks="alignment,text"), other), "other tasks do without"


def test_wrong_prompts_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_official_data("oneig", tmp_path, monkeypatch)
    benchmark = OneIG()
    path = benchmark.data / ENGLISH.prompt_file
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    path.unlink()
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([*rows[:-1], rows[1]])
    with pytest.raises(CellFailure, match=r"prompt \d+ of \w+ occurs twice") as error:
        list(benchmark.samples())
    assert str(error.value).endswith("run: bash eval.sh prefetch --ds_names oneig")


def test_the_first_samples_stand_for_all() -> None:
    samples = list(real_benchmark(ENGLISH, images_per_prompt=2).samples())
    assert len(samples) == 2 * 1120 and len({sample.file for sample in samples}) == len(samples)
    assert [one.file for one in samples[:2]] == [
        f"images/{samples[0].data['class_item']}/{samples[0].data['id']}_{n}.png" for n in (1, 2)
    ]
    assert [one.seed for one in samples[:2]] == [1, 2]
    assert {one.data["class_item"] for one in samples[:10]} == set(ENGLISH.sizes)
    assert len(list(real_benchmark(CHINESE, tasks="style").samples())) == 4 * 114
