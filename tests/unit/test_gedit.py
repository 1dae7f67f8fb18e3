"""GEdit-Bench: how replies are read, rounds of questions, what the judge sees, and the averages."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from benchmarks.gedit import benchmark as module
from benchmarks.gedit.benchmark import TYPES, GEdit, GEditSettings
from benchmarks.gedit.viescore import GUESS, STOPS, UNUSABLE, Stops, grade, scores_in
from imageevalkit.assets.data import _rows
from imageevalkit.benchmark.contract import Answers, ScoredItem, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, ask
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.images import sha256_file
from imageevalkit.judges.api import fitted_size, judge_picture, sent_picture
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from imageevalkit.store.results import Score
from tests.support import gedit_data
from tests.support.function_judge import evaluate, items, use_function_judge, write_images
from tests.support.mirror import use_official_data
from tests.support.official_programs import request_to, run_program

STEP1X = ("stepfun-ai/Step1X-Edit", "570eba6ebda0c45c013983a483afbf2fd12bfcbc")
QWEN = "vllm:Qwen/Qwen2.5-VL-72B-Instruct-AWQ"
GOOD = '{"score" : [8, 9],\n"reasoning" : "The edit is done."}'
NO, BROKEN = "I cannot rate it.", '{"score": [8, 9], "reasoning": "the "red" car"}'


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gedit_data.write(tmp_path / "gedit/data")
    use_official_data("gedit", tmp_path, monkeypatch)


def corrected(reply: str) -> Any:
    question, settings = ask("semantics", "?"), GEditSettings(rules="corrected")
    try:
        return GEdit(settings).parse(question, Answer(question, reply))
    except Unparsed:
        return None


@pytest.mark.parametrize(
    ("reply", "first", "later", "by_corrected_rules"),
    [
        (GOOD, 8, 8, 8),
        (f"```json\n{GOOD}\n```", 8, 8, 8),
        ('{"score": 7}', 7, 7, None),
        ("Score: [6, 0]", 0, GUESS, 0),
        ('"score": [8, 9], "reason', 8, GUESS, 8),
        ("7", 7, GUESS, None),
        *((one, None, GUESS, None) for one in ("7.5", "11", "[6]", "[6, 0, 3]", NO, "")),
        ("{score: 8, reasoning: ok}", 8, 8, None),
        *((one, None, None, None) for one in ("{score: [8, 9]}", "{'score': [8, 9]}", BROKEN, GOOD + GOOD)),
        ('{"score": [8, 9],}', None, None, None),
        ('{"score": [11, 20]}', 11, 11, None),
        ('{"score": [8.5, 9]}', 8.5, 8.5, 8.5),
        ('{"score": [1, 2, 3]}', 1, 1, None),
        *((f'{{"score": {one}}}', UNUSABLE, UNUSABLE, None) for one in ('["8", "9"]', "null", "[]")),
        ("[06, 5]", STOPS, GUESS, None),
    ],
)
def test_the_lower_score_of_a_reply(reply: str, first: Any, later: Any, by_corrected_rules: Any) -> None:
    assert (grade(reply, False), grade(reply, True), corrected(reply)) == (first, later, by_corrected_rules)


def test_replies_are_read_as_the_official_program_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("regex", reason="no regex, which the official program reads replies with")
    path = "GEdit-Bench/viescore/utils.py"
    theirs = run_program(*STEP1X, path, monkeypatch)["mllm_output_to_dict"]
    draw, pieces = random.Random(3), [*'{}[]:,"7 \n', "score", '"score": ', "[8, 9]", "||V^=^V||", "e\u0301²"]
    for _ in range(3_000):
        reply = draw.choice([GOOD, "{score: 8, reasoning: ok}", "[6, 0]", ""])
        for _ in range(draw.randint(0, 3)):
            place = draw.randint(0, len(reply))
            reply = reply[:place] + draw.choice(pieces) + reply[place + draw.randint(0, 2) :]
        for gives_up in (False, True):
            official: Any = STOPS
            try:
                read = theirs(reply, give_up_parsing=gives_up)
                is_guess = read and isinstance(read, dict) and "guess_if" in str(read.get("reasoning"))
                official = GUESS if is_guess else read and (isinstance(read, dict) and read.get("score"))
            except ValueError:
                pass
            try:
                ours = scores_in(reply, gives_up) or None
            except Unparsed:
                ours = False
            except Stops:
                ours = STOPS
            assert (ours or None) == (official or None), (reply, gives_up)


def said(*scores: int) -> str:
    return json.dumps({"score": scores, "reasoning": "ok"})


@pytest.mark.parametrize(
    "case",
    [  # judge, replies about semantics and quality (the last one repeats), seed; official scores and calls; corrected
        ("", [said(8, 9)], [said(6, 7)], 0, (8, 6, 6.9282), 2, (8, 6, 6.9282)),
        ("", [NO, said(3, 9)], [said(6, 7), said(9, 9)], 0, (3, 9, 5.1962), 4, (3, 6, 4.2426)),
        (QWEN, [NO], [said(6, 7)], 42, (10, 6, 7.7460), 4, None),
        (QWEN, [said(8, 9)], [NO], 42, (8, 10, 8.9443), 4, None),
        (QWEN, [NO], [NO], 42, (10, 1, 3.1623), 4, None),
        ("", ["[6, 0]"], [NO, said(6, 7)], 7, (5, 6, 5.4772), 4, (0, 6, 0)),
        ("", [""], [""], 0, (6, 6, 6), 4, None),
        ("", [said(0, 10)], [said(6, 7)], 0, (0, 6, 0), 2, (0, 6, 0)),
        ("", [said(11, 20)], [said(9, 9)], 0, (11, 9, 9.9499), 2, None),
        ("", [BROKEN] * 3 + [said(8, 9)], [said(6, 7)], 0, (8, 6, 6.9282), 8, None),
        ("", ['{"score": null}', NO, GOOD], [said(6, 7)], 0, (8, 6, 6.9282), 6, (8, 6, 6.9282)),
        ("", [BROKEN], [said(6, 7)], 0, None, 40, None),
    ],
)
def test_rounds_of_questions(data: None, monkeypatch: pytest.MonkeyPatch, case: tuple[Any, ...]) -> None:
    """The worked examples of VIEScore's loop."""
    judge, semantics, quality, seed, official, calls, by_corrected_rules = case
    seeds: list[Any] = []

    def draws(given: Any) -> random.Random:
        seeds.append(given)
        return random.Random(seed)

    monkeypatch.setattr(module, "random", SimpleNamespace(Random=draws))
    for rules, expected in (("official", official), ("corrected", by_corrected_rules)):
        left = {"semantics": list(semantics), "quality": list(quality)}

        def reply(question: Any, left: dict[str, list[str]] = left) -> str:
            replies = left[question.group]
            return replies.pop(0) if len(replies) > 1 else replies[0]

        asked = use_function_judge(reply, monkeypatch)
        benchmark = GEdit(GEditSettings(rules=rules), judge)  # type: ignore[arg-type]
        made = items(benchmark, 1)
        write_images(made)
        if expected:
            _, result = evaluate(benchmark, made, 1)
            [score] = [json.loads(line) for line in Cell("m", "gedit").scores.read_text().splitlines()]
            found = [score["values"][name] for name in ("semantics", "quality", "overall")]
            assert found == pytest.approx(expected, abs=5e-5)
            assert any("random" in one for one in result.notes) == (score["detail"]["guessed"] > 0)
        else:
            with pytest.raises(CellFailure, match="nothing was judged: 1 unparsed"):
                evaluate(benchmark, made, 1)
        if rules == "official":
            assert len(asked) == calls
            assert not judge or set(seeds) == {42}


