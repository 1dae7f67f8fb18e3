"""OneIG-Bench's official programs, run on the same grids and answers, write the same tables."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence

import pytest

from benchmarks.oneig import summary
from benchmarks.oneig.data import TASKS, Task
from benchmarks.oneig.scores import metrics
from tests.support.oneig_official_runs import TASKS_OF, OfficialRun, official_runs
from tests.support.oneig_scored import run_of

# pandas takes these means, and another version of it adds in another order
BY_PANDAS = {"alignment", "reasoning", "style", "total average"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, OfficialRun]:
    return official_runs(tmp_path_factory.mktemp("official"))


RUNS = [f"{edition}/{kind}" for edition in ("oneig", "oneig-zh") for kind in ("whole", "gaps", "stops")]


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
    assert stopped == ({"text", "reasoning"} if name.endswith("/stops") else set())
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


@pytest.mark.parametrize("name", RUNS)
def test_the_official_analysis_writes_the_same_tables(runs: Mapping[str, OfficialRun], name: str) -> None:
    run = runs[name]
    written = summary.analysis_files(run_of(run.scored, TASKS, "official", run.edition))
    ours = {
        file.split()[0].lower(): next(csv.DictReader(text.splitlines())) for file, text in written.items()
    }
    if name.endswith("/stops"):
        # only two of the programs were run, and the script begins with another one's file
        assert run.raised["fine_grained"] == "IndexError"
        assert "Text Model Scores.csv" not in written and "Reasoning Model Scores.csv" not in written
        return
    assert ours == run.fine_grained
    analysed = {"reasoning", "style"} if name.startswith("oneig-zh") else set(TASKS)
    # the script stops at a text prompt without a score
    stops = name == "oneig/gaps"
    assert ours.keys() == (analysed - {"text"} if stops else analysed)
    assert run.raised["fine_grained"] == ("ValueError" if stops else "")
