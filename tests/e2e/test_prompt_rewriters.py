"""``--prompt_rewriter`` through ``eval.sh``: a model's prompts rewritten by a language model on a real HTTP server."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from imageevalkit.store.cell import Cell
from tests.support import puzzles
from tests.support.checkout import environ, make_checkout, needs_driver_env, run_command, run_eval, start_eval
from tests.support.image_server import ImageServer
from tests.support.mirror import shared_mirror
from tests.support.raw_relations import certainty, relations
from tests.support.rewriter_server import RewriterServer, is_rewrite, puzzle_in
from tests.support.schemas import check_files
from tests.support.waiting import wait_for

pytestmark = needs_driver_env
KEY = "sk-rewriter-0815-key"
KEYS = {"API_KEY": "EMPTY", "REWRITER_API_KEY": KEY, "JUDGE_API_KEY": "EMPTY"}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the benchmarks of puzzles."""
    made = make_checkout(tmp_path_factory.mktemp("rewriters"))
    (made / "benchmarks/puzzles").mkdir()
    shutil.copy(puzzles.__file__, made / "benchmarks/puzzles/benchmark.py")
    return made


class Runs:
    """Runs in one checkout: images of ``images`` or a reference model, the rewriter and the judge on ``server``."""

    def __init__(
        self, checkout: Path, tmp_path: Path, server: RewriterServer, images: ImageServer | None = None
    ) -> None:
        self.checkout, self.server, self.images = checkout, server, images
        self.output = tmp_path / "output"
        self.folders = {"IMAGEEVALKIT_OUTPUT": str(self.output), "IMAGEEVALKIT_LOG": str(tmp_path / "log")}

    def words(
        self, *more: str, model: str = "", rewriter: str = "wise", kwargs: str = "", ds: str = "puzzles"
    ) -> list[str]:
        made = model or ("drawn" if self.images else "reference-noise")
        own = f"base_url={self.server.base_url},api_key_env=REWRITER_API_KEY,backoff=0.01{kwargs}"
        words = ["--model_names", made, "--ds_names", ds]
        words += ["--judge_kwargs", f"base_url={self.server.base_url},api_key_env=JUDGE_API_KEY"]
        words += ["--prompt_rewriter", rewriter, "--rewriter_kwargs", own] if rewriter else []
        if self.images:
            words += ["--use_api", "true", "--custom_model_kwargses", f"base_url={self.images.base_url}"]
        return [*words, *more]

    def run(self, *more: str, status: int = 0, **how: str) -> str:
        """Returns the output of a run. Fails if the run ends with another status."""
        words = self.words(*more, **how)
        ended = run_eval(self.checkout, *words, status=status, **self.folders, **KEYS)
        return ended.stdout + ended.stderr

    def cells(self) -> list[str]:
        """The models that have a folder for the puzzles."""
        return sorted(path.parent.name for path in self.output.glob("*/puzzles"))

    def records(self, model: str, benchmark: str = "puzzles") -> dict[str, dict[str, Any]]:
        lines = (self.output / model / benchmark / "generation.jsonl").read_text().splitlines()
        return {record["item"]: record for record in map(json.loads, lines)}

    def result(self, model: str) -> dict[str, Any]:
        return dict(json.loads((self.output / model / "puzzles/result.json").read_text()))


