"""bash eval.sh --gate BASELINE: falls that chance does not explain, few false alarms; saved files, JUnit XML, CI."""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]

from imageevalkit.cli.command_line import parse
from imageevalkit.common.errors import ExitStatus, UserError, worst
from imageevalkit.extras.compare.gate import Asked, Gate, check, falls, fell
from imageevalkit.extras.compare.hook import GateHook
from imageevalkit.extras.compare.junit import Case, junit_xml
from imageevalkit.plan.config import Config
from imageevalkit.plan.options import resolve
from imageevalkit.plan.planner import make_plan
from imageevalkit.report.comparison import Measured
from imageevalkit.report.reading import read_all
from imageevalkit.store.cell import Cell, log_root, output_root
from imageevalkit.store.results import ItemPart, Metric
from tests.support.cells import HUNDRED, QWEN, write_scored
from tests.support.checkout import (
    FAILING,
    REPO,
    add_model,
    environ,
    make_checkout,
    needs_driver_env,
    run_command,
    run_eval,
)


def measured(values: np.ndarray) -> Measured:
    parts = [ItemPart(str(n), value, 1.0) for n, value in enumerate(values.tolist())]
    return Measured("m", Metric(float(values.mean()), len(values), None, parts=parts))


def rerun(rng: np.random.Generator, before: np.ndarray, share: float) -> np.ndarray:
    """The same model again with the same seeds: of ``share`` of the items, kernels that add up in another order or a
    judge's mood draw right or wrong anew."""
    anew = rng.random(len(before)) < share
    return np.where(anew, (rng.random(len(before)) < before.mean()).astype(float), before)


# ---- how often it is right


def test_of_200_reruns_without_change_at_most_5_percent_raise_an_alarm_anywhere() -> None:
    rng, alarms = np.random.default_rng(7), 0
    for _ in range(200):
        asked = []
        for chance in (0.5, 0.9):  # right or wrong, two models
            first = (rng.random(80) < chance).astype(float)
            asked.append(Asked(measured(first), measured(rerun(rng, first, 0.3))))
        for _ in range(2):  # grades of a fine scale, both runs equally far from what the model can
            able = rng.random(40)
            first, second = (np.clip(able + rng.normal(0, 0.1, 40), 0, 1) for _ in range(2))
            asked.append(Asked(measured(first), measured(second)))
        alarms += any(map(fell, falls(asked)))
    assert 0 < alarms <= 10, f"{alarms} of 200"


def test_a_drop_of_2_percent_on_1000_items_is_caught_in_80_percent() -> None:
    """20 of 1,000 items turn from right to wrong. Beside that a rerun with the same seeds draws 3 % of the items anew,
    which turns 0.5 % to 1.5 % of all, up or down; and the gate looks at two more models, which stay as they are."""
    rng, caught = np.random.default_rng(8), 0

    def again() -> tuple[np.ndarray, np.ndarray]:
        first = (rng.random(1000) < 0.7).astype(float)
        return first, rerun(rng, first, 0.03)

    others = [Asked(*map(measured, again())) for _ in range(2)]
    for _ in range(30):
        first, second = again()
        second[rng.choice(np.flatnonzero(second == 1), 20, replace=False)] = 0.0
        caught += fell(falls([Asked(measured(first), measured(second)), *others])[0])
    assert caught >= 24, f"{caught} of 30"


# ---- what it says of result files


def baseline_of(tmp_path: Path) -> Path:
    """Moves the present output/ away as a baseline and returns its path."""
    return output_root().rename(tmp_path / "baseline")


def verdicts(baseline: Path, run: dict[str, str] | None = None) -> dict[str, str]:
    found = check(read_all(baseline, print)[1], read_all(output_root(), print)[1], run)
    return {one.name: one.verdict for one in found}


