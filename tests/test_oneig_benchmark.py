"""OneIG-Bench's questions, answerers and names, on the real prompts; who answers is a fake."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks.oneig import benchmark as oneig
from benchmarks.oneig.answerers import Answerers
from benchmarks.oneig.benchmark import OneIGBenchmark
from benchmarks.oneig.editions import CHINESE, ENGLISH, Edition
from benchmarks.oneig.questions import ALIGNMENT_PROMPT, TEXT_PROMPT, task_of
from benchmarks.oneig.scored import Task
from benchmarks.oneig.settings import Settings
from eval_models.encoders.embedding import embedding_text
from imageevalkit.benchmark.contract import Judged, Unparsed
from imageevalkit.benchmark.question import Answer, Encoding, Picture, Question, Reply
from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item, items_of
from imageevalkit.cell.results import Evaluator
from imageevalkit.errors import UserError
from tests.support.oneig_scored import real_prompts

TEMPLATES = {ALIGNMENT_PROMPT: "{question}. Yes or no?", TEXT_PROMPT: "Read."}
STYLED = "081"  # an anime prompt with the style minimalism


class FakeAnswerer:
    """Says of a question what ``say`` says; its name is all that decides."""

    def __init__(self, name: str, say: Callable[[Question], str] = lambda question: "Yes") -> None:
        self.evaluator = Evaluator(name, official=True)
        self.asked: list[str] = []
        self._say = say

    def ask(self, questions: Sequence[Question], workers: int) -> Iterator[Answer]:
        for question in questions:
            self.asked.append(question.name)
            yield Answer(question, Reply(self._say(question)))


class FakeJudge(FakeAnswerer):
    """The official judge, but behind an API."""

    label, backend, is_official = "judge/openai", "openai", True

    def has_answered(self) -> None:
        pass


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., OneIGBenchmark]:
    """Makes a benchmark with ``settings``; with fakes for all answerers unless ``judge`` is a real one's name."""

    def made(edition: Edition = ENGLISH, judge: str = "", **settings: Any) -> OneIGBenchmark:
        monkeypatch.setattr(oneig, "read_prompts", lambda folder, of: real_prompts(of))
        monkeypatch.setattr(oneig.judge_prompts, "load", lambda name: TEMPLATES)
        if not judge:
            by_task: dict[Task, Any] = {task: FakeAnswerer(task) for task in Settings.of(settings).tasks}
            answerers = Answerers(by_task, FakeJudge("judge"))  # type: ignore[arg-type]
            monkeypatch.setattr(oneig, "answerers", lambda *_: answerers)
        return OneIGBenchmark(edition, Settings.of(settings), judge)

    return made


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


def names(questions: Sequence[Question]) -> list[str]:
    return [question.name for question in questions]


def test_the_model_of_an_item_may_be_named_like_a_repository() -> None:
    assert item("anime", "000").model == "org/m"


def test_what_is_asked_about_an_image_of_each_class(make: Callable[..., OneIGBenchmark]) -> None:
    benchmark = make()
    numbers = [f"alignment/{n}" for n in range(1, 21)]
    asked = {
        name: names(benchmark.questions(one, picture(one)))
        for name, one in {
            "plain": item("anime", "000"),
            "styled": item("anime", STYLED),
            "text": item("text", "004"),
            "reasoning": item("reasoning", "000"),
        }.items()
    }
    assert asked["plain"] == [*numbers, "diversity"]
    assert [n for n in asked["styled"] if task_of(n) != "alignment"] == ["style", "diversity"]
    assert asked["text"] == ["text", "diversity"]
    assert asked["reasoning"] == ["reasoning", "diversity"]
    assert names(make(tasks="style").questions(item("anime", "000"), picture(item("anime", "000")))) == []


