"""T2I-ReasonBench: the two stages of a judge's work, the grades, the tables; beside the official programs."""

from __future__ import annotations

import io
import itertools
import json
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from PIL import Image

from benchmarks.t2ireasonbench.benchmark import DIMENSIONS, T2IReasonBench, T2IReasonBenchSettings
from imageevalkit.benchmark.contract import Answers, Rules, Unparsed
from imageevalkit.benchmark.question import Answer, Message, Picture, Question, Sampling
from imageevalkit.judges.api import judge_picture, sent_picture
from tests.support.function_judge import evaluate, items, use_function_judge, write_images
from tests.support.mirror import KIT, official_source, use_official_data
from tests.support.official_programs import run_program

BENCHMARKS = {rules: T2IReasonBench(T2IReasonBenchSettings(rules=rules)) for rules in get_args(Rules)}


def grades(reply: str, dimension: str = "entity", rules: Any = "official") -> list[float] | None:
    """Those of two questions."""
    asked = Question(
        "main", (Message("user", ("?",)),), Sampling(1000), data=(DIMENSIONS[dimension].braces, 2)
    )
    try:
        return [float(grade) for grade in BENCHMARKS[rules].parse(asked, Answer(asked, reply))]
    except Unparsed:
        return None


INNER = '{"reason": ["a {x} b"], "score": [1, 0.5]}'
BEHIND = '{"reason": ["a"], "score": [1, 0.5]} Note {ok}'


@pytest.mark.parametrize(
    ("reply", "entity", "textual", "corrected"),
    [
        (INNER, None, [1, 0.5], [1, 0.5]),
        (BEHIND, [1, 0.5], None, [1, 0.5]),
        ('{"score": [1, 0.5, 0]}', [1, 0.5, 0], [1, 0.5, 0], None),
        ('{"score": [1, 0.7]}', [1, 0.7], [1, 0.7], None),
        ('{"score": ["1", "0"]}', [1, 0], [1, 0], [1, 0]),
        ('{"score": [1e308, 1e308]}', None, None, None),
        # as the official question shows it
        ('{"reason": ["a"], "score": [1, 0.5]"}', None, None, [1, 0.5]),
        ('"score": [1], then "score": [1, 0]', None, None, None),
    ],
)
def test_the_grades_in_a_reply(reply: str, entity: Any, textual: Any, corrected: Any) -> None:
    assert grades(reply) == entity
    assert grades(reply, "textual") == textual
    assert grades(reply, rules="corrected") == corrected


@pytest.mark.parametrize("program", ["entity", "textual_image"])
def test_replies_are_read_as_the_official_function_reads_them(program: str) -> None:
    source = official_source(*KIT, f"benchmarks/T2I-ReasonBench/evaluation/Qwen2.5-VL/eval_{program}.py")
    begin, end = source.index("def extract_json"), source.index("def ask_qw")
    space: dict[str, Any] = {"re": re, "json": json, "print": lambda *words: None}
    exec(compile(source[begin:end], "official", "exec"), space)
    dimension = {"entity": "entity", "textual_image": "textual"}[program]
    read = 0
    before, values, after = (
        ("", "{", "x\n", "{}", '"score": '),
        ("[1, 0.5]", '["1"]', "[null]", "0"),
        ("", "}", "{}", "[0]", "\nx"),
    )
    for first, value, last in itertools.product(before, values, after):
        reply = f'{first}{{"reason": ["a"], "score": {value}}}{last}'
        try:
            theirs = [float(x) for x in space["extract_json"](reply)["score"]] or None
        except Exception:
            theirs = None
        assert grades(reply, dimension) == theirs, reply
        read += theirs is not None
    assert 10 < read < 90


def said(text: str) -> str:
    """A reply to such a question: a list of as many grades as it has questions, of numbers or of texts."""
    if "score" not in text:
        return 'A cup, "red"\nand {old}.'
    draw = random.Random(text)
    grades = [draw.choice(["1", "0.5", "0", '"1"' if "poster" in text.lower() else "1.0"]) for _ in range(3)]
    return f'Here: {{"reason": ["a, b"], "score": [{", ".join(grades)}]}}'