def test_each_metric_of_either_has_a_verdict_and_only_what_fell_or_is_missing_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("holds", "fell", "rose", "gone", "judged"):
        write_scored(Cell("m", name), HUNDRED)
    write_scored(Cell("m", "renamed"), HUNDRED, metric="old")
    write_scored(Cell("m", "version"), HUNDRED)
    baseline = baseline_of(tmp_path)
    ones = [item for item, value in HUNDRED.items() if value]
    write_scored(Cell("m", "holds"), HUNDRED)
    write_scored(Cell("m", "fell"), {**HUNDRED, **dict.fromkeys(ones[:12], 0.0)})
    write_scored(Cell("m", "rose"), dict.fromkeys(HUNDRED, 1.0))
    write_scored(Cell("m", "new"), HUNDRED)
    write_scored(Cell("m", "renamed"), HUNDRED, metric="now")
    write_scored(Cell("m", "version"), HUNDRED, version="2")
    write_scored(Cell("m", "judged"), HUNDRED, evaluator=QWEN)
    assert verdicts(baseline) == {
        "m/fell/accuracy": "fell",
        "m/gone": "missing",
        "m/holds/accuracy": "holds",
        "m/judged": "missing",
        "m/new": "new",
        "m/renamed/now": "new",
        "m/renamed/old": "missing",
        "m/rose/accuracy": "holds",
        "m/version": "missing",
    }
    assert verdicts(baseline, {"m/holds": "", "m/rose": ""}) == {
        "m/holds/accuracy": "holds",
        "m/rose/accuracy": "holds",
    }
    # an older result stands, which is none of this run
    assert verdicts(baseline, {"m/holds": "model does not load"}) == {"m/holds": "missing"}
    assert Gate.of(baseline, None).close() == ExitStatus.FELL
    lines = capsys.readouterr().out.splitlines()
    [line] = [one for one in lines if one.startswith("fell")]
    assert re.match(
        r"fell +m/fell/accuracy +0.5000 +0.3800 +-0.1200 +p <0.001 +McNemar's exact test on 100 prompts", line
    )
    assert lines[-1].startswith("gate: 5 of 9 lines failed, baseline ")
    assert "measured by different evaluators (ppocr-v4, qwen2.5-vl-7b)" in "\n".join(lines)
    suite = ElementTree.parse(log_root() / "gate.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("9", "5", "2")
    [case] = [one for one in suite.iter("testcase") if one.get("classname") == "m/fell"]
    assert case[0].tag == "failure"
    assert "fell: 0.5000 → 0.3800, p <0.001" in str(case[0].get("message"))


def test_a_score_that_is_withheld_now_is_missing(tmp_path: Path) -> None:
    write_scored(Cell("m", "text"), HUNDRED)
    baseline = baseline_of(tmp_path)
    write_scored(Cell("m", "text"), HUNDRED, more={"headline": [], "withheld": "incomplete: 3 refused"})
    [found] = check(read_all(baseline, print)[1], read_all(output_root(), print)[1])
    assert (found.verdict, found.remark) == ("missing", "the score is withheld: incomplete: 3 refused")


def noisy(error: float | None) -> dict[str, Any]:
    """Fields of a result whose judge's noise gives that standard error to its score; None: it was not asked again."""
    if error is None:
        return {}
    return {"noise": {"of": 100, "repeated": 50, "changed": 5, "standard_errors": {"accuracy": error}}}


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [
        (0.001, 0.001, "fell"),
        # what is known of one side holds for the other: 1.64 · √2 · 0.035 are 8 %, 1.64 · 0.035 are 6 %
        (0.035, None, "holds"),
        (0.035, 0.0, "fell"),
    ],
)
def test_a_fall_within_the_judges_noise_is_none(
    tmp_path: Path, before: float | None, now: float | None, verdict: str
) -> None:
    ones = [item for item, value in HUNDRED.items() if value]
    write_scored(Cell("m", "text"), HUNDRED, more=noisy(before))
    baseline = baseline_of(tmp_path)
    write_scored(Cell("m", "text"), {**HUNDRED, **dict.fromkeys(ones[:7], 0.0)}, more=noisy(now))
    [found] = check(read_all(baseline, print)[1], read_all(output_root(), print)[1])
    assert found.verdict == verdict
    assert "the judge's noise alone" in found.remark or verdict == "fell"


