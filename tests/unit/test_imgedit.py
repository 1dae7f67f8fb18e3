"""ImgEdit-Bench: what is asked, the grades in a reply, and the scores."""

from __future__ import annotations

import json
import random
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from PIL import Image

from benchmarks.imgedit.benchmark import _NAMED, TYPES, ImgEdit, ImgEditSettings
from imageevalkit import assets
from imageevalkit.benchmark.contract import Answers, Rules, ScoredItem, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, Question, ask
from imageevalkit.common.images import sha256_file
from imageevalkit.extras.adopt.sources import find_images
from imageevalkit.judges.api import read_reply
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from tests.support.function_judge import evaluate, items, use_function_judge, write_images
from tests.support.mirror import KIT, shared_mirror
from tests.support.official_programs import ClientOfOpenAI, request_to, run_program

_FOLDER = "benchmarks/imgedit"
GRADE_NAMES = ("Prompt Compliance", "Visual Naturalness", "Physical & Detail Integrity")
PROMPT = "\n".join(["Grade it.", *(f"{name}: A number from 1 to 5." for name in GRADE_NAMES)])


BENCHMARKS = {rules: ImgEdit(ImgEditSettings(rules=rules)) for rules in get_args(Rules)}


def question(text: str = PROMPT) -> Question:
    return ask("grades", text)


def grade(reply: str, rules: Any = "official") -> float | None:
    """The score of an edit with such a reply; None: it has none."""
    benchmark = BENCHMARKS[rules]
    try:
        value = benchmark.parse(question(), Answer(question(), reply))
    except Unparsed:
        return None
    return benchmark.score(
        item("1", "add"), Answers({"grades": Answer(question(), reply, value=value)})
    ).values["overall"]


def item(key: str, kind: str) -> Item:
    path = Cell("m", "imgedit").folder / f"images/{key}.png"
    return Item(f"images/{key}", path, 42, None, None, {"key": key, "type": kind, "prompt": "Paint it red."})


@pytest.mark.parametrize(
    ("reply", "official", "corrected"),
    [
        ("Prompt Compliance: 5\nVisual Naturalness: 4\nPhysical & Detail Integrity: 4", 4.33, 13 / 3),
        ("Prompt Compliance: 3\nVisual Naturalness: 4/5\nPhysical & Detail Integrity: 2", 2.5, None),
        ("Prompt Compliance: 4.\nVisual Naturalness: 4", 4.0, None),
        ("**Prompt Compliance:** 5", None, None),
        ("Prompt Compliance: 7\nVisual Naturalness: 10", 8.5, None),
        ("Prompt Compliance: 5\nVisual Naturalness: \u00b2", None, None),
        ("", None, None),
    ],
)
def test_the_score_of_an_edit(reply: str, official: float | None, corrected: float | None) -> None:
    assert (grade(reply), grade(reply, "corrected")) == (official, corrected)


def test_grades_are_read_as_the_official_program_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = run_program(*KIT, f"{_FOLDER}/step3_get_avgscore.py", monkeypatch)["extract_scores_and_average"]
    draw, read = random.Random(2), 0
    pieces = ["A: ", "5", "4", "12", ": ", ":", "\n", " ", "- B: ", "x", "\r", "0", "\x0b", "3.", "٣", "²"]
    for _ in range(3_000):
        reply = "".join(draw.choice(pieces) for _ in range(draw.randint(0, 9)))
        ours, official = grade(reply), None
        with suppress(ValueError):  # it ends the official program
            official = theirs(reply)
        assert ours == official, repr(reply)
        read += ours is not None
    assert read > 100


def scored(benchmark: ImgEdit, replies: list[tuple[str, str]]) -> Scores:
    """Returns scored edits of such types with such replies."""
    found = []
    for n, (kind, reply) in enumerate(replies):
        made, score, answers = item(str(n), kind), None, Answers({})
        try:
            value = benchmark.parse(question(), Answer(question(), reply))
            answers = Answers({"grades": Answer(question(), reply, value=value)})
            score = benchmark.score(made, answers).of_item(made.id)
        except Unparsed:
            pass
        status = "judged" if score else "unparsed"
        found.append(ScoredItem(made, made.path, answers, {"grades": reply}, score, status=status))
    return Scores(found)