def test_the_words_and_the_picture_of_each_question(make: Callable[..., OneIGBenchmark]) -> None:
    benchmark = make()
    by_name = {
        question.name: question
        for one in (item("anime", STYLED), item("text", "004"), item("reasoning", "000"))
        for question in benchmark.questions(one, picture(one))
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


def test_a_black_image_is_padding_officially(make: Callable[..., OneIGBenchmark]) -> None:
    black, white, image = item("text", "000", 1), item("text", "000", 2), item("text", "000", 3)
    official, corrected = make(tasks="text"), make(tasks="text", rules="corrected")
    assert official.questions(black, picture(black, "black")) == []
    assert names(official.questions(white, picture(white, "white"))) == ["text"]
    assert names(corrected.questions(black, picture(black, "black"))) == ["text"]
    reply = {"text": Reply("Urban Areas")}
    judged = [
        Judged(black, black.path, {}, {}, official.score(black, {}, {})),
        *(
            Judged(
                one,
                one.path,
                reply,
                {"text": "Urban Areas"},
                official.score(one, {"text": "Urban Areas"}, reply),
            )
            for one in (white, image)
        ),
    ]
    assert official.aggregate(judged)["text"].n == 1
    assert any("1 image is entirely black: left out" in note for note in official.notes(judged))
    (sample,) = json.loads(official.official_files(judged)["oneig_text.json"])["details"]
    assert [one["grid_idx"] for one in sample["ocr_details"]] == [1, 2]


def text_read(benchmark: OneIGBenchmark, one: Item, reading: str) -> Judged:
    reply, parsed = {"text": Reply(reading)}, {"text": reading}
    return Judged(one, one.path, reply, parsed, benchmark.score(one, parsed, reply))


def test_what_failed_is_a_black_grid_and_what_nobody_tried_is_no_file(
    make: Callable[..., OneIGBenchmark],
) -> None:
    """Quirk T3: of a black grid the official program scores the reading before; a missing file it skips."""
    benchmark = make(tasks="text,reasoning", images_per_prompt=1)
    first = text_read(benchmark, item("text", "000"), "Urban Areas")
    failed = Judged(item("text", "001"), None, {}, {}, None)
    untried = failed._replace(attempted=False)
    reasoning = Judged(item("reasoning", "001"), None, {}, {}, None)
    with_failed = benchmark.aggregate([first, failed, reasoning])
    without = benchmark.aggregate([first, untried, reasoning._replace(attempted=False)])
    assert with_failed["text"].value == without["text"].value == without["text_official"].value
    assert with_failed["text"].value != with_failed["text_official"].value
    assert with_failed["text_official"].n == 2
    assert "summary.csv" not in benchmark.official_files([first, failed, reasoning])


def test_a_lost_answer_takes_an_image_out_of_its_own_task_only(make: Callable[..., OneIGBenchmark]) -> None:
    benchmark = make(tasks="alignment,style", images_per_prompt=1)
    one = item("anime", STYLED)
    asked = names(benchmark.questions(one, picture(one)))
    style = Reply(json.dumps({"csd": [0.6, 0.1, 0], "se": [0.4, 0, 0], "se_exact": [0.4, 0, 0]}))
    replies = {name: style if name == "style" else Reply("Yes") for name in asked if name != "alignment/2"}
    parsed = {
        question.name: benchmark.parse(question, replies[question.name])
        for question in benchmark.questions(one, picture(one))
        if question.name in replies
    }
    metrics = benchmark.aggregate([Judged(one, one.path, replies, parsed, None)])
    assert metrics["alignment"].value is None
    assert metrics["style"].value == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("class_item", "prompt_id", "name", "text"),
    [
        ("reasoning", "000", "reasoning", '{"official": 0.3}'),
        ("reasoning", "000", "reasoning", '{"official": NaN, "exact": 0.3}'),
        ("anime", STYLED, "style", '{"csd": [], "se": [1], "se_exact": [1]}'),
        ("anime", STYLED, "style", "[1]"),
        ("text", "000", "diversity", '{"embedding": "?"}'),
        ("text", "000", "diversity", '{"embedding": ""}'),
    ],
)
def test_a_record_that_holds_no_numbers_is_no_score(
    make: Callable[..., OneIGBenchmark], class_item: str, prompt_id: str, name: str, text: str
) -> None:
    benchmark, one = make(), item(class_item, prompt_id)
    (question,) = (q for q in benchmark.questions(one, picture(one)) if q.name == name)
    with pytest.raises(Unparsed, match="no numbers of an encoder"):
        benchmark.parse(question, Reply(text))


def test_an_embedding_is_read_from_its_reply(make: Callable[..., OneIGBenchmark]) -> None:
    benchmark = make(tasks="diversity", images_per_prompt=3)
    vectors = [(1.0, 0.0), (0.0, 1.0), (1.0, 0.0)]
    judged = []
    for repetition, vector in enumerate(vectors, 1):
        one = item("object", "000", repetition)
        (question,) = benchmark.questions(one, picture(one))
        reply = Reply(embedding_text(vector))
        parsed = {"diversity": benchmark.parse(question, reply)}
        judged.append(
            Judged(
                one,
                one.path,
                {"diversity": reply},
                parsed,
                benchmark.score(one, parsed, {"diversity": reply}),
            )
        )
    assert benchmark.aggregate(judged)["diversity"].value == pytest.approx((1 + 0 + 1) / 3)