def test_a_score_that_both_lack_does_not_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    withheld = {"headline": [], "withheld": "incomplete: 3 refused"}
    write_scored(Cell("m", "text"), HUNDRED, more=withheld)
    write_scored(Cell("m", "whole"), HUNDRED)
    baseline = baseline_of(tmp_path)
    write_scored(Cell("m", "text"), HUNDRED, more=withheld)
    write_scored(Cell("m", "whole"), HUNDRED)
    assert Gate.of(baseline, None).close() == ExitStatus.INCOMPLETE
    said = capsys.readouterr().out
    assert re.search(
        r"^cannot be judged +m/text/accuracy .*withheld, then and now: incomplete: 3 refused", said, re.M
    )
    assert "gate: 1 of 2 lines cannot be judged" in said and "exit status 3" in said


# ---- saved files


def test_a_saved_file_is_as_good_as_its_folder_and_the_same_each_time(tmp_path: Path) -> None:
    noise = {"noise": {"of": 100, "repeated": 50, "changed": 5, "standard_errors": {"accuracy": 0.01}}}
    write_scored(Cell("org/m", "text"), HUNDRED, more=noise)
    write_scored(Cell("m", "old"), HUNDRED, with_parts=False)
    files = [tmp_path / "a.zip", tmp_path / "b.zip"]
    for file in files:
        assert Gate.of(None, file).close() == ExitStatus.COMPLETE
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].stat().st_size < 6000
    whole, saved = read_all(output_root(), print)[1], read_all(files[0], print)[1]
    for one, other in zip(whole, saved, strict=True):
        assert (one.cell, one.hashes, one.images, one.prompts, one.result.noise) == (
            other.cell,
            other.hashes,
            other.images,
            other.prompts,
            other.result.noise,
        )
        assert one.result.metrics["accuracy"].parts == other.result.metrics["accuracy"].parts != ()
    assert Gate.of(files[0], None).close() == ExitStatus.COMPLETE


def test_a_file_that_is_damaged_or_somebody_elses_is_one_line(tmp_path: Path) -> None:
    write_scored(Cell("m", "text"), HUNDRED)
    text, evil = tmp_path / "text.zip", tmp_path / "evil.zip"
    text.write_text("no zip")
    with zipfile.ZipFile(evil, "w") as file:
        file.writestr("../../../escaped/result.json", "{}")
    for path, says in (
        (text, "text.zip is no folder of results, and no file of --save_baseline"),
        (evil, "holds no results|evil.zip"),
    ):
        with pytest.raises(UserError, match=says) as caught:
            Gate.of(path, None).close()
        assert "\n" not in str(caught.value)
        assert "/tmp/tmp" not in str(caught.value)
    assert not (tmp_path.parents[1] / "escaped").exists()
    with pytest.raises(UserError, match="the baseline is the present output/"):
        Gate.of(output_root(), None).close()


def test_a_failed_gate_saves_no_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_scored(Cell("m", "text"), HUNDRED)
    file = tmp_path / "a.zip"
    Gate.of(None, file).close()
    before = file.read_bytes()
    write_scored(Cell("m", "text"), dict.fromkeys(HUNDRED, 0.0))
    assert Gate.of(file, file).close() == ExitStatus.FELL
    assert file.read_bytes() == before
    assert "not saved: the gate failed" in capsys.readouterr().out
    Gate.of(None, file).close({"m/text": "", "m/other": "model does not load"})
    assert file.read_bytes() == before
    assert "not saved: 1 result failed" in capsys.readouterr().out


# ---- JUnit XML, and statuses


