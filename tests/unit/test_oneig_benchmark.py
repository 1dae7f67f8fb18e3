"""OneIG-Bench's questions, answerers and names, on the real prompts; who answers is a fake."""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks.oneig.benchmark import PIXELS, OneIG, OneIGSettings
from benchmarks.oneig.data import CHINESE, ENGLISH
from benchmarks.oneig.scores import check_package
from imageevalkit import registry
from imageevalkit.benchmark.answerer import Answerer
from imageevalkit.benchmark.contract import JUDGE, Answers, ScoredItem, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Encoding, Picture, Question
from imageevalkit.common.errors import CellFailure, UserError
from imageevalkit.common.grids import Grid
from imageevalkit.evaluate.answerers import Answerers, request_hash
from imageevalkit.judges.api import judge_picture
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item, items_of
from imageevalkit.store.results import Evaluator
from tests.support.mirror import use_official_data
from tests.support.oneig_scored import RULES, embedding_text, real_benchmark, real_prompts

STYLED = "081"  # an anime prompt with the style minimalism


class FakeAnswerer(Answerer):
    """Says Yes to everything; its name is all that decides."""

    backend = "openai"

    def __init__(self, name: str, asked: list[str], official: bool = True) -> None:
        self.name, self._asked, self._official = name, asked, official

    @property
    def evaluator(self) -> Evaluator:
        return Evaluator(self.name, self._official)

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


def answered(benchmark: OneIG, one: Item, said: Mapping[str, str], whole: bool = True) -> ScoredItem:
    """Returns the scored item for the replies ``said``, by question; ``whole``: no further question is allowed."""
    answers = {}
    for question in questions_of(benchmark, one):
        if question.name in said:
            answer = Answer(question, said[question.name])
            answers[question.name] = replace(answer, value=benchmark.parse(question, answer))
    score = benchmark.score(one, Answers(answers)) if whole else None
    return ScoredItem(one, one.path, Answers(answers), said, score)


def test_the_model_of_an_item_may_be_named_like_a_repository() -> None:
    assert item("anime", "000").model == "org/m"


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


def test_corrected_rules_turn_an_image_as_its_exif_data_say_and_ask_nothing_else_anew() -> None:
    one = item("anime", "000")
    one.path.parent.mkdir(parents=True)
    turned = Image.Exif()
    turned[0x112] = 6
    Image.effect_noise((64, 32), 80).convert("RGB").save(one.path, exif=turned)
    benchmarks = [real_benchmark(ENGLISH, tasks="alignment,diversity", rules=rules) for rules in RULES]

    def questions(plain: bool) -> list[Question]:
        shown = Picture(one.path, "the same", pixels=PIXELS, plain=plain)
        return [list(each.questions(one, shown, Answers({})))[n] for each in benchmarks for n in (0, -1)]

    # both sides become multiples of 28, and too few of them grow
    sizes = [judge_picture(question.pictures[0]).size for question in questions(plain=False)]
    assert sizes == [(84, 56)] * 2 + [(56, 84)] * 2
    who = Evaluator("someone", official=False)
    assert len({request_hash(question, who) for question in questions(plain=False)}) == 4
    assert len({request_hash(question, who) for question in questions(plain=True)}) == 2
    assert {each.pixels for each in benchmarks} == {PIXELS}, "the judge has the same name"


def test_what_failed_is_a_black_grid_and_what_nobody_tried_is_no_file() -> None:
    """Quirk T3: of a black grid the official program scores the reading before; a missing file it skips."""
    benchmark = real_benchmark(ENGLISH, tasks="text,reasoning", images_per_prompt=1)
    first = answered(benchmark, item("text", "000"), {"text": "Urban Areas"})
    failed = ScoredItem(item("text", "001"), None, Answers({}), {}, None)
    reasoning = failed._replace(item=item("reasoning", "001"))
    untried = [one._replace(attempted=False) for one in (failed, reasoning)]
    with_failed = benchmark.metrics(Scores([first, failed, reasoning]))
    without = benchmark.metrics(Scores([first, *untried]))
    assert with_failed["text"].value == without["text"].value == without["text_official"].value
    assert with_failed["text"].value != with_failed["text_official"].value
    assert with_failed["text_official"].n == 2
    assert "summary.csv" not in benchmark.official_files(Scores([first, failed, reasoning]))


def test_a_lost_answer_takes_an_image_out_of_its_own_task_only() -> None:
    benchmark = real_benchmark(ENGLISH, tasks="alignment,style", images_per_prompt=1)
    one = item("anime", STYLED)
    said = {name: "Yes" for name in names(questions_of(benchmark, one)) if name != "alignment/2"}
    said["style"] = json.dumps({"csd": [0.6, 0.1, 0], "se": [0.4, 0, 0], "se_exact": [0.4, 0, 0]})
    metrics = benchmark.metrics(Scores([answered(benchmark, one, said, whole=False)]))
    assert metrics["alignment"].value is None
    assert metrics["style"].value == pytest.approx(0.5)