def test_every_answerer_gets_its_own_questions_the_encoders_first(
    make: Callable[..., OneIGBenchmark], monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    found: dict[Task, FakeAnswerer] = {}

    def note(name: str) -> FakeAnswerer:
        return FakeAnswerer(name, lambda question: order.append(name) or "Yes")  # type: ignore[func-returns-value]

    judge = note("judge")
    found = {"diversity": note("dreamsim"), "style": note("style"), "alignment": judge, "text": judge}
    benchmark = make(tasks="alignment,text,style,diversity")
    benchmark._answerers = found
    asked = [
        question
        for one in (item("text", "000"), item("anime", STYLED))
        for question in benchmark.questions(one, picture(one))
    ]
    answers = list(benchmark.ask(asked, 1))
    assert len(answers) == len(asked)
    assert list(dict.fromkeys(order)) == ["dreamsim", "style", "judge"]
    assert {benchmark.answerer(q).id for q in asked} == {"judge", "style", "dreamsim"}
    assert set(found["style"].asked) == {"style"}


def test_the_name_of_a_score_tells_rules_tasks_and_number_of_images(
    make: Callable[..., OneIGBenchmark],
) -> None:
    given: Sequence[Mapping[str, Any]] = (
        {},
        {"rules": "corrected"},
        {"tasks": "alignment,text"},
        {"images_per_prompt": 2},
    )
    benchmarks = [make(**settings) for settings in given]
    assert len({benchmark.evaluator.id for benchmark in benchmarks}) == len(given)
    assert make(grid="2,2").evaluator.id == make().evaluator.id, "how images came here decides nothing"
    assert [benchmark.evaluator.official for benchmark in benchmarks] == [True, False, True, False]
    question = benchmarks[0].questions(item("anime", "000"), picture(item("anime", "000")))[0]
    hashes = {question.request_hash(benchmark.answerer(question)) for benchmark in benchmarks}
    assert len(hashes) == 1, "what was answered once is not asked again for other rules"


def test_a_reader_reads_the_file_itself(make: Callable[..., OneIGBenchmark]) -> None:
    one = item("text", "004")
    (question,) = make(judge="ppocr", tasks="text").questions(one, picture(one))
    (sent,) = question.pictures
    assert (question.text, sent.encoding) == ("", None)
    other = make(judge="ppocr", tasks="text", rules="corrected").questions(one, picture(one))
    assert other == [question], "no rule changes what it is asked"


def test_who_is_official(make: Callable[..., OneIGBenchmark]) -> None:
    """The official code computes on CUDA: LLM2CLIP in float16, not in the CPU's bfloat16."""

    def measured(precision: object, **settings: Any) -> bool:
        benchmark = make(tasks="reasoning", **settings)
        encoder = FakeAnswerer("llm2clip")
        encoder.evaluator = Evaluator("llm2clip", False, {"encoder": {"precision": precision}})
        benchmark._answerers = {"reasoning": encoder}
        return benchmark.evaluator.official

    assert measured({"weights": "bfloat16", "official": "float16"}) is True
    assert measured({"weights": "bfloat16", "official": "bfloat16"}) is False
    assert measured("float32") is True
    assert measured("float32", weights={"se": "/mine"}) is False


def test_the_summary_tells_rules_and_how_much_was_scored(make: Callable[..., OneIGBenchmark]) -> None:
    benchmark = make(tasks="text", rules="corrected", images_per_prompt=1)
    files = benchmark.official_files([text_read(benchmark, item("text", "000"), "Urban Areas")])
    assert "oneig_text,oneig-41b4983-corrected-1-of-200-prompts,accuracy,gen," in files["summary.csv"]


def test_headlines(make: Callable[..., OneIGBenchmark]) -> None:
    assert make().headline[-1] == "oneig_total"
    assert make().official_headline == (
        *("alignment", "text_official", "reasoning_official", "style", "diversity", "oneig_total_official"),
    )
    assert list(make(tasks="style,text").headline) == ["text", "style"]
    assert list(make(rules="corrected").official_headline) == []
    assert "diversity/multilingualism" in make(CHINESE).aggregate(
        [Judged(item("multilingualism", "000", name="oneig-zh"), None, {}, {}, None)]
    )


@pytest.mark.parametrize(
    ("judge", "sampled"),
    [
        ("transformers:qwen2.5-vl-7b", (None, None, {})),
        ("transformers:qwen3-vl-8b", (None, 42, {})),
        ("vllm:qwen2.5-vl-7b", (0.0, None, {"repetition_penalty": 1.05})),
        ("openai:qwen2.5-vl-7b", (0.0, None, {})),
        ("vllm:qwen3-vl-8b", (0.0, None, {})),
    ],
)
def test_how_a_judge_draws(make: Callable[..., OneIGBenchmark], judge: str, sampled: tuple[Any, ...]) -> None:
    """The official judge and AISBench's by their checkpoints' own settings; a server is told to be greedy."""
    benchmark = make(judge=judge, tasks="alignment,text")
    sampling = benchmark.questions(item("text", "000"), picture(item("text", "000")))[0].sampling
    assert (sampling.temperature, sampling.seed, dict(sampling.extra)) == sampled


def test_who_may_judge_what() -> None:
    def check(judge: str, **settings: Any) -> str:
        return oneig.configured(settings).check_judge(judge)

    assert check("") == "transformers:qwen2.5-vl-7b"
    assert check("qwen3-vl-8b") == "transformers:qwen3-vl-8b"
    assert check("ppocr", tasks="text,style") == "ppocr"
    assert check("qwen2.5-vl-7b", tasks="style") == "", "nothing to ask it"
    with pytest.raises(UserError, match="'ppocr' reads text, but alignment needs a judge"):
        check("ppocr")
    with pytest.raises(UserError, match="unknown text reader 'gpt-4p'"):
        check("gpt-4p", tasks="text")
    assert oneig.configured({"tasks": "text"}).uses_encoders is False
    assert oneig.configured({}).uses_encoders is True