def test_the_model_and_wises_judge_see_the_new_prompt(checkout: Path, tmp_path: Path) -> None:
    with RewriterServer() as server, ImageServer() as images:
        runs = Runs(checkout, tmp_path, server, images)
        runs.run(rewriter="")
        runs.run(ds="puzzles;puzzle-edits;puzzle-subjects")
        first, second = runs.cells()
        assert first == "drawn"
        assert Cell(second, "puzzles").raw.model == "drawn"
        assert Cell(second, "puzzles").rewriter.startswith("wise-")
        # the generator; APIs are not sent the name of a subject
        edits = ["plain: a dog on the moon", "plain: edit 0", "plain: edit 1"]
        made = {f"puzzle {n}" for n in range(6)} | {f"plain: puzzle {n}" for n in range(6)} | {*edits}
        assert sorted(one.prompt for one in images.requests) == sorted(made)
        assert [len(one.files) for one in images.requests if one.prompt in edits] == [1, 1, 1]
        record = runs.records(second, "puzzle-subjects")["images/0"]
        assert record["rewriting"]["original"] == "dog a dog on the moon" and len(record["inputs"]) == 1
        # the judge
        judged = [one.prompt for one in server.requests if not is_rewrite(one)]
        assert sorted(judged) == sorted(f"Is it there: {prompt}?" for prompt in made)
        # the rewriter, at its own endpoint and with its own key and model
        asked = [one for one in server.requests if is_rewrite(one)]
        assert {one.headers["authorization"] for one in asked} == {f"Bearer {KEY}"}
        assert {(one.fields["model"], one.fields["max_tokens"]) for one in asked} == {
            ("gpt-4o-2024-05-13", 500)
        }
        assert all("temperature" not in one.fields for one in asked)
        record, own = runs.records(second)["images/3"], runs.records("drawn")["images/3"]
        assert (record["prompt"], record["rewriting"]["original"]) == ("plain: puzzle 3", "puzzle 3")
        assert record["rewriting"]["original_sha256"] == own["prompt_sha256"] != record["prompt_sha256"]
        assert record["seed"] == own["seed"] == 45
        assert "rewriting" not in own
        assert check_files(runs.output / second / "puzzles") >= {"prompts.jsonl", "judgements.jsonl"}
        assert not [p for p in tmp_path.rglob("*") if p.is_file() and KEY.encode() in p.read_bytes()]

        # both in one report: the same row, never the same column
        board = (runs.output / "leaderboard.md").read_text().splitlines()
        header, _, *rows = [line for line in board if line.startswith("|")]
        columns = [name for cell in header.split("|") if (name := cell.strip()).startswith("puzzles")]
        by = Cell(second, "").rewriter
        assert [name.startswith(("puzzles/", f"puzzles+{by}/")) for name in columns] == [True, True]
        assert columns[0] != columns[1]
        assert rows[0].startswith("| drawn |")
        gallery = (runs.output / "report.html").read_text()
        assert f'"rewritten":["rewritten by {by}","plain: puzzle 3"]' in gallery
        assert '"prompt":"puzzle 3"' in gallery
        assert '"prompt":"plain: puzzle 3"' not in gallery
        assert "6 of 6 images are of prompts rewritten by" in runs.result(second)["notes"][0]
        assert runs.result(second)["provenance"]["model_settings"][0]["prompt_rewriter"] == by


def test_two_models_share_replies_and_what_could_not_be_rewritten_is_mended(
    checkout: Path, tmp_path: Path
) -> None:
    both = "reference-noise;reference-blank"
    with RewriterServer() as server:
        runs = Runs(checkout, tmp_path, server)
        server.fail("puzzle 1", "refuse")
        server.fail("puzzle 2", "garbage")
        lossy: dict[str, Any] = {"model": both, "kwargs": ",max_attempts=2"}
        said = runs.run(status=3, **lossy)
        assert sorted(set(server.rewrites)) == [f"puzzle {n}" for n in range(6)]
        # both share the requests, and the run pays for them once
        told = r"4 of 6 prompts rewritten; 2 could not be .*; (\$[\d.]+) for gpt-4o"
        assert len({*re.findall(told, said)}) == 1
        noise = runs.cells()[1]
        records = runs.records(noise)
        lost = {item: one["rewriting"]["kept"] for item, one in records.items() if one["rewriting"]["lost"]}
        assert lost.keys() == {"images/1", "images/2"}
        assert records["images/2"]["prompt"] == records["images/2"]["rewriting"]["original"] == "puzzle 2"
        assert "4 of 6 images are of prompts rewritten" in (note := runs.result(noise)["notes"][0])
        assert "2 of original ones that could not be rewritten" in note

        # an image of an original prompt stays, until it may be overwritten; the others are not touched
        asked, made = len(server.rewrites), records["images/0"]["time"]
        server.fail("puzzle 1", "ok")
        server.fail("puzzle 2", "ok")
        runs.run("--overwrite", "--retry_refused", **lossy)
        assert sorted(server.rewrites[asked:]) == ["puzzle 1", "puzzle 2"]
        records = runs.records(noise)
        prompts = [records[f"images/{n}"]["prompt"] for n in range(6)]
        assert prompts == [f"plain: puzzle {n}" for n in range(6)]
        assert records["images/0"]["time"] == made