def test_what_an_image_is_worth_and_what_there_is_to_read() -> None:
    benchmark = real_benchmark(ENGLISH)
    one = item("anime", STYLED)
    said = dict.fromkeys(names(questions_of(benchmark, one)), "Yes") | {"alignment/1": "No"}
    said["style"] = json.dumps({"csd": [0.6, 0.1, 0], "se": [-0.4, 0, 0], "se_exact": [0.4, 0, 0]})
    said["diversity"] = embedding_text((1.0, 0.0))
    score = answered(benchmark, one, said).score
    assert score is not None
    assert score.values.keys() == {"alignment", "style"} and score.values["style"] == pytest.approx(0.3)
    assert score.keys == {"class_item": "anime", "label": "minimalism"}
    first = next(prompt for prompt in real_prompts(ENGLISH) if prompt.key == ("anime", STYLED)).questions[1]
    assert score.detail == {first: "No", "style": "minimalism", "CSD": "0.6000", "SE": "0.0000"}
    read = answered(benchmark, item("text", "000"), {"text": "Urban", "diversity": said["diversity"]}).score
    assert read is not None and read.values.keys() == {"ED", "CR", "WAC"}
    assert read.detail["read"] == "Urban"


@pytest.mark.parametrize(
    ("class_item", "prompt_id", "name", "text"),
    [
        ("reasoning", "000", "reasoning", '{"official": 0.3}'),
        ("reasoning", "000", "reasoning", '{"official": NaN, "exact": 0.3}'),
        ("reasoning", "000", "reasoning", "so"),
        ("anime", STYLED, "style", '{"csd": [], "se": [1], "se_exact": [1]}'),
        ("anime", STYLED, "style", "[1]"),
        ("text", "000", "diversity", '{"embedding": "?"}'),
        ("text", "000", "diversity", '{"embedding": ""}'),
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


def test_an_embedding_is_read_from_its_reply() -> None:
    benchmark = real_benchmark(ENGLISH, tasks="diversity", images_per_prompt=3)
    vectors = [(1.0, 0.0), (0.0, 1.0), (1.0, 0.0)]
    scores = Scores(
        [
            answered(benchmark, item("object", "000", n), {"diversity": embedding_text(vector)})
            for n, vector in enumerate(vectors, 1)
        ]
    )
    assert scores.items[0].answers["diversity"].value == 2, "the record of the parsed value is short"
    assert benchmark.metrics(scores)["diversity"].value == pytest.approx((1 + 0 + 1) / 3)


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


def test_a_reader_reads_the_file_itself() -> None:
    one = item("text", "004")
    (question,) = questions_of(real_benchmark(ENGLISH, "ppocr", tasks="text"), one)
    (sent,) = question.pictures
    assert (question.text, sent.encoding) == ("", None)
    other = questions_of(real_benchmark(ENGLISH, "ppocr", tasks="text", rules="corrected"), one)
    assert other == [question], "no rule changes what it is asked"


def test_the_summary_tells_rules_and_how_much_was_scored() -> None:
    benchmark = real_benchmark(ENGLISH, tasks="text", rules="corrected", images_per_prompt=1)
    scores = Scores([answered(benchmark, item("text", "000"), {"text": "Urban Areas"})])
    files = benchmark.official_files(scores)
    assert "oneig_text,oneig-41b4983-corrected-1-of-200-prompts,accuracy,gen," in files["summary.csv"]


def test_headlines() -> None:
    benchmark = real_benchmark(ENGLISH)
    assert benchmark.headline[-1] == "oneig_total"
    assert benchmark.official_headline == (
        *("alignment", "text_official", "reasoning_official", "style", "diversity", "oneig_total_official"),
    )
    assert list(real_benchmark(ENGLISH, tasks="style,text").headline) == ["text", "style"]
    assert list(real_benchmark(ENGLISH, rules="corrected").official_headline) == []
    nothing = ScoredItem(item("multilingualism", "000", name="oneig-zh"), None, Answers({}), {}, None)
    assert "diversity/multilingualism" in real_benchmark(CHINESE).metrics(Scores([nothing]))


@pytest.mark.parametrize(
    ("judge", "sampled"),
    [
        ("transformers:qwen2.5-vl-7b", (None, None, {})),
        ("transformers:qwen3-vl-8b", (None, 42, {})),
        ("vllm:qwen2.5-vl-7b", (0.0, None, {"repetition_penalty": 1.05})),
        ("vllm:/models/qwen2.5-vl-7b", (0.0, None, {"repetition_penalty": 1.05})),
        ("openai:qwen2.5-vl-7b", (0.0, None, {})),
        ("vllm:qwen3-vl-8b", (0.0, None, {})),
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
    "given",
    [
        {},
        {"tasks": "style; text", "batch_size": 4},
        {"tasks": "text", "images_per_prompt": 1},
        {"grid": "1,4"},
        {"grid": "3,3", "images_per_prompt": 9},
        {"grid": {"a": "2,2", "b": "1,4"}, "rules": "corrected", "weights": {"se": "/mine"}},
    ],
)
def test_settings_that_were_checked_are_taken_again(given: Mapping[str, Any]) -> None:
    settings = OneIGSettings(**given)
    assert OneIGSettings(**json.loads(json.dumps(asdict(settings)))) == settings


def test_the_grid_of_each_model(tmp_path: Path) -> None:
    settings = OneIGSettings(grid={"a": "2,2", "b": "1,4"})
    assert settings.grids == {"a": Grid(2, 2), "b": Grid(1, 4)}
    assert settings.count == OneIGSettings().count == 4
    assert OneIGSettings(grid="3").count == 9
    with pytest.raises(CellFailure, match=r"the setting grid names a, b, but not org/m"):
        OneIG(settings).find_images(tmp_path, [item("text", "000")])


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"tasks": "alignement"}, r"no task 'alignement' \(did you mean 'alignment'\?\)"),
        ({"images_per_prompt": 0}, r"images_per_prompt and batch_size are whole numbers of at least 1"),
        ({"batch_size": 0}, r"images_per_prompt and batch_size are whole numbers"),
        *(
            ({"tasks": tasks}, f"tasks are '{tasks}': name some of alignment, text,")
            for tasks in ("", " ", ",")
        ),
        ({"grid": "2x2"}, r"grid '2x2' is not rows,cols"),
        ({"grid": ""}, r"grid '' is not rows,cols"),
        ({"grid": "2,2", "images_per_prompt": 9}, r"grid must have 9 cells, the images_per_prompt"),
        ({"grid": {"a": "2,2", "b": "1,2"}}, r"grid must have 4 cells.* of all models"),
        ({"images_per_prompt": 1}, r"no diversity if images_per_prompt is 1"),
    ],
)
def test_settings_that_say_nothing_are_one_line(given: Mapping[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line) as error:
        OneIGSettings(**given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("/nowhere/csd.pth", "the weights 'csd' are not at /nowhere/csd.pth"),
        (
            "~nosuchuser/csd.pth",
            "the weights 'csd' cannot be looked for at ~nosuchuser/csd.pth: RuntimeError",
        ),
        (f"/{'x' * 300}", "the weights 'csd' cannot be looked for at /xxx"),
    ],
)
def test_weights_that_are_not_there_are_told(place: str, line: str) -> None:
    told = registry.measurer_missing("csd+se", {"weights": {"csd": place}})
    assert any(line in one and "\n" not in one for one in told), told


