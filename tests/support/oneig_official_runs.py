"""Runs of the official programs beside ours: the same prompts, grids and answers for both."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from benchmarks.oneig.data import CHINESE, ENGLISH, FOLDERS, Edition, Prompt, Task
from benchmarks.oneig.scores import STYLE_GROUPS, STYLES
from imageevalkit.store.cell import REPO
from tests.support.official_oneig import official_source
from tests.support.oneig_programs import CELL, paint
from tests.support.oneig_scored import BLACK, GONE, PromptImages, image_of, image_values, real_prompts

MODEL = "m"
IMAGES = 4
_SCRIPTS = (
    *(f"scripts/{task}/{task}_score.py" for task in ("alignment", "text", "reasoning", "style", "diversity")),
    "scripts/text/text_utils.py",
    "scripts/utils/utils.py",
)
# short ones, as the official edit distance is quadratic in Python; 036 is of those with more tokens
_TEXTS = ("000", "001", "036", "038", "040", "066", "112", "150")
Key = tuple[str, str]
_CATEGORIES = {folder: category for category, folder in FOLDERS.items()}

TASKS_OF: Mapping[str, tuple[Task, ...]] = {"stops": ("text", "reasoning")}
"""The programs of a kind of run; all five where it is not listed."""

# (class, id) of prompts none of whose images came out, and of those whose grid file is missing
_FAILED: Mapping[str, frozenset[Key]] = {
    "whole": frozenset(),
    "gaps": frozenset(
        {
            *(("human", "001"), ("object", "038"), ("anime", "050"), ("anime", "192")),
            *(("text", "001"), ("text", "038"), ("text", "066")),
        }
    ),
    "stops": frozenset({("text", "000"), ("reasoning", "001")}),
}
_MISSING: Mapping[str, frozenset[Key]] = {
    "whole": frozenset(),
    "gaps": frozenset(
        {("human", "002"), ("object", "001"), ("anime", "084"), ("text", "112"), ("reasoning", "002")}
    ),
    "stops": frozenset(),
}


class OfficialRun(NamedTuple):
    """``tables`` are what the programs wrote, by name without time, ``fine_grained`` the rows of their analysis;
    ``raised`` is the class of a program's error, if any."""

    edition: Edition
    scored: Sequence[PromptImages]
    tables: Mapping[str, str]
    fine_grained: Mapping[str, Mapping[str, str]]
    raised: Mapping[str, str]


def official_runs(folder: Path) -> dict[str, OfficialRun]:
    """Runs of every kind in both languages, by names as "oneig-zh/whole"; skips the test without official code.

    "whole": black cells only; "gaps": whole prompts failed or missing; "stops": programs stop with an error.
    """
    for path in (*_SCRIPTS, "fine_grained_analysis.py"):
        _write(folder / path, official_source(path))
    codes: dict[tuple[str, Key, int], int] = {}
    facts: dict[int, dict[str, Any]] = {}
    runs: dict[str, Any] = {}
    scored: dict[str, list[PromptImages]] = {}
    for edition in (ENGLISH, CHINESE):
        prompts = _chosen(real_prompts(edition))
        _write_data(folder, edition, prompts)
        for prompt in prompts:
            for place in range(IMAGES):
                code = codes[edition.name, _key(prompt), place] = len(codes)
                facts[code] = _facts(prompt, place)
        for kind in _FAILED:
            run = f"{edition.name}/{kind}"
            scored[run] = scored_prompts(edition, kind)
            _write_run(folder, folder / run, edition, scored[run], codes)
            arguments = _arguments(edition)
            runs[run] = {task: arguments[task] for task in TASKS_OF.get(kind, arguments)}
    for name, content in (("facts", facts), ("runs", runs), ("styles", STYLES)):
        _write(folder / f"{name}.json", json.dumps(content))
    subprocess.run(
        [sys.executable, "-m", "tests.support.oneig_programs", str(folder)],
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        check=True,
        capture_output=True,
    )
    outcomes = json.loads((folder / "outcomes.json").read_text())
    return {
        run: OfficialRun(
            edition,
            scored[run],
            {
                re.sub(r"_[\d_-]+\.csv$", ".csv", path.name): path.read_text()
                for path in (folder / run / "results" / MODEL).iterdir()
            },
            {
                path.name.split()[0].lower(): next(csv.DictReader(path.read_text().splitlines()))
                for path in (folder / run).glob("* Model Scores.csv")
            },
            outcomes[run],
        )
        for edition in (ENGLISH, CHINESE)
        for run in runs
        if run.startswith(f"{edition.name}/")
    }


def scored_prompts(edition: Edition, kind: str) -> list[PromptImages]:
    """Returns the inputs of our side in a run; skips the test without the official data."""
    prompts = _chosen(real_prompts(edition))
    return [_scored(prompt, number, kind) for number, prompt in enumerate(prompts)]


