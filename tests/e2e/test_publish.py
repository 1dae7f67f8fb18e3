"""Other programs can read the folder of --publish; it explains its scores and names no folder of this machine."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from huggingface_hub import DatasetCard, parse_eval_result_entries
from yaml import safe_load  # type: ignore[import-untyped]

from imageevalkit.extras.publish.folder import publish
from imageevalkit.report.sharing import public
from imageevalkit.store.cell import REPO, Cell, output_root
from imageevalkit.store.results import Evaluator, Metric, as_object, read_result
from tests.support.cells import QWEN, Made, write_cell, write_scored
from tests.support.checkout import run_command
from tests.support.commands import eval_here
from tests.support.mirror import official_folder
from tests.support.site import Site

COMMIT = "9bce4136e789ec006c62582f5f9d107d20f8b398"  # of Every Eval Ever, schema 0.3.0
FEW = {f"p/{n:02}": n / 20 for n in range(20)}
HUB = {"task": "t2i", "class": ".m:M", "model_path": "org/model"}
TUNED = {**HUB, "kwargs.vae": "/home/somebody/secret/vae"}


def has_settings(cell: Cell, **settings: Any) -> None:
    """``cell`` as made by a model with these settings."""
    result = read_result(cell.result)
    origin = {**result.provenance, "model_settings": [settings], "imageevalkit": "1.2"}
    cell.result.write_text(json.dumps(as_object(replace(result, provenance=origin))))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "public"


@pytest.fixture
def results() -> None:
    """Writes three results of a model of the Hub: complete and official; limited with another judge; withheld."""
    has_settings(write_scored(Cell("mine", "unigenbench"), FEW, evaluator=QWEN), **HUB)
    trial = write_scored(Cell("mine", "text"), FEW, more={"limit": 20})
    has_settings(trial, **TUNED)
    items = [Made(f"i{n}", "/imagine a cat", "ok" if n else "refused", value=0.5) for n in range(3)]
    has_settings(write_cell("mine", "signs", items, {"accuracy": Metric(0.5, 2)}, evaluator=QWEN), **HUB)


def logs(folder: Path) -> dict[str, dict[str, Any]]:
    """The aggregates by benchmark."""
    files = (folder / "every_eval_ever").rglob("*.json")
    found = [json.loads(path.read_bytes()) for path in files]
    return {one["evaluation_results"][0]["source_data"]["dataset_name"]: one for one in found}


def test_what_is_published(results: None, folder: Path) -> None:
    told: list[str] = []
    publish(folder, told.append)
    # results with scores are in Every Eval Ever as what they are
    found = logs(folder)
    assert sorted(found) == ["text", "unigenbench"]  # one withheld has no score to state
    whole, trial = (found[name]["evaluation_results"][0] for name in ("unigenbench", "text"))
    assert whole["score_details"]["score"] == pytest.approx(0.475)
    interval = whole["score_details"]["uncertainty"]["confidence_interval"]
    assert interval["lower"] < 0.475 < interval["upper"]
    assert "caveats" not in whole["score_details"]["details"]
    assert whole["evaluation_name"] == "imageevalkit.unigenbench.accuracy"
    assert whole["source_data"]["hf_repo"] == "CodeGoat24/UniGenBench"
    assert trial["evaluation_name"] == "imageevalkit.text.accuracy.first-20"
    assert trial["score_details"]["details"]["caveats"] == (
        "only the first 20 items; measured by ppocr-v4, which is not the official evaluator"
    )
    assert found["unigenbench"]["model_info"]["id"] == "org/model"
    assert found["text"]["model_info"]["id"] == "unknown/mine"
    [samples] = (folder / "every_eval_ever").glob("data/imageevalkit-text/unknown/mine/*_samples.jsonl")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert {row["sample_id"]: row["evaluation"]["score"] for row in rows} == FEW
    assert rows[0]["input"]["raw"] == "a picture of p/00"

    # only whole official measurements go to the page of a model
    [path] = [one for one in (folder / "models").rglob("*") if one.is_file()]
    assert path.relative_to(folder).as_posix() == "models/org/model/.eval_results/unigenbench.yaml"
    [entry] = parse_eval_result_entries(safe_load(path.read_text()))
    assert (entry.dataset_id, entry.task_id) == ("CodeGoat24/UniGenBench", "unigenbench")
    assert entry.value == pytest.approx(0.475)
    assert entry.date == "2026-11-01T10:00:00+00:00"
    assert any(f"hf upload org/model {folder}/models/org/model . --create-pr" in line for line in told)

    # the card and its tables can be loaded
    card = DatasetCard.load(folder / "README.md")
    assert [one["data_files"] for one in card.data.to_dict()["configs"]] == [
        "leaderboard.csv",
        "scores.jsonl",
    ]
    assert "| mine |" in card.text
    assert "- withheld: incomplete: 1 refused: mine / signs" in card.text
    assert "- only the first 20 items: mine / text" in card.text
    board = pd.read_csv(folder / "leaderboard.csv")
    assert (
        board.set_index("benchmark").loc["signs", "value"]
        != board.set_index("benchmark").loc["text", "value"]
    )
    scores = pd.read_json(folder / "scores.jsonl", lines=True)
    assert scores[scores.benchmark == "text"].score.mean() == pytest.approx(0.475)
    assert set(scores[scores.benchmark == "signs"].caveats) == {
        "withheld: incomplete: 1 refused; only 2 of 3 items"
    }
    assert "/imagine a cat" in set(scores.prompt)


def test_their_own_validator_takes_it(results: None, folder: Path, tmp_path: Path) -> None:
    official = tmp_path / "official"
    for name, content in official_folder("evaleval/every_eval_ever", COMMIT, "every_eval_ever").items():
        path = official / "every_eval_ever" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    write_scored(Cell("a/b: c", "grades"), {f"i{n}": 60.0 + n for n in range(30)}, top=100.0)
    write_scored(Cell("cosine", "grades"), {f"i{n}": -0.1 for n in range(30)})
    publish(folder, lambda line: None)
    command = [sys.executable, "-m", "every_eval_ever.validator.cli", "--format", "json"]
    files = sorted((folder / "every_eval_ever").rglob("*.json*"))
    assert len(files) == 8

    def validated(paths: Sequence[Path]) -> tuple[int, str]:
        ran = run_command(
            [*command, *map(str, paths)], cwd=official, env={**os.environ, "PYTHONPATH": str(official)}
        )
        return ran.returncode, ran.stdout + ran.stderr

    status, said = validated(files)
    assert status == 0, said
    # and it is no validator that takes anything
    broken = files[0]
    broken.write_text(broken.read_text().replace('"score"', '"scores"'))
    status, said = validated([broken])
    assert status == 1, said


def test_nothing_published_tells_of_secrets_or_of_this_machine(
    results: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_API_KEY", "sk-very-secret-0123")
    judge = Evaluator(
        "judge",
        official=False,
        details={
            "weights": f"{output_root()}/w/x.pt",
            "header": "Bearer sk-very-secret-0123",
            "code": str(REPO / "x.py"),
        },
    )
    cell = write_scored(
        Cell("half", "text"),
        FEW,
        evaluator=judge,
        prompts=lambda item: f"{Path.home()}/cat of {item} in {REPO}",
    )
    has_settings(cell, model_path=str(Path.home() / "checkpoints" / "mine"), host="u:sk-very-secret-0123@x")
    publish(folder, lambda line: None)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 6
    for path in files:
        text = path.read_text(errors="replace")  # previews, too
        for secret in ("sk-very", str(REPO), str(output_root()), "/home/somebody", str(Path.home()) + "/"):
            assert secret not in text, (path, secret)
    assert "half" in {one["model_info"]["name"] for one in logs(folder).values()}


def test_published_again_it_is_the_same_and_keeps_nothing_old(results: None, folder: Path) -> None:
    publish(folder, lambda line: None)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert not (output_root() / "report").exists() and not (output_root() / "report.html").exists()
    assert not list(folder.glob(".*"))
    old = folder / "every_eval_ever/data/imageevalkit-gone/x/y.json"
    old.parent.mkdir(parents=True)
    old.write_text("{}")
    publish(folder, lambda line: None)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_the_published_site_stands_alone(results: None, folder: Path) -> None:
    write_cell("drawn", "text", [Made("images/1", "a <cat>", value=1.0)], {"accuracy": Metric(1.0, 1)})
    publish(folder, lambda line: None)
    site = Site(folder / "report/index.html")
    assert set(site.index["roots"]) == {""}
    [item] = site.items("drawn", "text").values()
    assert site.picture(item["preview"])[:4] == b"RIFF"
    assert not list((folder / "report").rglob("*.png"))
    (folder / "report/data/old.js").write_text("old")
    shutil.rmtree(Cell("drawn", "text").folder)
    publish(folder, lambda line: None)
    assert not (folder / "report" / item["preview"]).exists()
    assert not (folder / "report/data/old.js").exists()


def test_the_command_publishes_and_takes_votes_of_what_is_there(folder: Path, tmp_path: Path) -> None:
    write_scored(Cell("m", "text"), FEW)
    votes = tmp_path / "ann.json"
    record = {"benchmark": "text", "item": "p/00", "left": "m", "right": "n", "winner": "left"}
    votes.write_text(json.dumps({"format": "imageevalkit-votes/1", "voter": "ann", "votes": [record]}))
    done = eval_here("--publish", folder, "--votes", votes)
    assert (done.status, done.error) == (0, "")
    assert "nothing was uploaded; to do so: hf upload" in done.said
    assert (folder / "README.md").is_file()
    assert [one.read_text() for one in (output_root() / "votes").iterdir()] == [votes.read_text()]
    wrong = eval_here("--quickstart", "--publish", tmp_path)
    assert wrong.status == 2 and "holds other files: give a new folder" in wrong.error


def test_a_model_that_is_not_that_of_the_hub_is_not_called_so(folder: Path) -> None:
    added = {"kwargs.lora": "mine.safetensors", "weights of kwargs.lora": "ab12"}
    has_settings(write_scored(Cell("tuned", "unigenbench"), FEW, evaluator=QWEN), **HUB, **added)
    told: list[str] = []
    publish(folder, told.append)
    assert not (folder / "models").exists()
    assert logs(folder)["unigenbench"]["model_info"]["id"] == "unknown/tuned"
    [line] = [line for line in told if "no .eval_results of tuned: it is not org/model" in line]
    assert "weights of kwargs.lora" in line


def test_the_card_names_a_drift_and_a_result_that_stopped_early(folder: Path) -> None:
    cell = write_scored(Cell("m", "text"), FEW, more={"notes": ["the judge has drifted since May"]})
    result = read_result(cell.result)
    early = replace(result, coverage=replace(result.coverage, expected=50, unasked=30))
    cell.result.write_text(json.dumps(as_object(early)))
    publish(folder, lambda line: None)
    card = (folder / "README.md").read_text()
    assert "- only 20 of 50 items: m / text" in card
    assert "- the judge has drifted since May: m / text" in card
    assert logs(folder)["text"]["evaluation_results"][0]["evaluation_name"].endswith(".asked-20")


def test_of_absolute_paths_only_the_name_is_public() -> None:
    for text, shown in (
        ("no file /data/alice/ckpt: use /mnt/a/b.pt", "no file ckpt: use b.pt"),
        ('["/data/alice/a", "x\\n/data/alice/b"]', '["a", "x\\nb"]'),
        ("--lora=/data/alice/l", "--lora=l"),
        ('{"a": "/data/alice smith/a b.pt"}', '{"a": "a b.pt"}'),
        ("https://x.org:80/a/b?c=/d/e", "https://x.org:80/a/b?c=/d/e"),
        ("/imagine a cat and/or a dog", "/imagine a cat and/or a dog"),
    ):
        assert public(text) == shown
