"""OneIG-Bench's files: the samples and the summary."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence

import pytest

from benchmarks.oneig import summary
from benchmarks.oneig.data import ENGLISH, TASKS
from benchmarks.oneig.summary import summary_files
from imageevalkit.common.errors import ExitStatus, UserError
from imageevalkit.store.cell import Cell
from imageevalkit.store.results import Coverage, Evaluator, Metric, Result, as_object
from tests.support.oneig_official_runs import scored_prompts
from tests.support.oneig_scored import TEXTS, run_of


def test_what_a_sample_tells() -> None:
    scored = scored_prompts(ENGLISH, "gaps")
    files, again = (
        summary.sample_files(run_of(one, TASKS, "official", ENGLISH), TEXTS) for one in (scored, scored[::-1])
    )
    assert list(files) == [f"oneig_{task}.json" for task in TASKS]
    assert files == again
    samples = {task: json.loads(files[f"oneig_{task}.json"])["details"] for task in TASKS}
    common = {"id", "class_item", "image_path", "image_paths", "grid", "num_splits"}
    assert samples["alignment"][0].keys() == {*common, "score", "judge_details"}
    assert samples["text"][0].keys() == {
        *common,
        *("ED", "CR", "WAC", "expected_text", "expected_text_preprocessed", "ocr_prompt", "ocr_details"),
    }
    assert samples["reasoning"][0].keys() == {
        *common,
        *("subject", "model_name", "score", "gt_answer", "similarity_details"),
    }
    assert samples["style"][0].keys() == {*common, "style_label", "score", "encoder_details"}
    assert samples["diversity"][0].keys() == {*common, "score", "pairwise_distances"}

    two_lost = next(one for one in samples["alignment"] if one["num_splits"] == 2)
    places = [output["grid_idx"] for output in two_lost["judge_details"][0]["judge_outputs"]]
    assert (two_lost["grid"], places) == ("2x2", [2, 3])
    assert two_lost["image_paths"].count(None) == 1  # the other one is there, but black
    assert two_lost["image_path"] == next(filter(None, two_lost["image_paths"]))
    assert two_lost["image_path"].startswith("output/m/oneig/images/")
    question = two_lost["judge_details"][0]
    assert question["judge_prompt"] == f"{question['question']}. Yes or no?"
    assert (question["question_id"], question["dependency"]) == (1, [0])
    assert set(question["judge_outputs"][0]) == {"grid_idx", "raw_output", "parsed_answer", "score"}
    # no sample without a score, but in reasoning
    assert ("object", "038") not in [(one["class_item"], one["id"]) for one in samples["alignment"]]
    assert [one["image_paths"] for one in samples["reasoning"] if one["score"] is None] == [[]]
    assert samples["diversity"][0]["id"] == "anime_000"


# the seed's example, which shows diversity as the mean of its classes
SEED = """\
oneig_alignment a39421 accuracy gen 88.44
oneig_text a39421 accuracy gen 80.79
oneig_text a39421 ED gen 43.32
oneig_text a39421 CR gen 0.08
oneig_text a39421 WAC gen 0.52
oneig_reasoning a39421 accuracy gen 29.84
oneig_style a39421 accuracy gen 35.85
oneig_diversity a39421 accuracy gen 18.28
oneig_total - accuracy gen 50.64
oneig_diversity_anime - accuracy gen 9.00
oneig_diversity_human - accuracy gen 11.21
oneig_diversity_object - accuracy gen 13.27
oneig_diversity_text - accuracy gen 21.14
oneig_diversity_reasoning - accuracy gen 36.80
"""
VALUES = {
    "alignment": 0.8844,
    "text": 0.8079,
    "text/ED": 43.32,
    "text/CR": 0.08,
    "text/WAC": 0.52,
    "reasoning": 0.2984,
    "style": 0.3585,
    "diversity": 0.1828,
    "oneig_total": 0.5064,
    "diversity/anime": 0.09,
    "diversity/human": 0.1121,
    "diversity/object": 0.1327,
    "diversity/text": 0.2114,
    "diversity/reasoning": 0.368,
}


def of_values(**changes: float | None) -> dict[str, Metric]:
    return {name: Metric(value, 10) for name, value in {**VALUES, **changes}.items()}


def test_summary_has_the_rows_of_the_seed() -> None:
    files = summary_files("a39421", {"oneig_eval": of_values()}, ENGLISH)
    assert list(files) == ["summary.csv", "summary.md", "summary.txt"]
    header = "dataset version metric mode oneig_eval\n"
    assert files["summary.csv"] == (header + SEED).replace(" ", ",")
    assert re.sub(" +", " ", files["summary.txt"]) == header + SEED
    first, second, *rows = files["summary.md"].splitlines()
    assert (first, second) == (
        "| dataset | version | metric | mode | oneig_eval |",
        "| --- | --- | --- | --- | --- |",
    )
    assert [row.replace(" | ", " ").strip("| ") for row in rows] == SEED.splitlines()


def test_columns_of_the_summary_line_up_behind_a_chinese_model_name() -> None:
    text = summary_files("a39421", {"模型": of_values(), "b": of_values()}, ENGLISH)["summary.txt"]
    header, *rows = text.splitlines()
    # a Chinese letter takes two columns of a terminal
    place = header.replace("模型", "####").rindex("b")
    assert {row.rindex("  ") + 2 for row in rows} == {place}


def write(
    model: str,
    found: Mapping[str, Metric],
    judge: str = "qwen3-vl-8b",
    limit: int | None = None,
    treatment: str = "withhold",
    withheld: str = "",
    below: str = "",
) -> None:
    cell = Cell(model, "oneig")
    result = Result(
        model=model,
        benchmark="oneig",
        benchmark_version="oneig-41b4983",
        evaluator=Evaluator(judge, official=True),
        coverage=Coverage(1, 1, 0, 0, 0, 0, 1, 0, 0),
        metrics=dict(found),
        headline=[] if withheld else ["oneig_total"],
        treatment=treatment,
        limit=limit,
        provenance={},
        withheld=withheld,
    )
    path = cell.folder / below / "result.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(as_object(result)))


@pytest.fixture
def summarise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    def run(*arguments: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["summary", *arguments])
        assert summary.main() == ExitStatus.COMPLETE
        return capsys.readouterr().out.splitlines()

    return run


def test_the_command_prints_several_models(summarise: Callable[..., list[str]]) -> None:
    write("a", of_values())
    # another judge measured b last
    write("b", of_values(), judge="ppocr")
    write("b", of_values(text=0.1), below="evaluators/qwen3")
    write("c", of_values(), withheld="incomplete: 3 failed")
    header, *rows, by, reason = summarise("--model_names", "a; b;a;c;")
    assert header.split() == ["dataset", "version", "metric", "mode", "a", "b", "c"]
    assert rows[1].split() == ["oneig_text", "oneig-41b4983", "accuracy", "gen", "80.79", "10.00", "-"]
    assert len(rows) == 14
    assert by == "oneig@qwen3-vl-8b oneig-41b4983"
    assert reason == "withheld: c: incomplete: 3 failed"


def test_missing_items_treated_officially_show_what_the_programs_print(
    summarise: Callable[..., list[str]],
) -> None:
    official = {"text_official": Metric(0.25, 3), "oneig_total_official": Metric(None, 3)}
    write("a", of_values() | official, treatment="official", limit=4)
    write("b", of_values() | official, limit=4)
    rows = {tuple(line.split()[:3:2]): line.split()[4:] for line in summarise("--model_names", "a;b")[:-1]}
    assert rows["oneig_text", "accuracy"] == ["25.00", "80.79"]
    assert rows["oneig_total", "accuracy"] == ["-", "50.64"]
    assert rows["oneig_reasoning", "accuracy"] == ["29.84", "29.84"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("--model_names", "qwen-imagee"),
            r"qwen-imagee has no result of oneig in .*did you mean 'qwen-image'",
        ),
        (("--model_names", "a;b"), r"evaluated differently: a is oneig@qwen3-vl-8b .*; b is oneig@ppocr .*"),
        (("--model_names", "a", "--ds_name", "oneig-zh"), r"evaluate it: bash eval.sh --model_names \"a\""),
    ],
)
def test_what_cannot_be_summarised_is_one_line(
    summarise: Callable[..., list[str]], arguments: Sequence[str], says: str
) -> None:
    write("a", of_values())
    write("qwen-image", of_values())
    write("b", of_values(), judge="ppocr")
    with pytest.raises(UserError, match=says) as error:
        summarise(*arguments)
    assert "\n" not in str(error.value)