def _key(prompt: Prompt) -> Key:
    return prompt.class_item, prompt.id


def _chosen(prompts: Sequence[Prompt]) -> list[Prompt]:
    """A few prompts of every class; one at least of every subject, and of every style of one group."""
    kept, seen = [], set()
    for prompt in prompts:
        wanted = prompt.class_item == "reasoning" or prompt.style in STYLE_GROUPS["media"]
        if (
            _key(prompt) in (("anime", "192"), ("object", "038"))
            or (prompt.id in _TEXTS if prompt.class_item == "text" else prompt.id < "003")
            or (wanted and prompt.label not in seen)
        ):
            kept.append(prompt)
            seen.add(prompt.label)
    return kept


def _facts(prompt: Prompt, place: int) -> dict[str, Any]:
    said = image_values(prompt, place)
    csd, se, _ = said["style"]
    return {
        "answers": {question: said["alignment"][number] for number, question in prompt.questions.items()},
        "reading": said["text"],
        "similarity": said["reasoning"][0],
        "csd": csd,
        "se": se,
        "embedding": said["diversity"],
    }


def _scored(prompt: Prompt, number: int, kind: str) -> PromptImages:
    if _key(prompt) in _MISSING[kind]:
        return PromptImages(prompt, ())
    lost = IMAGES if _key(prompt) in _FAILED[kind] else (0, 0, 1, 0, 2, 3)[number % 6]
    images = [image_of(prompt, place) for place in range(IMAGES)]
    for place in range(lost):
        if (place + number) % 2 == 0:
            images[place] = GONE
        else:
            images[place] = BLACK._replace(image=images[place].image)
    return PromptImages(prompt, images)


def _write_data(folder: Path, edition: Edition, prompts: Sequence[Prompt]) -> None:
    scripts, suffix = folder / "scripts", edition.suffix
    for name in edition.sizes:
        mine = [prompt for prompt in prompts if prompt.class_item == name]
        if name == "text":
            rows = [["", "id", "text_content"], *(["", prompt.id, prompt.expected_text] for prompt in mine)]
            _write_csv(scripts / f"text/text_content{suffix}.csv", rows)
        elif name == "reasoning":
            answers = {prompt.id: prompt.answer for prompt in mine}
            _write(scripts / f"reasoning/gt_answer{suffix}.json", json.dumps(answers))
        else:
            asked = {
                prompt.id: {
                    "question": json.dumps(dict(prompt.questions)),
                    "dependency": json.dumps({n: list(p) or [0] for n, p in prompt.parents.items()}),
                }
                for prompt in mine
            }
            _write(scripts / f"alignment/Q_D/{name}{suffix}.json", json.dumps(asked))
    styles = [["", p.id, p.label] for p in prompts if p.class_item == "anime"]
    _write_csv(scripts / "style/style.csv", [["", "id", "class"], *styles])


def _write_run(
    folder: Path,
    run: Path,
    edition: Edition,
    scored: Sequence[PromptImages],
    codes: Mapping[tuple[str, Key, int], int],
) -> None:
    for one in scored:
        if one.images:
            path = run / "images" / one.prompt.class_item / MODEL / f"{one.prompt.id}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            grid = Image.new("RGB", (2 * CELL[0], 2 * CELL[1]))
            for place, image in enumerate(one.images):
                if image is not GONE and image.score is None:
                    cell = paint(codes[edition.name, _key(one.prompt), place])
                    grid.paste(cell, (place % 2 * CELL[0], place // 2 * CELL[1]))
            grid.save(path)
    (run / "scripts").symlink_to(folder / "scripts")
    analysis = (folder / "fine_grained_analysis.py").read_text()
    (run / "fine_grained_analysis.py").write_text(
        analysis.replace('MODE = "EN"', f'MODE = "{edition.mode}"', 1)
    )
    header = ["category", "id", "type", "prompt_length", "class"]
    rows = [
        [_CATEGORIES[p.class_item], p.id, p.type, p.length, p.label] for p in (one.prompt for one in scored)
    ]
    _write_csv(run / edition.prompt_file, [header, *rows])


def _arguments(edition: Edition) -> dict[str, list[str]]:
    common = ["--mode", edition.mode, "--model_names", MODEL, "--image_grid", "2,2", "--image_dirname"]
    aligned = [name for name in edition.sizes if name not in ("text", "reasoning")]
    return {
        "alignment": [*common, "images", "--class_items", *aligned],
        "text": [*common, "images/text"],
        "reasoning": [*common, "images/reasoning"],
        "style": [*common, "images/anime"],
        "diversity": [*common, "images", "--class_items", *edition.sizes],
    }


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _write_csv(path: Path, rows: Sequence[Sequence[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