@pytest.mark.parametrize("name", DIMENSIONS)
def test_the_official_program_asks_the_same_and_writes_the_same_table(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_official_data("t2ireasonbench", tmp_path, monkeypatch)
    benchmark, dimension = T2IReasonBench(), DIMENSIONS[name]
    made = [one for one in items(benchmark) if one.data["dimension"] == name]
    made = [one for one in made if one.data["id"] in (1, 15, 33, 90, 97, 182) or one.data["id"] > 195]
    write_images(made)

    file = f"benchmarks/T2I-ReasonBench/evaluation/Qwen2.5-VL/eval_{dimension.program}.py"
    theirs: list[Any] = []
    loader = SimpleNamespace(from_pretrained=lambda *names, **options: None)
    names = ("Qwen2_5_VLForConditionalGeneration", "AutoProcessor")
    modules: dict[str, Any] = {
        "transformers": SimpleNamespace(**dict.fromkeys(names, loader)),
        "qwen_vl_utils": SimpleNamespace(process_vision_info=None),
    }
    space = run_program(*KIT, file, monkeypatch, **modules)

    def ask_qw(messages: list[Any], processor: None, model: None) -> list[str]:
        theirs.append(messages)
        return [said(messages[-1]["content"][-1]["text"])]

    space["ask_qw"] = ask_qw
    data = benchmark.data
    arguments = {
        "model_name": "m",
        "image_folder": str(made[0].path.parent),
        "output_path": str(tmp_path / "csv"),
        "prompt_json": str(data / f"prompts/{dimension.file}.json"),
        "qs_json": str(data / f"deepseek_evaluation_qs/evaluation_{dimension.program}.json"),
    }
    space["model_score"](space["eval"](SimpleNamespace(**arguments)))

    asked = use_function_judge(lambda question: said(question.messages[-1].parts[-1]), monkeypatch)  # type: ignore[arg-type]
    outcome, _ = evaluate(benchmark, made)
    assert outcome.state == "complete"

    def official(message: Message) -> dict[str, Any]:
        parts = [
            {"type": "text", "text": part}
            if isinstance(part, str)
            else {"type": "image", "image": str(part.path)}
            for part in message.parts
        ]
        return {
            "role": message.role,
            "content": message.parts[0] if message.role == "assistant" else parts,
        }

    ours = [[official(message) for message in question.messages] for question in asked]
    assert sorted(ours, key=str) == sorted(theirs, key=str)
    table = made[0].path.parents[1] / f"official/csv_result/{dimension.file}/m.csv"
    assert table.read_bytes() == (tmp_path / "csv/m.csv").read_bytes()


# width × height that the official processors make of these
@pytest.mark.parametrize(
    ("size", "kit", "original"),
    [((1664, 928), (1316, 728), (1652, 924)), ((384, 384), (448, 448), (392, 392))],
)
def test_the_judge_sees_so_many_pixels_here_and_on_a_server(
    size: tuple[int, int], kit: tuple[int, int], original: tuple[int, int], tmp_path: Path
) -> None:
    path = tmp_path / "0001.png"
    Image.linear_gradient("L").resize(size).convert("RGB").save(path)
    plain = Picture(path, "ab" * 32)
    capped = plain._replace(pixels=T2IReasonBench().pixels)
    whole = plain._replace(pixels=T2IReasonBench(T2IReasonBenchSettings(pixels="original")).pixels)
    assert (judge_picture(capped).size, judge_picture(whole).size) == (kit, original)
    data, media_type = sent_picture(capped)
    with Image.open(io.BytesIO(data)) as sent:
        assert (media_type, sent.tobytes()) == ("image/png", judge_picture(capped).tobytes())
    # without limits the server makes that of the file
    assert sent_picture(whole)[0] == path.read_bytes()
    assert capped.request != whole.request


def test_the_second_stage_quotes_what_was_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_official_data("t2ireasonbench", tmp_path, monkeypatch)
    benchmark = T2IReasonBench()
    made = items(benchmark)
    assert len(made) == 800 and {one.seed for one in made} == {42}
    [item] = [one for one in made if one.id == "entity_reasoning/0015"]
    picture = Picture(item.path, "ab" * 32)
    [first] = benchmark.questions(item, picture, Answers({}))
    assert first.messages[0].parts[0] is picture
    told = Answers({"description": Answer(first, "Two birds.", value="Two birds.")})
    _, *later = benchmark.questions(item, picture, told)
    assert [one.name for one in later] == ["main", "details", "quality"]
    for one in later:
        roles = [message.role for message in one.messages]
        assert roles == ["user", "assistant", "user"] and one.messages[1].parts == ("Two birds.",)
        # as Python prints a dict, criteria that are dicts themselves too
        assert str(item.data["blocks"][one.name]) in one.text
    calls = sum(1 + len(DIMENSIONS[one.data["dimension"]].blocks) for one in made)
    assert calls == 2800
    assert benchmark.pixels.limits == (200704, 1003520)
    assert T2IReasonBench(T2IReasonBenchSettings(pixels="original")).pixels.limits is None
