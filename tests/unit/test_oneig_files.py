"""OneIG-Bench's files: those of the official programs as these write them, the samples, and the summary."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence

import pytest

from benchmarks.oneig import summary
from benchmarks.oneig.data import CHINESE, ENGLISH, TASKS, Edition, Task
from benchmarks.oneig.scores import max_tokens, metrics
from benchmarks.oneig.summary import summary_files
from imageevalkit.benchmark.contract import Rules
from imageevalkit.common.errors import ExitStatus, UserError
from imageevalkit.store.cell import Cell
from imageevalkit.store.results import Coverage, Evaluator, Metric, Result, as_object
from tests.support.oneig_official_runs import MODEL, TASKS_OF, OfficialRun, official_runs, scored_prompts
from tests.support.oneig_scored import GONE, RULES, TEXTS, PromptImages, run_of

# pandas takes these means, and another version of it adds in another order
BY_PANDAS = {"alignment", "reasoning", "style", "total average"}
EDITIONS = pytest.mark.parametrize("edition", [ENGLISH, CHINESE], ids=lambda edition: edition.name)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, OfficialRun]:
    return official_runs(tmp_path_factory.mktemp("official"))


KINDS = ("whole", "gaps", "stops", "groups", "no_reasoning")
RUNS = [f"{edition}/{kind}" for edition in ("oneig", "oneig-zh") for kind in KINDS]


def tasks_of(run: str) -> Sequence[Task]:
    return TASKS_OF.get(run.split("/")[1], TASKS)


def table(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


@pytest.mark.parametrize("name", RUNS)
def test_the_official_programs_write_the_same_tables(runs: Mapping[str, OfficialRun], name: str) -> None:
    run = runs[name]
    ours = summary.score_files(run_of(run.scored, tasks_of(name), "official", run.edition))
    assert ours.keys() == run.tables.keys()
    for file, text in run.tables.items():
        if not re.fullmatch(r"[a-z]+_score_(EN|ZH)\.csv", file):
            assert ours[file] == text, file
            continue
        header, *rows = table(text)
        our_header, *our_rows = table(ours[file])
        assert our_header == header
        for column, theirs, mine in zip(header, *rows, *our_rows, strict=True):
            if column in BY_PANDAS:
                assert float(mine) == pytest.approx(float(theirs), rel=1e-14)
            else:
                assert mine == theirs, (file, column)


@pytest.mark.parametrize("name", RUNS)
def test_metrics_are_what_the_official_programs_print(runs: Mapping[str, OfficialRun], name: str) -> None:
    run, tasks = runs[name], tasks_of(name)
    found = metrics(run_of(run.scored, tasks, "official", run.edition))
    stopped = {task for task in tasks if run.raised[task]}
    stops = {"stops": {"text", "reasoning"}, "no_reasoning": {"reasoning"}}
    assert stopped == stops.get(name.split("/")[1], set())
    for task in tasks:
        metric = found.get(f"{task}_official", found[task])
        if task in stopped:
            assert metric.value is None
            continue
        header, row = table(run.tables[f"{task}_score_{run.edition.mode}.csv"])
        printed = dict(zip(header, row, strict=True))
        column = {"text": "text score", "diversity": "total average"}.get(task, task)
        assert metric.value == pytest.approx(float(printed[column]), rel=1e-14)
        for group in run.edition.sizes if task == "diversity" else ():
            mean_of_group = float(printed[group]) if printed[group] else None
            assert found[f"diversity/{group}"].value == mean_of_group


def _three_decimals(metric: Metric) -> str:
    return "nan" if metric.value is None else f"{metric.value:.3f}"


@pytest.mark.parametrize("name", RUNS)
def test_the_official_analysis_writes_the_same_tables(runs: Mapping[str, OfficialRun], name: str) -> None:
    run = runs[name]
    written = summary.analysis_files(run_of(run.scored, TASKS, "official", run.edition))
    ours = {
        file.split()[0].lower(): next(csv.DictReader(text.splitlines())) for file, text in written.items()
    }
    if name.endswith(
        "/stops"
    ):  # only two of the programs were run, and the script begins with another one's file
        assert run.raised["fine_grained"] == "IndexError"
        assert "Text Model Scores.csv" not in written and "Reasoning Model Scores.csv" not in written
        return
    assert ours == run.fine_grained
    stops = {"oneig/gaps": {"text"}, "oneig/no_reasoning": {"reasoning", "style", "text"}}
    stops["oneig-zh/no_reasoning"] = {"reasoning", "style"}
    analysed = {"reasoning", "style"} if name.startswith("oneig-zh") else set(TASKS)
    assert ours.keys() == analysed - stops.get(name, set())
    assert run.raised["fine_grained"] == {"oneig/gaps": "ValueError"}.get(
        name, "IndexError" if name in stops else ""
    )
    if name.endswith("/groups"):
        assert ours["reasoning"]["physics"] == "-" != ours["reasoning"]["chemistry"]
    if name == "oneig/groups":
        assert ours["diversity"]["long"] == "-" != ours["alignment"]["long"]
        assert "nan" not in ours["text"].values()


def test_a_table_is_left_out_for_none_but_a_chosen_task() -> None:
    scored = scored_prompts(ENGLISH, "no_reasoning")
    some = summary.analysis_files(run_of(scored, ["alignment", "style"], "official", ENGLISH))
    assert [*some] == ["Alignment Model Scores.csv", "Style Model Scores.csv"]
    scored = scored_prompts(ENGLISH, "no_reasoning", "corrected")
    every = summary.analysis_files(run_of(scored, TASKS, "corrected", ENGLISH))
    assert len(every) == len(TASKS) and "nan" not in "".join(every.values())


@pytest.mark.parametrize("name", [name for name in RUNS if name.endswith(("whole", "gaps"))])
def test_the_official_analysis_finds_the_same(runs: Mapping[str, OfficialRun], name: str) -> None:
    run = runs[name]
    found = metrics(run_of(run.scored, TASKS, "official", run.edition))
    crashed = name == "oneig/gaps"  # at a text prompt without a score
    assert run.raised["fine_grained"] == ("ValueError" if crashed else "")
    analysed = {"reasoning", "style"} if name.startswith("oneig-zh") else set(TASKS)
    assert run.fine_grained.keys() == analysed - ({"text"} if crashed else set())
    shown, ours = {}, {}
    for task, row in run.fine_grained.items():
        # of styles without a prompt the script takes empty cells
        absent = "nan" if task == "style" else "-"
        for column, text in row.items():
            if column != "Model":
                metric = f"{task}/{column.replace(', ', ',').replace(' ', '_')}"
                shown[metric] = text
                ours[metric] = _three_decimals(found[metric]) if metric in found else absent
    assert ours == shown
    assert len(shown) == (10 if name.startswith("oneig-zh") else 20 if crashed else 29)
    numbers = {name for name, text in shown.items() if text not in ("nan", "-")}
    if name.endswith("whole"):
        assert {"style/media", "reasoning/common_sense"} <= numbers
    else:
        assert {"style/media", "alignment/long"}.isdisjoint(numbers)
    if crashed:
        assert {found[f"text/{length}_ED"].value for length in ("short", "middle", "long")} == {None}


@EDITIONS
def test_the_official_program_asks_for_as_many_tokens(
    runs: Mapping[str, OfficialRun], edition: Edition
) -> None:
    run = runs[f"{edition.name}/whole"]
    prompts = [one.prompt for one in run.scored if one.prompt.class_item == "text"]
    ours = {prompt.id: max_tokens(prompt, "official", edition.language) for prompt in prompts}
    assert ours == run.tokens
    assert set(ours.values()) == ({128, 256} if edition is ENGLISH else {128})


def test_corrected_tables_take_nothing_from_other_prompts() -> None:
    scored = scored_prompts(ENGLISH, "gaps", "corrected")
    files = summary.score_files(run_of(scored, ["text"], "corrected", ENGLISH))
    # images count there, if they are black
    assert [prompt for prompt, score in table(files["text_prompt_score_EN.csv"]) if not score] == ["112"]
    gone = [PromptImages(one.prompt, [GONE]) for one in scored]
    files = summary.score_files(run_of(gone, TASKS, "corrected", ENGLISH))
    assert files["reasoning_score_EN.csv"] == f",reasoning\n{MODEL},\n"
    assert "text_score_EN.csv" not in files
    assert files["diversity_prompt_score_EN.csv"] == f",{MODEL}\n"
    officially = summary.score_files(run_of(gone, TASKS, "official", ENGLISH))
    assert officially.keys() == files.keys() - {"reasoning_score_EN.csv", "reasoning_prompt_score_EN.csv"}


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


@pytest.mark.parametrize("rules", RULES)
@EDITIONS
def test_metrics_are_means_of_what_the_samples_tell(edition: Edition, rules: Rules) -> None:
    run = run_of(scored_prompts(edition, "gaps", rules), TASKS, rules, edition)
    files, found = summary.sample_files(run, TEXTS), metrics(run)
    results = {task: json.loads(files[f"oneig_{task}.json"]) for task in TASKS}
    samples = {task: results[task]["details"] for task in TASKS}

    def check(name: str, again: float) -> None:
        assert found[name].value == pytest.approx(again, rel=1e-12), name

    for task in TASKS:
        check(task, results[task]["accuracy"] / 100)
    check("alignment", mean([sample["score"] for sample in samples["alignment"]]))
    readings = [one for sample in samples["text"] for one in sample["ocr_details"]]
    ed, cr = results["text"]["ED"], mean([one["CR"] for one in readings])
    wac = sum(one["match"] for one in readings) / sum(one["total"] for one in readings)
    assert (cr, wac) == pytest.approx((results["text"]["CR"], results["text"]["WAC"]))
    top = 50 if edition is CHINESE else 100
    check("text", 1 - min(ed, top) / top * (1 - cr) * (1 - wac))
    check("reasoning", mean([one["score"] for one in samples["reasoning"] if one["score"] is not None]))

    styles: dict[str, list[float]] = {}
    for sample in samples["style"]:
        cells = [(max(0, one["csd_sim"]) + max(0, one["se_sim"])) / 2 for one in sample["encoder_details"]]
        styles.setdefault(sample["style_label"], []).append(mean(cells))
    check("style", mean([score for scores in styles.values() for score in scores]))

    classes: dict[str, list[float]] = {}
    for sample in samples["diversity"]:
        pairs = [one["distance"] for one in sample["pairwise_distances"]]
        assert len(pairs) == sample["num_splits"] * (sample["num_splits"] - 1) / 2
        classes.setdefault(sample["class_item"], []).append(mean(pairs))
    check("diversity", mean([score for scores in classes.values() for score in scores]))
    told_styles, told_classes = results["style"]["style_scores"], results["diversity"]["class_scores"]
    for kind, groups, told in (("style", styles, told_styles), ("diversity", classes, told_classes)):
        for name, scores in groups.items():
            check(f"{kind}/{name}", mean(scores))
            assert told[name] == pytest.approx(scores)
    check("oneig_total", mean([results[task]["accuracy"] / 100 for task in TASKS]))


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


def test_samples_of_a_run_without_any_score() -> None:
    files = summary.sample_files(run_of([], TASKS, "official", ENGLISH), TEXTS)
    assert {json.loads(text)["accuracy"] for text in files.values()} == {None}


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


def test_summary_of_several_models_has_a_dash_where_there_is_nothing() -> None:
    models = {
        "a,b": {"text": Metric(0.5, 3), "diversity/multilingualism": Metric(0.25, 2)},
        "汉": of_values(text=None),
    }
    files = summary_files("v1", models, CHINESE)
    rows = {(row[0], row[2]): row[4:] for row in table(files["summary.csv"])}
    assert rows["dataset", "metric"] == ["a,b", "汉"]
    assert rows["oneig_text", "accuracy"] == ["50.00", "-"]
    assert rows["oneig_total", "accuracy"] == ["-", "50.64"]
    assert rows["oneig_diversity_multilingualism", "accuracy"] == ["25.00", "-"]
    assert all(len(row) == 6 for row in table(files["summary.csv"]))


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


def test_the_latest_of_several_that_were_measured_alike_is_printed(
    summarise: Callable[..., list[str]],
) -> None:
    write("a", of_values())
    write("a", of_values(text=0.1), below="evaluators/older")
    rows = summarise("--model_names", "a")[1:]
    assert rows[1].split() == ["oneig_text", "oneig-41b4983", "accuracy", "gen", "80.79"]


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
        (("--model_names", "a;c"), r"evaluated differently: a is .*41b4983; c is oneig@.* \(first 4 items\)"),
        (("--model_names", ";"), r"--model_names is empty"),
        (("--model_names", "a", "--ds_name", "oneig_zh"), r"invalid choice: 'oneig_zh' .*oneig-zh"),
        (("--model_names", "a", "--ds_name", "oneig-zh"), r"evaluate it: bash eval.sh --model_names \"a\""),
        ((), r"--model_names \(see python -m benchmarks.oneig.summary --help\)"),
    ],
)
def test_what_cannot_be_summarised_is_one_line(
    summarise: Callable[..., list[str]], arguments: Sequence[str], says: str
) -> None:
    write("a", of_values())
    write("qwen-image", of_values())
    write("b", of_values(), judge="ppocr")
    write("c", of_values(), limit=4)
    with pytest.raises(UserError, match=says) as error:
        summarise(*arguments)
    assert "\n" not in str(error.value)