def test_kill_9_loses_no_reply_and_the_rest_needs_neither_network_nor_key(
    checkout: Path, tmp_path: Path
) -> None:
    with RewriterServer(latency=0.3) as server:
        runs = Runs(checkout, tmp_path, server)
        words = runs.words("--eval", "false", "--num_workers", "1")
        process = start_eval(checkout, *words, **runs.folders, **KEYS)
        wait_for(lambda: len(server.rewrites) >= 4)
        process.send_signal(signal.SIGKILL)
        process.wait()
        server.latency = 0
        kept = [
            json.loads(line) for path in runs.output.glob("rewrites/wise-*.jsonl") for line in path.open()
        ]
        assert len(kept) >= 2
        # a benchmark that cannot be rewritten stops no other
        said = runs.run("--infer", "false", "--eval", "false", status=1, ds="quicktext;puzzles")
        assert "takes prompts with an explanation, and quicktext has none" in said
        # one was in flight
        assert len(server.rewrites) <= 7
        assert set(server.rewrites) == {f"puzzle {n}" for n in range(6)}
        assert not [*runs.output.rglob("*.png"), *runs.output.rglob("*.jpg")]
    run_eval(
        checkout, *runs.words("--eval", "false"), status=0, **runs.folders, API_KEY="", REWRITER_API_KEY=""
    )
    [cell] = runs.cells()
    assert {one["prompt"] for one in runs.records(cell).values()} == {f"plain: puzzle {n}" for n in range(6)}


def test_dtm_from_prefetch_to_report(checkout: Path, tmp_path: Path) -> None:
    fetched = run_command(
        ["bash", "utils/prefetch.sh", "--prompt_rewriter", "dtm", "--mirror", str(shared_mirror())],
        cwd=checkout,
        env=environ(checkout),
        status=0,
    )
    told = "dtm: 0 files were right already, 1 fetched, 0 problems; licence: CC-BY-NC-SA-4.0"
    assert told in fetched.stdout
    with RewriterServer() as server:
        runs = Runs(checkout, tmp_path, server)
        folder = runs.output / "reference-noise" / "puzzles" / "relations"
        relations(folder)
        certainty(folder, None)
        said = runs.run(rewriter="dtm")
        assert "by the relations of 84 items that some-judge@1 scored" in said
        told = "5 of 6 prompts rewritten; 1 stay as they are (the first: no relation is known of D-K_D-A)"
        assert told in said
        asked = [one for one in server.requests if is_rewrite(one)]
        assert {one.fields["model"] for one in asked} == {"gpt-4o"}
        # the judge reads the benchmark's own prompts
        judged = {one.prompt for one in server.requests if not is_rewrite(one)}
        assert judged == {f"Is it there: puzzle {n}?" for n in range(6)}
        of_pair = {puzzle_in(one): one.prompt for one in asked}
        assert "Prioritize Style Alignment↑ while maintaining Content Alignment" in of_pair["puzzle 2"]
        assert "Stabilize Originality - Bias balance" in of_pair["puzzle 3"]
        [_, cell] = runs.cells()
        assert cell.startswith("reference-noise+dtm-")
        record = runs.records(cell)["images/4"]
        assert (record["prompt"], record["rewriting"]["lost"]) == ("puzzle 4", False)
        assert "1 of prompts that it leaves as they are" in runs.result(cell)["notes"][0]
