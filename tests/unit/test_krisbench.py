"""KRIS-Bench: how replies are read, what the judge sees, and the means."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from benchmarks.krisbench.benchmark import KrisBench, dual, grade, labelled
from imageevalkit import assets
from imageevalkit.benchmark.contract import Answers, Rules, ScoredItem, Scores, Settings, Unparsed
from imageevalkit.benchmark.question import PILLOW, Answer, Encoding, Picture, ask
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from tests.support import krisbench_data
from tests.support.function_judge import items
from tests.support.mirror import use_official_data
from tests.support.official_programs import ClientOfOpenAI, run_program

KIT = ("open-compass/GenEditEvalKit", "103b2839a92cf5bfebf8d2fe844f03d79cbfa6b3")
BENCHMARKS = {rules: KrisBench(Settings(rules=rules)) for rules in get_args(Rules)}
LIST = "1. Sky: unchanged 2. Car: changed "


@pytest.mark.parametrize(
    ("reply", "common", "knowledge", "instruction", "corrected"),
    [  # KEY is the name of the grade; instruction is that of a dual reply
        ('…{"reasoning": "all same", "KEY": 4}', 4, 4, 4, 4),
        ('{"KEY": 4.5, "reasoning": ""}', 4, 4, 4, None),
        ('{"KEY": "4/5", "reasoning": ""}', 4, 4, None, 4),
        ('{"KEY": 7, "reasoning": ""}', 7, 7, 7, None),
        ('{"KEY": 0, "reasoning": ""}', 0, 0, 0, None),
        ('{"KEY": null, "reasoning": ""} 3', 3, None, None, None),
        ('{ "reasoning": Compared…, 2 chairs moved. "KEY": 4 }', 2, 2, None, 4),
        (LIST + '{ "reasoning": car changed. "KEY": 4 }', 1, 1, None, 4),
        (LIST + '{ "reasoning": "", "KEY": 4 }', 4, 4, 4, 4),
        ('{"reasoning": "Structural coherence: ok (2 hands)", "KEY": 4, }', 2, 2, None, 4),
        ('{"KEY": 2} and {"KEY": 5}', 2, 2, 2, 2),
        ("**KEY**: 4", 4, 4, None, 4),
        ("It is good: 4/5.", 4, 4, None, None),
        ("no", None, None, None, None),
    ],
)
def test_the_grade_of_a_reply(
    reply: str, common: int | None, knowledge: int | None, instruction: int | None, corrected: int | None
) -> None:
    of_single, of_dual = (reply.replace("KEY", f"{name}_score") for name in ("consistency", "instruction"))
    assert grade(of_single, "consistency", "common") == common
    assert grade(of_single, "consistency", "knowledge") == knowledge
    assert dual(of_dual)[0] == instruction
    assert labelled(of_single, "consistency") == corrected


@pytest.mark.parametrize(
    ("reply", "official", "corrected"),
    [
        ("Instruction Score: 4\nKnowledge Score: 2", [4, 2], [4, 2]),
        (
            '{"instruction_score": 4, "instruction_reasoning": 1. Detect… "knowledge_score": 3}',
            [None, None],
            [4, 3],
        ),
        ('{"instruction_score": 4} {"knowledge_score": 3}', [4, None], [4, 3]),
        ('{"instruction_score": 2, "knowledge_score": 5}', [2, 5], [2, 5]),
        ('{"instruction_score": 2}', [2, None], None),
    ],
)
def test_the_grades_of_a_dual_reply(
    reply: str, official: Sequence[Any], corrected: Sequence[Any] | None
) -> None:
    question = ask("dual", "?", data="knowledge")
    value = BENCHMARKS["official"].parse(question, Answer(question, reply))
    assert [value["IF"], value["KP"]] == official
    if corrected is None:
        with pytest.raises(Unparsed, match="no instruction or no knowledge of 1 to 5"):
            BENCHMARKS["corrected"].parse(question, Answer(question, reply))
    else:
        value = BENCHMARKS["corrected"].parse(question, Answer(question, reply))
        assert [value["IF"], value["KP"]] == corrected


def test_replies_are_read_as_the_official_programs_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["metrics"])
    texts = SimpleNamespace()
    for name in (
        "consist",
        "quality",
        "instruction_following",
        "abnormal_instruction_following",
        "dual_evaluation",
    ):
        setattr(texts, f"prompt_{name}", "")
    modules: dict[str, Any] = {"openai": ClientOfOpenAI(lambda request: "").module, "utils.prompts": texts}
    folder = "benchmarks/Kris_Bench"
    common, known = (
        run_program(*KIT, f"{folder}/metrics_{name}.py", monkeypatch, **modules)
        for name in ("common", "knowledge")
    )
    draw, pieces = (
        random.Random(6),
        [*'{}":,/ ', "4", "7", "null", "1e999", "consistency_score", "consistency score"],
    )
    pieces += ["instruction_score", "knowledge score", "out of 5", "：", "\n"]
    for _ in range(2_000):
        reply = draw.choice(
            ["", '{"consistency_score": 4, "x": 1}', '{"instruction_score": 4, "knowledge_score": 3}']
        )
        for _ in range(draw.randint(0, 6)):
            place = draw.randint(0, len(reply))
            reply = reply[:place] + draw.choice(pieces) + reply[place + draw.randint(0, 2) :]
        assert (
            grade(reply, "consistency", "common") == common["extract_consistency_score_and_reason"](reply)[0]
        )
        assert grade(reply, "consistency", "knowledge") == known["extract_consistency_score"](reply)
        both = known["extract_dual_scores"](reply)
        assert dual(reply) == [both["instruction_score"], both["knowledge_score"]]


def test_what_the_judge_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    krisbench_data.write(tmp_path / "krisbench/data")
    use_official_data("krisbench", tmp_path, monkeypatch)
    monkeypatch.setattr(assets, "BENCHMARKS", tmp_path)
    made = {f"{one.data['folder']}/{one.data['id']}": one for one in items(KrisBench())}
    assert len(made) == 1267
    result = Picture(Path("result.png"), "ab" * 32)

    def shown(key: str, rules: Rules = "official") -> list[str]:
        """Returns for each question its name, the labels and the images."""
        found = []
        for one in BENCHMARKS[rules].questions(made[key], result, Answers({})):
            _, *parts = one.messages[0].parts
            words = (f"[{part.path.stem}]" if isinstance(part, Picture) else part for part in parts)
            found.append(" ".join([one.name, *words]))
        return found

    both = "This is the original image: [1] This is the edited image: [result]"
    alone = "quality This is the edited image: [result]"
    assert shown("count_change/1") == [f"consistency {both}", f"instruction {both}", alone]
    assert shown("physics/1") == [f"consistency {both}", f"dual {both}", alone]
    truth = f"instruction {both} This is the ground truth image: [1_gt]"
    assert shown("viewpoint_change/1") == [f"consistency {both}", truth, alone]
    several = "Reference Image 1: [1-1] Reference Image 2: [1-2] Predicted Image: [result]"
    alone = "quality This is the image to evaluate: [result]"
    assert shown("multi-element_composition/1") == [f"consistency {several}", f"instruction {several}", alone]
    frames = "Frame 1 (Generated): [result] Frame 2 (Reference): [1-2]"
    frames += " Frame 3 (Reference): [1-3] Frame 4 (Reference): [1-4]"
    assert shown("temporal_prediction/1") == [f"consistency {frames}", f"instruction {frames}", alone]

    [first, *_] = BENCHMARKS["official"].questions(made["temporal_prediction/1"], result, Answers({}))
    assert {(one.encoding, one.pixels) for one in first.pictures} == {(Encoding("JPEG", 85), PILLOW)}
    assert (first.sampling.max_tokens, first.sampling.temperature) == (1000, None)
    asked = {
        rules: [*BENCHMARKS[rules].questions(made["anomaly_correction/1"], result, Answers({}))]
        for rules in get_args(Rules)
    }
    explanation = made["anomaly_correction/1"].data["explanation"]
    assert [explanation in asked[rules][1].text for rules in get_args(Rules)] == [False, True]
    assert [asked[rules][0].pictures[0].media_type for rules in get_args(Rules)] == ["image/jpeg", None]
    assert "{{" in asked["official"][2].text, "the text about quality is not formatted"


def scored(benchmark: KrisBench, edits: Sequence[tuple[str, dict[str, int | None]]]) -> Scores:
    found = []
    for n, (folder, grades) in enumerate(edits):
        data = {"folder": folder, "id": str(n), "prompt": "Paint it.", "explanation": "It is red."}
        item = Item(str(n), Cell("m", "krisbench").folder / f"{n}.png", 42, None, None, data)
        question = ask("all", "?")
        answers = Answers({"all": replace(Answer(question, "said"), value=dict(grades))})
        found.append(
            ScoredItem(item, item.path, answers, {}, benchmark.score(item, answers).of_item(item.id))
        )
    return Scores(found)


EDITS: list[tuple[str, dict[str, int | None]]] = [
    ("count_change", {"VC": 5, "IF": 4, "VQ": 5}),
    ("count_change", {"VC": 3, "IF": 1, "VQ": None}),
    ("viewpoint_change", {"VC": 2, "IF": 2, "VQ": 4}),
    ("physics", {"VC": 5, "IF": 3, "KP": 1, "VQ": 5}),
    ("physics", {"VC": 4, "IF": None, "KP": None, "VQ": 4}),
    ("multi-element_composition", {"VC": 1, "IF": 1, "VQ": 1}),
]


def test_means_are_those_of_the_official_program() -> None:
    benchmark = BENCHMARKS["official"]
    metrics = benchmark.metrics(scored(benchmark, EDITS))
    expected = {
        "attribute": 65,
        "attribute/VC": 75,
        "attribute/VQ": 100,
        "attribute/IF": 37.5,
        "count_change/IF": 37.5,
        "spatial": 125 / 3,
        "spatial/VC": 25,
        "spatial/VQ": 75,
        "spatial/IF": 25,
        "natural": 200 / 3,
        "natural/VC": 87.5,
        "natural/IF": 50,
        "natural/KP": 0,
        "decomposition": 0,
        "factual": 56.25,
        "conceptual": 200 / 3,
        "procedural": 0,
        "overall": 50,
        # the means of the edits are 91.67, 25, 41.67, 62.5, 75 and 0
        "overall_items": (275 / 3 + 25 + 125 / 3 + 62.5 + 75) / 6,
        "conceptual_items": 68.75,
    }
    assert {name: metrics[name].value for name in expected} == pytest.approx(expected)
    assert benchmark.notes(scored(benchmark, EDITS))[0].startswith("3 of 20 grades are missing")
    files = benchmark.official_files(scored(benchmark, EDITS))
    result = json.loads(files["results.json"])
    assert result["summary"]["Overall"] == {"AVG": 50}
    assert list(result["summary"]["Natural Science"]) == ["VC", "VQ", "IF", "KP", "AVG"]
    assert result["subitems"]["Attribute Perception"]["count_change"] == {"VC": 75, "VQ": 100, "IF": 37.5}
    record = json.loads(files["physics/metrics.json"])["4"]
    assert record["consistency_score"] == 4 and record["knowledge_score"] is None


def test_corrected_rules_report_no_knowledge_without_an_explanation() -> None:
    benchmark = BENCHMARKS["corrected"]
    grades: dict[str, int | None] = {"VC": 5, "IF": 2, "KP": 5, "VQ": 5}
    metrics = benchmark.metrics(scored(benchmark, [("rule-based_reasoning", grades), ("physics", grades)]))
    assert "rule-based_reasoning/KP" not in metrics and metrics["physics/KP"].value == 100
    assert metrics["KP_clipped"].value == 0, "the instruction is not followed"