def test_a_folder_of_dreamsim_that_is_not_whole_is_told(tmp_path: Path) -> None:
    [told] = registry.measurer_missing("dreamsim", {"weights": {"dreamsim": str(tmp_path)}})
    assert f"DreamSim's folder {tmp_path} lacks dino_vitb16_pretrain.pth, " in told


def test_without_the_package_that_compares_texts_no_reading_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_package.cache_clear()
    one = item("text", "000")
    with pytest.raises(CellFailure, match=r"oneig: package rapidfuzz is missing .* bash utils/make_env.sh$"):
        questions_of(real_benchmark(ENGLISH, tasks="text"), one)
    other = item("object", "000")
    assert questions_of(real_benchmark(ENGLISH, tasks="alignment,text"), other), "other tasks do without"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda rows: [*rows[:-1], rows[1]], r"prompt \d+ of \w+ occurs twice"),
        (lambda rows: [*rows[:-1], rows[-1][:-1]], "lacks a column"),
        (lambda rows: rows[:-1], "holds 1119 records, not 1120"),
        (lambda rows: [["Category", *rows[0][1:]], *rows[1:]], "'category' is missing"),
    ],
)
def test_wrong_prompts_are_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[list[list[str]]], list[list[str]]],
    says: str,
) -> None:
    use_official_data("oneig", tmp_path, monkeypatch)
    benchmark = OneIG()
    path = benchmark.data / ENGLISH.prompt_file
    with path.open(encoding="utf-8", newline="") as file:
        rows = change(list(csv.reader(file)))
    path.unlink()
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    with pytest.raises(CellFailure, match=says) as error:
        list(benchmark.samples())
    assert str(error.value).endswith("run: bash utils/prefetch.sh --ds_names oneig")


def test_the_first_samples_stand_for_all() -> None:
    samples = list(real_benchmark(ENGLISH, images_per_prompt=2).samples())
    assert len(samples) == 2 * 1120 and len({sample.file for sample in samples}) == len(samples)
    assert [one.file for one in samples[:2]] == [
        f"images/{samples[0].data['class_item']}/{samples[0].data['id']}_{n}.png" for n in (1, 2)
    ]
    assert [one.seed for one in samples[:2]] == [1, 2]
    assert {one.data["class_item"] for one in samples[:10]} == set(ENGLISH.sizes)
    assert len(list(real_benchmark(CHINESE, tasks="style").samples())) == 4 * 114
