"""GenEval 2's official formats: what we write can be read again, what is wrong with a file is one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.geneval2.official import (
    filepaths_text,
    read_score_lists,
    score_lists_text,
)
from imageevalkit.adoption.places import read_filepaths
from imageevalkit.cell import REPO
from imageevalkit.errors import UserError

DATA = [
    {"prompt": "a", "atom_count": 3, "skills": ["count", "attribute", "object"]},
    {"prompt": "b", "atom_count": 4, "skills": ["count", "object", "position", "verb"]},
]
LISTS = [[0.25, 1, 1], [0.9, 0.8, 0.95, 0.5]]
# as the official soft_tifa_analysis.py prints it, which has no word for atomicities that do not occur
ANALYSIS = """\
Per Atom Type Analysis (Soft-TIFA AM)
Object:
90.0
Attribute:
100.0
Count:
57.5
Position:
95.0
Verb:
50.0

Per Atomicity Analysis (Soft-TIFA GM)
Results for Atomicity=3
63.0
Results for Atomicity=4
76.47
"""


def test_images_of_the_repository_are_named_from_its_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, outside = REPO / "output" / "m" / "geneval2" / "images" / "000.png", tmp_path / "1.png"
    path = tmp_path / "image_filepaths.json"
    path.write_text(filepaths_text({"a red dog": inside, "two “cats”": outside}))
    assert json.loads(path.read_text())["a red dog"] == "output/m/geneval2/images/000.png"
    monkeypatch.chdir(REPO)
    assert read_filepaths(path) == {"a red dog": inside, "two “cats”": outside}


def test_score_lists_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "lists.json"
    lists: list[list[float]] = [[0.1 + 0.2, 1e-17], [0, 1, 1]]
    path.write_text(score_lists_text(lists))
    assert read_score_lists(path) == lists


@pytest.mark.parametrize(
    "text", ["{}", "[]", "[1]", "[[]]", "[[0.5], [NaN]]", "[[-0.1]]", "[[true]]", '[["0.5"]]', "[[Infinity]]"]
)
def test_what_is_no_score_list_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lists.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"lists\.json") as error:
        read_score_lists(path)
    assert "\n" not in str(error.value)


def analyse(folder: Path, lists: object, data: object) -> subprocess.CompletedProcess[str]:
    (folder / "lists.json").write_text(json.dumps(lists))
    lines = [json.dumps(record) for record in data] if isinstance(data, list) else [str(data)]
    (folder / "data.jsonl").write_text("\n".join(lines))
    return subprocess.run(
        [
            *[sys.executable, "-m", "benchmarks.geneval2.analyse"],
            *["--score_data", str(folder / "lists.json"), "--benchmark_data", str(folder / "data.jsonl")],
        ],
        cwd=REPO,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_analysis_of_score_lists_made_elsewhere(tmp_path: Path) -> None:
    run = analyse(tmp_path, LISTS, DATA)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(ANALYSIS)
    *_, dash, _, total, am, gm = run.stdout.splitlines()
    assert (dash, total) == ("–", "Total over 2 prompts")
    assert float(am.removeprefix("AM: ")) == pytest.approx(76.875)
    assert float(gm.removeprefix("GM: ")) == pytest.approx(69.7343853, abs=5e-8)


@pytest.mark.parametrize(
    ("lists", "data", "says"),
    [
        (LISTS[:1], DATA, "has scores of 1 prompts, but"),
        ([LISTS[1], LISTS[0]], DATA, "prompt 0 has 4 scores, but 3 atoms"),
        ([[0.5], [0.25]], DATA, "one score per prompt, as VQAScore gives"),
        (LISTS, [*DATA[:1], {"prompt": "b"}], "line 2 has no atom_count"),
        (LISTS, [*DATA[:1], {**DATA[1], "skills": ["count", "object", "position", "mood"]}], "line 2 has no"),
        (LISTS, [{**DATA[0], "atom_count": 2}, *DATA[1:]], "line 1 has no atom_count from 3 to 10"),
        (LISTS, "{", "is not JSON Lines"),
    ],
)
def test_lists_and_data_that_do_not_fit_are_one_line(
    tmp_path: Path, lists: object, data: object, says: str
) -> None:
    run = analyse(tmp_path, lists, data)
    assert (run.returncode, run.stdout) == (2, "")
    assert says in run.stderr
    assert len(run.stderr.splitlines()) == 1