GRADES = [
    ("add", "a: 5\nb: 4\nc: 4"),
    ("add", "a: 1\nb: 1\nc: 1"),
    ("add", "a: 3\nb: 4/5\nc: 2"),
    ("style", "a: 5\nb: 5\nc: 5"),
    ("style", "a: 5\nb: 5\nc: 4"),
    ("style", "no grade"),
]


def test_types_are_rounded_and_so_is_their_mean() -> None:
    metrics = ImgEdit().metrics(scored(ImgEdit(), GRADES))
    assert {name: metrics[name].value for name in ("add", "style", "overall")} == {
        "add": 2.61,
        "style": 4.83,
        "overall": 3.72,
    }
    assert metrics["overall_official"].value is None  # of so few edits
    assert metrics["overall_unrounded"].value == pytest.approx((7.83 / 3 + 9.67 / 2) / 2)
    assert metrics["style"].n == 2


def test_a_reply_that_stops_the_official_program_leaves_no_official_score(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = run_program(*KIT, f"{_FOLDER}/step3_get_avgscore.py", monkeypatch)["compute_averages"]
    for reply in ("", "no grade", "a: 5", "a: \u00b2", "a: 5\nb: 3\u00b2"):
        stops = False
        try:
            theirs({"1": reply})
        except ValueError:
            stops = True
        metrics = ImgEdit().metrics(scored(ImgEdit(), [*GRADES * 122, *GRADES[:4], ("style", reply)]))
        assert metrics["overall"].value is not None
        assert (metrics["overall_official"].value is None) == stops, reply


FILTERED: dict[str, Any] = {"finish_reason": "content_filter"}


@pytest.mark.parametrize(
    ("content", "choice", "refusal", "counts"),
    [
        ("a: 5", FILTERED, None, True),
        ("a: 5", {"finish_reason": "stop"}, "I cannot rate it.", True),
        ("", {"finish_reason": "length"}, None, True),
        # the official program stops at a null
        (None, {"finish_reason": "length"}, None, False),
    ],
)
def test_officially_the_content_counts_whatever_else_a_reply_says(
    content: str | None, choice: dict[str, Any], refusal: str | None, counts: bool
) -> None:
    message = {"content": content, "refusal": refusal}
    body = json.dumps({"choices": [{**choice, "message": message}]}).encode()
    for rules, expected in (("official", counts), ("corrected", False)):
        benchmark = ImgEdit(ImgEditSettings(rules=rules))  # type: ignore[arg-type]
        vars(benchmark)["prompts"] = {"add": PROMPT}
        vars(benchmark)["_sources"] = {item("1", "add").id: []}
        [asked] = benchmark.questions(item("1", "add"), Picture(Path("1.png"), "ab" * 32), Answers({}))
        answer = read_reply(asked.of_item("1"), body, 0, None)
        assert isinstance(answer, Answer) == expected, rules
        if isinstance(answer, Answer):
            assert answer.text == content


def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The official files, and a stand-in for the one image that the mirror lacks."""
    mirror, known = shared_mirror(), []
    monkeypatch.setattr(assets, "BENCHMARKS", tmp_path)
    for asset in ImgEdit.assets:
        assert isinstance(asset, assets.FileAsset)
        target = tmp_path / "imgedit/data" / asset.path
        target.parent.mkdir(parents=True, exist_ok=True)
        if (mirror / asset.source).exists():
            target.symlink_to(mirror / asset.source)
            known.append(asset)
        else:
            Image.new("RGB", (64, 64), "grey").save(target)
            known.append(asset._replace(digest=sha256_file(target)))
    monkeypatch.setattr(ImgEdit, "assets", tuple(known))


def test_a_judge_sees_the_instruction_the_source_and_the_edit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data(tmp_path, monkeypatch)
    benchmark = ImgEdit()
    made = items(benchmark)
    assert len(made) == 737
    [first] = [one for one in made if one.data["key"] == "1082"]
    [asked] = benchmark.questions(first, Picture(first.path, "ab" * 32), Answers({}))
    [message] = asked.messages
    text, source, edit = message.parts
    assert isinstance(text, str) and "Change the tortoise's shell texture to a smooth surface." in text
    assert isinstance(source, Picture) and source.path.name == "000342021.jpg"
    assert isinstance(edit, Picture) and edit.path == first.path
    assert {source.media_type, edit.media_type} == {"image/png"}
    assert (asked.sampling.max_tokens, asked.sampling.temperature) == (None, None)
    [corrected] = BENCHMARKS["corrected"].questions(first, Picture(first.path, "ab" * 32), Answers({}))
    assert {picture.media_type for picture in corrected.pictures} == {None}  # what the files are
    original = items(ImgEdit(ImgEditSettings(edition="original")))
    differ = {
        a.data["key"] for a, b in zip(made, original, strict=True) if a.data["prompt"] != b.data["prompt"]
    }
    assert len(differ) == 57
    # the names of the grades are in every official prompt
    assert all(len(_NAMED.findall(text)) == 3 for text in benchmark.prompts.values())


def test_the_official_programs_ask_the_same_and_read_our_replies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data(tmp_path, monkeypatch)
    benchmark = ImgEdit()
    made = items(benchmark)
    write_images(made)

    def said(text: str) -> str:
        draw = random.Random(text)
        names = _NAMED.findall(text)
        lines = [f"{name}: {draw.randint(1, 5)}{draw.choice(['', '', '', '/5', '.'])}" for name in names]
        return "\n".join(["Brief reasoning: a: b", *lines]) if draw.random() < 0.95 else "I cannot."

    client = ClientOfOpenAI(lambda request: said(request["messages"][0]["content"][0]["text"]))
    retries = {
        name: lambda *a, **k: lambda call: call
        for name in ("retry", "wait_exponential", "stop_after_attempt")
    }
    step2 = run_program(
        *KIT,
        f"{_FOLDER}/step2_basic_bench.py",
        monkeypatch,
        openai=client.module,
        tenacity=SimpleNamespace(**retries),
    )
    files = {
        "edit_json": benchmark.data / "eval_prompts/basic_edit.json",
        "result_img_folder": made[0].path.parent,
        "origin_img_root": benchmark.data / "imgedit_asset/Benchmark/singleturn",
        "prompts": step2["load_prompts"](benchmark.data / "eval_prompts/prompts.json"),
        "result_json": tmp_path / "imgedit_bench.json",
    }
    sent: dict[str, dict[str, Any]] = {}
    for item in made[::20]:
        [asked] = benchmark.questions(item, Picture(item.path, sha256_file(item.path)), Answers({}))
        edit = {"id": asked.pictures[0].path.relative_to(files["origin_img_root"]).as_posix()}
        edit |= {"prompt": item.data["prompt"], "edit_type": item.data["type"]}
        places = (files["result_img_folder"], files["origin_img_root"], files["prompts"])
        step2["process_single_item"](item.data["key"], edit, *places, "", "")
        assert {"stream": False, **request_to("gpt-4.1", asked)} == client.asked[-1]
        sent[item.id] = client.asked[-1]
    assert len({item.data["type"] for item in made if item.id in sent}) == 9

    monkeypatch.setitem(step2, "image_to_base64", lambda path: "aGVsbG8=")
    step2["process_json"](**files, num_threads=2, api_key="", base_url="")
    use_function_judge(lambda asked: said(str(asked.messages[0].parts[0])), monkeypatch)
    _, result = evaluate(benchmark, made)
    assert result.coverage.unparsed > 10
    cell = Cell("m", "imgedit")
    replies = json.loads((cell.official / "imgedit_bench.json").read_text())
    assert replies == json.loads(files["result_json"].read_text()) and len(replies) == 737

    step3 = run_program(*KIT, f"{_FOLDER}/step3_get_avgscore.py", monkeypatch)
    words = {
        "--input": cell.official / "imgedit_bench.json",
        "--meta_json": files["edit_json"],
        "--output_json": tmp_path / "result.json",
    }
    monkeypatch.setattr(sys, "argv", ["step3", *(str(word) for pair in words.items() for word in pair)])
    step3["main"]()
    theirs = json.loads((tmp_path / "result.json").read_text())
    assert json.loads((cell.official / "result.json").read_text()) == theirs
    ours = {name: result.metrics[name].value for name in TYPES}
    assert ours | {"Overall": result.metrics["overall_official"].value} == theirs


def test_images_made_elsewhere_are_found_by_their_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data(tmp_path, monkeypatch)
    benchmark = ImgEdit()
    made, source = items(benchmark, 9), tmp_path / "made"
    source.mkdir()
    expected = {item.id: source / f"{item.data['key']}.png" for item in made}
    for path in expected.values():
        path.write_bytes(b"")
    found = find_images(source, made, [], benchmark.find_images)
    assert {id: place.path for id, place in found.items()} == expected