def test_junit_xml_holds_any_text_and_what_its_schemas_ask_for() -> None:
    hostile = "\x00\x1b[31m\ud83d<&>\"'\uffff 中文"
    xml = junit_xml(
        hostile, [Case(hostile, hostile, hostile), Case("c", "n"), Case("c", "s", "", "new")], {}, hostile
    )
    suite = ElementTree.fromstring(xml.encode())
    assert suite.tag == "testsuite"
    assert {"name", "tests", "failures", "errors", "time", "timestamp", "hostname"} <= set(suite.keys())
    assert [one.tag for one in suite] == ["properties", *["testcase"] * 3, "system-out", "system-err"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", str(suite.get("timestamp")))
    assert all({"name", "classname", "time"} <= set(case.keys()) for case in suite.iter("testcase"))
    assert {"message", "type"} <= set(next(suite.iter("failure")).keys())
    assert "<&>\"' 中文" in str(suite.get("name"))


def test_a_failed_run_stays_failed() -> None:
    assert worst([ExitStatus.FELL, ExitStatus.INCOMPLETE]) == ExitStatus.FELL
    assert worst([ExitStatus.FELL, ExitStatus.FAILED]) == ExitStatus.FAILED
    assert int(ExitStatus.FELL) == 4


# ---- as a user, and as CI


@needs_driver_env
def test_the_example_of_the_guide_works_and_weights_of_an_earlier_step_stop_it(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "checkout")
    guide = (REPO / "docs/how-to/gate.md").read_text()
    [text] = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    steps = yaml.safe_load(text)["jobs"]["gate"]["steps"]
    commands = [step["run"] for step in steps if "eval.sh" in step.get("run", "")]
    [make] = re.findall(r"```bash\n(bash eval.sh [^`]*--save_baseline[^`]*)\n```", guide)
    assert len(commands) == 1
    run_command(["bash", "-ec", f"{make} --limit 24"], cwd=checkout, env=environ(checkout), status=0)
    assert (checkout / "ci/baseline.zip").is_file()
    shapes = checkout / "infer/custom_models/shapes_tiny"
    shutil.rmtree(shapes / "late")
    (shapes / "early").rename(shapes / "late")
    shutil.rmtree(checkout / "output")
    command = f"{commands[0]} --limit 24"
    run = run_command(["bash", "-ec", command], cwd=checkout, env=environ(checkout), status=4)
    assert re.search(r"^fell +shapes-tiny/quickshapes/overall ", run.stdout, re.MULTILINE)
    xml = next(step["with"]["path"] for step in steps if "upload-artifact" in step.get("uses", "")).split()[0]
    assert int(ElementTree.parse(checkout / xml).getroot().get("failures", "0")) > 0


@needs_driver_env
def test_eval_sh_gates_what_is_there_and_a_run_that_failed_stays_failed(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "checkout")
    here = tmp_path / "here"
    here.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IMAGEEVALKIT_OUTPUT", str(checkout / "output"))
        for cell in (Cell("m", "text"), Cell("failing", "quicktext")):
            write_scored(cell, HUNDRED)
        Gate.of(None, here / "b.zip").close()
        write_scored(Cell("m", "text"), dict.fromkeys(HUNDRED, 0.0))
    program = os.path.relpath(checkout / "eval.sh", here)
    run = run_command(["bash", program, "--gate", "b.zip"], cwd=here, env=environ(checkout))
    assert (run.returncode, run.stderr) == (4, "")
    assert "gate: 1 of 2 lines failed" in run.stdout
    assert (checkout / "log/gate.xml").is_file()
    # what stands of before is not the score of a run that failed
    add_model(checkout, "failing", "Failing", FAILING, model_kwargs={"at": "load"})
    words = ("--model_names", "failing", "--ds_names", "quicktext", "--gate", str(here / "b.zip"))
    run = run_eval(checkout, *words, status=1)
    assert re.search(r"^missing +failing/quicktext .*failed in this run", run.stdout, re.MULTILINE), (
        run.stdout
    )


def test_a_gate_that_could_not_look_is_refused_before_a_run_starts(tmp_path: Path) -> None:
    write_scored(Cell("m", "text"), HUNDRED)
    Gate.of(None, saved := tmp_path / "b.zip").close()
    for words, says in (
        ([], "b.zip has no result of this run; it has m/text"),
        (["--detach"], "--detach ends before the gate"),
    ):
        options = resolve(parse(["--quickstart", "--gate", str(saved), *words]), Config())
        with pytest.raises(UserError, match=says):
            GateHook(options).prepare(make_plan(options, Config()))