def test_the_judge_is_sent_what_the_official_program_sends(
    data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = run_program(*STEP1X, "GEdit-Bench/viescore/mllm_tools/openai.py", monkeypatch)
    client = program["GPT4o"].__new__(program["GPT4o"])
    client.use_encode = True
    [item] = items(GEdit(), 1)
    assert item.input_list
    path = tmp_path / "result.png"
    Image.effect_noise((300, 200), 90).save(path)
    source, result = item.input_list[0], Image.open(path).convert("RGB").resize(item.input_list[0].size)
    picture = Picture(path, sha256_file(path))
    semantics, quality = GEdit().questions(item, picture, Answers({}))
    for asked, images in ((semantics, [source, result]), (quality, [result])):
        content = client.prepare_prompt(images, asked.text)
        sent = {"model": "gpt-4.1", "messages": [{"role": "user", "content": content}], "max_tokens": 1400}
        assert request_to("gpt-4.1", asked) == sent
    # the assembled texts of the official program, by their length
    assert len(semantics.text.replace(item.data["prompt"], "<instruction>")) == 1512
    assert len(quality.text) == 1184
    of_qwen, _ = GEdit(None, QWEN).questions(item, picture, Answers({}))
    [message] = of_qwen.messages
    assert message.parts[2] == semantics.text and of_qwen.sampling.max_tokens == 512
    assert [judge_picture(one).size for one in of_qwen.pictures] == [fitted_size(source.size, 28)] * 2
    of_corrected, _ = GEdit(GEditSettings(rules="corrected")).questions(item, picture, Answers({}))
    data_sent, kind = sent_picture(of_corrected.pictures[1])
    with Image.open(io.BytesIO(data_sent)) as image:
        assert kind == "image/png" and image.size == (64, 43), "its own aspect"


def scored(rows: Sequence[tuple[str, str, int, int, bool]]) -> Scores:
    """Returns edits of such types and languages, with semantics, quality, and whether in the intersection."""
    found = []
    for n, (kind, language, semantics, quality, shared) in enumerate(rows):
        item = Item(str(n), Path(f"{n}.png"), 42, None, None, {"language": language, "type": kind})
        values = {"overall": (semantics * quality) ** 0.5, "semantics": semantics, "quality": quality}
        keys = {"language": language, "type": kind, "intersection": shared}
        score = Score(values, keys, {"guessed": 0}).of_item(item.id)
        found.append(ScoredItem(item, item.path, Answers({}), {}, score))
    return Scores(found)


def test_averages_are_those_of_the_official_program() -> None:
    rows = [("background_change", "en", *one) for one in ((9, 4, True), (0, 10, True), (5, 5, False))]
    rows += [("background_change", "cn", 10, 10, True)]
    rows += [("text_change", "en", 7, 7, False), ("text_change", "en", 4, 9, True)]
    others = [one for one in TYPES if one not in ("background_change", "text_change")]
    whole = [*rows, *((one, "en", *two) for one in others for two in ((8, 8, True), (6, 6, False)))]
    part = [one for one in whole if one[0] != "motion_change"] + [("motion_change", "en", 8, 8, False)]

    def triple(given: Sequence[Any], name: str, rules: Any = "official", end: str = "") -> list[float | None]:
        metrics = GEdit(GEditSettings(rules=rules)).metrics(scored(given))
        values = (metrics[f"{name}/{one}{end}"].value for one in ("semantics", "quality", "overall"))
        return [None if value is None else round(value, 3) for value in values]

    assert triple(whole, "en") == [6.652, 7.030, 6.652]
    assert triple(whole, "en_intersection") == [7.318, 8.0, 7.364]
    assert triple(whole, "en", end="/background_change") == [4.667, 6.333, 3.667]
    assert triple(whole, "en_intersection", end="/text_change") == [4.0, 9.0, 6.0]
    assert triple(part, "en") == [6.742, 7.121, 6.742]
    assert triple(part, "en_intersection") == [None, None, None]
    assert triple(part, "en_intersection", "corrected") == [7.25, 8.0, 7.3]
    metrics = GEdit().metrics(scored(whole))
    assert metrics["en/overall_official"].value == metrics["en/overall"].value
    assert metrics["cn/overall_official"].value is None, "ten types have no edit"


def test_edits_are_known_by_type_language_and_key(data: None) -> None:
    made = items(GEdit())
    assert len(made) == 1212
    fewer = items(GEdit(GEditSettings(language="en", edits=604)))
    of_removal = [[one for one in some if one.data["type"] == "subject-remove"] for some in (made, fewer)]
    assert [len(one) for one in of_removal] == [2 * 57, 55]
    path = "images/fullset/background_change/en/4a7d36259ad94d238a6e7e7e0bd6b643"
    assert path in {one.id for one in made}


def test_rows_come_from_arrow_too(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="no pyarrow: requirements/parquet.txt")
    image = {"bytes": gedit_data.image_bytes(1), "path": "1.png"}
    table = pa.Table.from_pylist([{"key": str(n), "input_image": image, "raw": "x"} for n in range(130)])
    with pa.OSFile(str(tmp_path / "0.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    (tmp_path / "images").mkdir()
    rows = [*_rows(tmp_path / "0.arrow", ("key", "input_image"), tmp_path)]
    assert [row["key"] for row in rows] == [str(n) for n in range(130)]
    assert {tuple(row) for row in rows} == {("key", "input_image")}
    assert (tmp_path / rows[0]["input_image"]).read_bytes() == image["bytes"]
