"""``--prompt_rewriter`` through ``eval.sh``: a model's prompts rewritten by a language model on a real HTTP server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from custom_rewriters import dtm

from imageevalkit.assets import PromptsAsset
from imageevalkit.assets.data import pinned_texts
from imageevalkit.common.errors import CellFailure
from imageevalkit.extras.relations import files as relation_files
from imageevalkit.extras.relations.relations import Relations
from imageevalkit.extras.rewrite.rewriting import Reply
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from tests.support.checkout import REPO, environ, make_checkout, needs_driver_env, run_eval
from tests.support.image_server import ImageServer, Received
from tests.support.judge_server import ReplyServer
from tests.support.mirror import official_source, shared_mirror
from tests.support.schemas import check_files
from tests.support.waiting import LONGEST_WAIT

pytestmark = needs_driver_env
KEY = "sk-rewriter-0815-key"

PUZZLES = """
from PIL import Image

from imageevalkit.benchmark.contract import Benchmark, Sample
from imageevalkit.benchmark.question import ask
from imageevalkit.store.results import Score
from imageevalkit.metrics import mean

PAIRS = ("IQ-R_TA-C", "IQ-R_TA-S", "TA-C_TA-S", "IQ-O_R-B", "D-K_D-A", "IQ-A_TA-C")


class Puzzles(Benchmark):
    name, version, judge, headline = "puzzles", "1", "openai:judge", ("yes",)
    prompts = {"seen": "Is it there: {prompt}?"}

    def data(self, n):
        return {"explanation": f"because {n}", "pair": PAIRS[n]}

    def samples(self):
        return [Sample(f"images/{n}.png", f"puzzle {n}", n, self.data(n)) for n in range(len(PAIRS))]

    def questions(self, item, image, answers):
        return [ask("seen", image, self.prompts["seen"].format(prompt=self.shown(item)))]

    def shown(self, item):
        return item.prompt

    def score(self, item, answers):
        return Score({"yes": float(answers["seen"].text == "Yes")}, {"pair": item.data["pair"]})

    def metrics(self, scores):
        return {"yes": mean(scores, "yes")}


class PuzzleEdits(Puzzles):
    name, task = "puzzle-edits", "edit"

    def samples(self):
        photo = Image.new("RGB", (32, 32), "red")
        texts = [[photo, f"edit {n}"] for n in range(2)]
        return [Sample(f"images/{n}.png", input_list=t, data=self.data(n)) for n, t in enumerate(texts)]

    def shown(self, item):
        return item.input_list[1]


class PuzzleSubjects(PuzzleEdits):
    name, task = "puzzle-subjects", "subject"

    def samples(self):
        photo = Image.new("RGB", (32, 32), "red")
        return [Sample("images/0.png", input_list=["dog", photo, "a dog on the moon"], data=self.data(0))]

    def shown(self, item):
        return item.input_list[2]
"""


class Rewriter(ReplyServer):
    """Rewrites what it is asked to, and judges with Yes. ``puzzle 0`` becomes ``plain: puzzle 0``, with a colon."""

    reply = staticmethod(lambda request: f" plain: {puzzle_in(request)}\n" if is_rewrite(request) else "Yes")

    def fail(self, puzzle: str, *faults: str) -> None:
        """Answer the first, second, … request to rewrite ``puzzle`` with these faults; the last one repeats."""
        usual, told = self.choose, list(faults)

        def choose(request: Received, attempt: int) -> str:
            if is_rewrite(request) and puzzle_in(request) == puzzle:
                return told.pop(0) if len(told) > 1 else told[0]
            return usual(request, attempt)

        self.choose = choose

    @property
    def rewrites(self) -> list[str]:
        """What was asked to be rewritten, in order; refused and failed requests too."""
        return [puzzle_in(one) for one in self.requests if is_rewrite(one)]


def is_rewrite(request: Received) -> bool:
    return len(request.fields["messages"]) == 2


def puzzle_in(request: Received) -> str:
    text = request.prompt
    marks = ("Prompt: ", "Original input: ", "Original prompt: ", "Plainer: ")
    return next(line.partition(": ")[2] for line in text.splitlines() if line.strip().startswith(marks))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkout(tmp_path_factory.mktemp("rewriters"))


@pytest.fixture
def checkout(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with the benchmarks of puzzles, whose output and logs are this test's own."""
    folder = tree / "benchmarks" / "puzzles"
    folder.mkdir(exist_ok=True)
    (folder / "benchmark.py").write_text(PUZZLES)
    monkeypatch.setenv("IMAGEEVALKIT_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("IMAGEEVALKIT_LOG", str(tmp_path / "log"))
    return tree


class Runs:
    """Runs in one checkout: images of ``images`` or a reference model, the rewriter and the judge on ``server``."""

    def __init__(
        self, checkout: Path, tmp_path: Path, server: Rewriter, images: ImageServer | None = None
    ) -> None:
        self.checkout, self.server, self.images = checkout, server, images
        self.output = tmp_path / "output"
        self.env = {
            "API_KEY": "EMPTY",
            "REWRITER_API_KEY": KEY,
            "JUDGE_API_KEY": "EMPTY",
            "IMAGEEVALKIT_OUTPUT": str(self.output),
            "IMAGEEVALKIT_LOG": str(tmp_path / "log"),
        }

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

    def run(self, *more: str, **how: str) -> subprocess.CompletedProcess[str]:
        return run_eval(self.checkout, *self.words(*more, **how), **self.environ)

    @property
    def environ(self) -> dict[str, str]:
        return {k: v for k, v in self.env.items() if k.endswith("_KEY")}

    def cells(self, benchmark: str = "puzzles") -> list[str]:
        """The models that have a folder for the benchmark."""
        return sorted(path.parent.name for path in self.output.glob(f"*/{benchmark}"))

    def records(self, model: str, benchmark: str = "puzzles") -> dict[str, dict[str, Any]]:
        lines = (self.output / model / benchmark / "generation.jsonl").read_text().splitlines()
        return {record["item"]: record for record in map(json.loads, lines)}

    def result(self, model: str, benchmark: str = "puzzles") -> dict[str, Any]:
        return dict(json.loads((self.output / model / benchmark / "result.json").read_text()))


@pytest.fixture(autouse=True)
def keep_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """``run_eval`` drops our own variables, which a user may well set: it gets them as they are here."""
    usual = environ

    def kept(checkout: Path, **more: str) -> dict[str, str]:
        own = {k: v for k, v in os.environ.items() if k in ("IMAGEEVALKIT_OUTPUT", "IMAGEEVALKIT_LOG")}
        return usual(checkout, **own, **more)

    monkeypatch.setattr("tests.support.checkout.environ", kept)


def test_the_model_and_wises_judge_see_the_new_prompt(checkout: Path, tmp_path: Path) -> None:
    with Rewriter() as server, ImageServer() as images:
        runs = Runs(checkout, tmp_path, server, images)
        raw = runs.run(rewriter="")
        assert raw.returncode == 0, raw.stdout + raw.stderr
        run = runs.run()
        assert run.returncode == 0, run.stdout + run.stderr
        first, second = runs.cells()
        assert first == "drawn"
        assert Cell(second, "puzzles").raw.model == "drawn"
        assert Cell(second, "puzzles").rewriter.startswith("wise-")
        # the generator
        assert sorted(one.prompt for one in images.requests) == sorted(
            [*(f"puzzle {n}" for n in range(6)), *(f"plain: puzzle {n}" for n in range(6))]
        )
        # the judge
        judged = [one.prompt for one in server.requests if not is_rewrite(one)]
        assert sorted(judged) == sorted(
            f"Is it there: {prompt}?" for n in range(6) for prompt in (f"puzzle {n}", f"plain: puzzle {n}")
        )
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
        columns = [cell.strip() for cell in header.split("|")[2:-1]]
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

        # nothing is asked, or made, again; by its full name too what there is can be scored
        before = len(server.requests), len(images.requests)
        again = runs.run()
        assert again.returncode == 0, again.stdout
        scored = runs.run("--infer", "false", model=second, rewriter="")
        assert scored.returncode == 0, scored.stdout + scored.stderr
        assert (len(server.requests), len(images.requests)) == before

        # the user's own rewriter of all runs is not that of the name
        both = run_eval(checkout, *runs.words("--infer", "false", model=second), **runs.environ)
        assert both.returncode == 2
        assert "has its rewriter in its name, and this run has one, too" in both.stderr
        assert 'add --prompt_rewriter ""' in both.stderr


def test_two_models_share_what_was_replied_and_dry_run_tells_it(checkout: Path, tmp_path: Path) -> None:
    with Rewriter() as server:
        runs = Runs(checkout, tmp_path, server)
        both = "reference-noise;reference-blank"
        plan = runs.run("--dry_run", model=both)
        assert plan.returncode == 0, plan.stdout + plan.stderr
        told = [line.strip() for line in plan.stdout.splitlines() if "rewrite request" in line]
        assert ["6 of 6 rewrite requests to send to gpt-4o-2024-05-13" in line for line in told] == [
            True,
            False,
        ]
        assert "0 of 6 rewrite requests" in told[1]
        assert server.requests == []
        run = runs.run("--eval", "false", model=both)
        assert run.returncode == 0, run.stdout + run.stderr
        assert sorted(server.rewrites) == [f"puzzle {n}" for n in range(6)]
        assert len(runs.cells()) == 2
        # both share the requests, and the run pays for them once
        [price] = re.findall(r"6 of 6 prompts rewritten; (\$[\d.]+) for gpt-4o", run.stderr)
        assert re.findall(r"spent +(\$[\d.]+)", run.stderr)[-1] == price
        after = runs.run("--dry_run", model=both)
        assert after.stdout.count("0 of 6 rewrite requests") == 2
        assert after.stdout.count("0 images to make, 6 to reuse") == 2


def test_what_passes_is_asked_again(checkout: Path, tmp_path: Path) -> None:
    faults = {
        0: ("429", "429", "ok"),
        1: ("reset", "ok"),
        2: ("garbage", "500", "ok"),
        3: ("no_choices", "ok"),
    }
    with Rewriter() as server:
        runs = Runs(checkout, tmp_path, server)
        for n, told in faults.items():
            server.fail(f"puzzle {n}", *told)
        run = runs.run("--eval", "false")
        assert run.returncode == 0, run.stdout + run.stderr
        asked = Counter(server.rewrites)
        assert [asked[f"puzzle {n}"] for n in range(6)] == [3, 2, 3, 2, 1, 1]
        [cell] = runs.cells()
        assert {one["prompt"] for one in runs.records(cell).values()} == {
            f"plain: puzzle {n}" for n in range(6)
        }


def test_what_cannot_be_rewritten_keeps_its_prompt_and_is_counted(checkout: Path, tmp_path: Path) -> None:
    with Rewriter() as server:
        runs = Runs(checkout, tmp_path, server)
        server.fail("puzzle 1", "refuse")
        server.fail("puzzle 2", "garbage")
        server.fail("puzzle 4", "blank")
        run = runs.run(kwargs=",max_attempts=2")
        assert run.returncode == 3, run.stdout + run.stderr
        assert "3 of 6 prompts rewritten; 3 could not be and are used as they are" in run.stdout
        [cell] = runs.cells()
        records = runs.records(cell)
        lost = {item: one["rewriting"]["kept"] for item, one in records.items() if one["rewriting"]["lost"]}
        assert lost.keys() == {"images/1", "images/2", "images/4"}
        assert "I can't assist" in lost["images/1"]
        assert "not JSON" in lost["images/2"]
        assert "empty" in lost["images/4"]
        assert records["images/2"]["prompt"] == records["images/2"]["rewriting"]["original"] == "puzzle 2"
        assert records["images/0"]["prompt"] == "plain: puzzle 0"
        note = runs.result(cell)["notes"][0]
        assert "3 of 6 images are of prompts rewritten" in note
        assert "3 of original ones that could not be rewritten" in note

        # an image of an original prompt stays, until it may be overwritten; the others are not touched
        asked, made = len(server.rewrites), records["images/0"]["time"]
        server.fail("puzzle 1", "ok")
        server.fail("puzzle 2", "ok")
        server.fail("puzzle 4", "ok")
        again = runs.run(kwargs=",max_attempts=2")
        assert again.returncode == 3, again.stdout
        assert len(server.rewrites) == asked
        mended = runs.run("--overwrite", "--retry_refused", kwargs=",max_attempts=2")
        assert mended.returncode == 0, mended.stdout + mended.stderr
        assert sorted(server.rewrites[asked:]) == ["puzzle 1", "puzzle 2", "puzzle 4"]
        records = runs.records(cell)
        assert [records[f"images/{n}"]["prompt"] for n in range(6)] == [
            f"plain: puzzle {n}" for n in range(6)
        ]
        assert records["images/0"]["time"] == made


def test_a_refusal_in_words_is_no_prompt(checkout: Path, tmp_path: Path) -> None:
    with Rewriter() as server:
        usual = server.reply
        refusing = "I'm sorry, but I can't assist with that request."
        server.reply = lambda request: (
            refusing if is_rewrite(request) and puzzle_in(request) == "puzzle 5" else usual(request)
        )
        runs = Runs(checkout, tmp_path, server)
        run = runs.run("--eval", "false")
        assert run.returncode == 3, run.stdout
        [cell] = runs.cells()
        assert runs.records(cell)["images/5"]["prompt"] == "puzzle 5"


@pytest.mark.parametrize(
    "reply",
    [
        "I'm sorry, but I can't assist with that request.",
        "**I'm sorry**, I can't help with that.",
        "I apologize, but I cannot rewrite this prompt.",
        "I'm not able to create that.",
        "Unfortunately, I can't provide a prompt like this.",
        "As an AI, I am unable to generate such content.",
        "As an AI language model, I follow rules.",
        "I\u2019m afraid I can\u2019t do that.",
        "Sorry but I won't comply.",
        "My apologies, this goes against our content policies.",
        "> I must respectfully decline.",
        "I can't.",
        "I cannot fulfill this.",
        "抱歉，我无法帮助您改写这个提示。",
        "对不起，我不能。",
        "ごめんなさい、そのリクエストにはお応えできません。",
        "申し訳ございませんが、対応いたしかねます。",
        "<think>Shall I?</think>I'm sorry, I can't do that.",
        "<think>First I look at",
        "<think>one</think> and <think>another that",
        "A thought</think>  ",
    ],
)
def test_no_refusal_or_thought_is_a_prompt(reply: str) -> None:
    assert Reply(reply, "ok").why_not(dtm.Dtm())


@pytest.mark.parametrize(
    ("reply", "prompt"),
    [
        ("I can't believe this cat meme, wide shot", ""),
        ("Sorry, no vacancy: a neon sign", ""),
        ("I can't help falling in love: the cover of an album", ""),
        ("An apologetic robot says: I can't help with that", ""),
        ("Unfortunately, it rains: a wet street at night", ""),
        ("我不能相信这只猫，广角", ""),
        ("ごめんなさい、と書かれた看板", ""),
        ("<think>a</think>b</think> A cat\n", "A cat"),
        ("no mark at the start</think>A cat", "A cat"),
    ],
)
def test_a_prompt_that_begins_like_a_refusal_is_one(reply: str, prompt: str) -> None:
    assert dtm.Dtm().prompt_in(reply) == (prompt or reply)
    assert not Reply(reply, "ok").why_not(dtm.Dtm())


def test_a_cut_reply_is_no_prompt_and_counted(checkout: Path, tmp_path: Path) -> None:
    with Rewriter() as server:
        server.fail("puzzle 2", "no_logprobs")  # "Yes", for the length
        server.fail("puzzle 4", "no_logprobs")
        runs = Runs(checkout, tmp_path, server)
        run = runs.run("--eval", "false")
        assert run.returncode == 3, run.stdout + run.stderr
        assert "2 could not be and are used as they are (2 times: the reply was cut" in run.stdout
        assert 'extra_body={"max_tokens":8000}' in run.stdout
        [cell] = runs.cells()
        assert runs.records(cell)["images/2"]["prompt"] == "puzzle 2"
        # more tokens are another request
        server.fail("puzzle 2", "ok")
        server.fail("puzzle 4", "ok")
        again = runs.run("--eval", "false", kwargs=',extra_body={"max_tokens":8000}')
        assert again.returncode == 0, again.stdout + again.stderr
        assert len(runs.cells()) == 2
        assert server.requests[-1].fields["max_tokens"] == 8000


@pytest.mark.parametrize(("fault", "says"), [("401", "REWRITER_API_KEY"), ("404", "does not exist")])
def test_a_rewriter_that_cannot_be_used_makes_no_raw_images(
    checkout: Path, tmp_path: Path, fault: str, says: str
) -> None:
    with Rewriter(default=fault) as server:
        runs = Runs(checkout, tmp_path, server)
        run = runs.run("--eval", "false")
        assert run.returncode == 1, run.stdout + run.stderr
        assert says in run.stdout
        assert "Traceback" not in run.stdout + run.stderr
        assert not list(runs.output.rglob("*.png"))
        assert server.rewrites


def test_kill_9_loses_no_reply(checkout: Path, tmp_path: Path) -> None:
    with Rewriter(latency=0.3) as server:
        runs = Runs(checkout, tmp_path, server)
        words = runs.words("--eval", "false", "--num_workers", "1")
        process = subprocess.Popen(
            ["bash", str(checkout / "eval.sh"), *words],
            env=environ(checkout, **runs.env),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + LONGEST_WAIT
        while len(server.rewrites) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kept = [
            json.loads(line) for path in runs.output.glob("rewrites/wise-*.jsonl") for line in path.open()
        ]
        assert len(kept) >= 2
        run = runs.run("--eval", "false")
        assert run.returncode == 0, run.stdout + run.stderr
        # one was in flight
        assert len(server.rewrites) <= 7
        assert set(server.rewrites) == {f"puzzle {n}" for n in range(6)}


def test_what_was_rewritten_goes_on_without_network_and_key(checkout: Path, tmp_path: Path) -> None:
    with Rewriter() as server:
        runs = Runs(checkout, tmp_path, server)
        only = runs.run("--infer", "false", "--eval", "false")
        assert only.returncode == 0, only.stdout + only.stderr
        assert not list(runs.output.rglob("*.png"))
        words = runs.words("--eval", "false")
    elsewhere = [word.replace("127.0.0.1", "localhost") for word in words]
    offline = run_eval(checkout, *elsewhere, API_KEY="", REWRITER_API_KEY="")
    assert offline.returncode == 0, offline.stdout + offline.stderr
    told = "6 rewritten by 127.0.0.1, and this run asks localhost: to have all asked again, delete "
    assert told in offline.stdout + offline.stderr
    [cell] = runs.cells()
    assert {one["prompt"] for one in runs.records(cell).values()} == {f"plain: puzzle {n}" for n in range(6)}


def test_a_missing_key_is_told_before_anything_starts(checkout: Path, tmp_path: Path) -> None:
    with Rewriter() as server:
        runs = Runs(checkout, tmp_path, server)
        run = run_eval(checkout, *runs.words(), API_KEY="EMPTY", JUDGE_API_KEY="EMPTY", REWRITER_API_KEY="")
        dry = run_eval(checkout, *runs.words("--dry_run"), API_KEY="", JUDGE_API_KEY="", REWRITER_API_KEY="")
    assert run.returncode == 2
    assert "prompt rewriter 'wise' is reached through an API: REWRITER_API_KEY is not set" in run.stderr
    assert dry.returncode == 0, dry.stdout + dry.stderr
    for name in ("JUDGE_API_KEY", "REWRITER_API_KEY"):
        assert f"note: {name} is not set: this plan needs no key, the run does" in dry.stdout


def test_texts_are_rewritten_and_images_stay(checkout: Path, tmp_path: Path) -> None:
    with Rewriter() as server, ImageServer() as images:
        runs = Runs(checkout, tmp_path, server, images)
        run = runs.run("--eval", "false", ds="puzzle-edits;puzzle-subjects")
        assert run.returncode == 0, run.stdout + run.stderr
        # a subject's name is no prompt, and APIs are not sent it
        assert sorted(server.rewrites) == ["a dog on the moon", "edit 0", "edit 1"]
        assert sorted(one.prompt for one in images.requests) == [
            "plain: a dog on the moon",
            "plain: edit 0",
            "plain: edit 1",
        ]
        assert [len(one.files) for one in images.requests] == [1, 1, 1]
        [cell] = runs.cells("puzzle-edits")
        edits, subjects = runs.records(cell, "puzzle-edits"), runs.records(cell, "puzzle-subjects")
        assert edits["images/1"]["prompt"] == "plain: edit 1"
        assert len(edits["images/1"]["inputs"]) == 1
        assert subjects["images/0"]["rewriting"]["original"] == "dog a dog on the moon"


RELATIONS = {
    "IQ-R_TA-C": 0,
    "IQ-R_TA-S": 3,
    "TA-C_TA-S": -2,
    "IQ-O_R-B": 1,
    "D-K_D-A": -1,
    "IQ-A_TA-C": 2,
}


def relations(path: Path, codes: Any = None) -> None:
    """What evaluating the raw prompts leaves."""
    path.mkdir(parents=True, exist_ok=True)
    both = {
        **RELATIONS,
        **{"_".join(reversed(p.split("_"))): -c if abs(c) == 2 else c for p, c in RELATIONS.items()},
    }
    found = {"metrics": [*RELATIONS], "correlation_matrix": [], "quadrant_analysis": {}, "insights": []}
    (path / "result.json").write_text(json.dumps({**found, "relationship_codes": codes or both}))


def certainty(path: Path, limit: int | None) -> None:
    """What stands beside it, as of 84 items of which a judge was asked."""
    given = {"preset": "official"}
    found = Relations("key", "some-judge@1", ["a"], False, given, {}, "spearman", 1000, {}, [], 84, limit)
    for name in (*relation_files.OFFICIAL, *relation_files.PICTURES):
        (path / name).touch()
    (path / relation_files.CERTAINTY).write_text(json.dumps({"schema": relation_files.SCHEMA, **vars(found)}))


def test_dtm_takes_the_map_of_a_trial_for_trials_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGEEVALKIT_OUTPUT", str(tmp_path))
    raw = Cell("some-model", "puzzles")
    relations(raw.relations)
    assert "an evaluator that" in dtm.Dtm().basis(raw)
    dtm.Dtm().check(raw, None)
    certainty(raw.relations, None)
    dtm.Dtm().check(raw, None)
    assert dtm.Dtm().basis(raw) == "by the relations of 84 items that some-judge@1 scored"
    certainty(raw.relations, 84)
    with pytest.raises(
        CellFailure, match=r"is of a trial \(--limit 84\): evaluate the raw prompts without --limit"
    ):
        dtm.Dtm().check(raw, None)
    dtm.Dtm().check(raw, 10)
    assert "84 items of a trial (--limit 84)" in dtm.Dtm().basis(raw)


@pytest.mark.parametrize(
    ("pair", "instruction"),
    [
        ("IQ-R_TA-C", "join Realism and Content"),
        ("IQ-R_TA-S", "break Realism and Style"),
        ("TA-C_TA-S", "prefer Style to Content"),
        ("IQ-O_R-B", "balance Originality and Bias"),
        ("IQ-A_TA-C", "prefer Aesthetics to Content"),
    ],
)
@pytest.mark.parametrize(("task", "named"), [("t2i", "t2i"), ("edit", "p2p"), ("subject", "s2p")])
def test_dtm_asks_for_the_relation_of_the_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: str, instruction: str, task: str, named: str
) -> None:
    """With texts that stand in for the official ones."""
    monkeypatch.setenv("IMAGEEVALKIT_OUTPUT", str(tmp_path))
    raw = Cell("some-model", "puzzles")
    relations(raw.folder / "relations")
    kinds = (
        "join {dim1} and {dim2}",
        "break {dim1} and {dim2}",
        "prefer {dim1} to {dim2}",
        "balance {dim1} and {dim2}",
    )
    words = {
        "IQ-R": "Realism",
        "TA-C": "Content ",
        "TA-S": "Style",
        "IQ-O": "Originality",
        "R-B": "Bias",
        "IQ-A": "Aesthetics",
    }
    texts = {f"{dtm._T2I}.change.instructions[{n}]": text for n, text in enumerate(kinds)}
    texts |= {f"trig/config.py::DIM_NAME_DICT['{code}']": word for code, word in words.items()}
    for name, place in dtm._CLASSES.values():
        texts[f"{place}.send_request_with_retry.SYSTEM_MSG"] = f"system of {name}"
        texts[f"{place}.change.msg"] = "{str1}|{str0}|{str2}"
        texts |= {
            f"trig/config.py::gpt_logit_dimension_msg['{name}']['{c}']": f"{c} in {name}" for c in words
        }
    rewriter = dtm.Dtm()
    [asset] = dtm.Dtm.assets
    assert isinstance(asset, PromptsAsset)
    assert texts.keys() <= asset.texts.keys()
    monkeypatch.setattr(dtm.Dtm, "texts", texts)
    item = Item("0", Path("0.png"), 42, "a {braced} prompt", None, {"pair": pair})
    system, user = rewriter.messages(item, "a {braced} prompt", raw, task)
    first, second = pair.split("_")
    assert system.parts == (f"system of {named}",)
    assert user.parts == (f"a {{braced}} prompt|1. {first} in {named}\n2. {second} in {named}|{instruction}",)


@pytest.mark.parametrize("codes", [["no", "map"], {"IQ-R_TA-C": 7}, {"IQ-R_TA-C": "0"}])
def test_dtm_tells_of_a_damaged_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codes: Any) -> None:
    monkeypatch.setenv("IMAGEEVALKIT_OUTPUT", str(tmp_path))
    raw = Cell("some-model", "puzzles")
    relations(raw.folder / "relations", codes)
    with pytest.raises(CellFailure, match=r"result\.json holds no relationship_codes"):
        dtm.Dtm().check(raw, None)


def test_the_official_texts_are_in_the_official_program() -> None:
    """So prefetch finds them on GitHub too, where there are no lists of texts."""
    [asset] = dtm.Dtm.assets
    assert isinstance(asset, PromptsAsset)
    found = pinned_texts(asset, {}, lambda path: official_source(asset.repo, asset.commit, path).encode())
    assert found.keys() == asset.texts.keys()


def test_dtm_from_prefetch_to_report(checkout: Path, tmp_path: Path) -> None:
    mirror = shared_mirror()
    with Rewriter() as server:
        runs = Runs(checkout, tmp_path, server)
        lacking = runs.run(rewriter="dtm")
        assert lacking.returncode == 1, lacking.stdout + lacking.stderr
        assert (
            "prompt rewriter dtm: prompts/judge_prompts.json is missing. "
            "Run: bash utils/prefetch.sh --prompt_rewriter dtm" in (lacking.stdout)
        )
        fetched = subprocess.run(
            ["bash", "utils/prefetch.sh", "--prompt_rewriter", "dtm", "--mirror", str(mirror)],
            cwd=checkout,
            env=environ(checkout),
            capture_output=True,
            text=True,
            check=False,
        )
        assert fetched.returncode == 0, fetched.stdout + fetched.stderr
        assert (
            "dtm: 0 files were right already, 1 fetched, 0 problems; licence: CC-BY-NC-SA-4.0"
            in fetched.stdout
        )

        early = runs.run(rewriter="dtm")
        assert early.returncode == 1
        assert (
            "evaluate the raw prompts first (bash eval.sh --model_names reference-noise --ds_names puzzles)"
            in (early.stdout)
        )
        assert server.requests == []

        folder = runs.output / "reference-noise" / "puzzles" / "relations"
        relations(folder)
        certainty(folder, None)
        run = runs.run(rewriter="dtm")
        assert run.returncode == 0, run.stdout + run.stderr
        assert "by the relations of 84 items that some-judge@1 scored" in run.stderr
        assert (
            "5 of 6 prompts rewritten; 1 stay as they are (the first: no relation is known of D-K_D-A)"
            in (run.stderr)
        )
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
        records = runs.records(cell)
        assert (records["images/4"]["prompt"], records["images/4"]["rewriting"]["lost"]) == (
            "puzzle 4",
            False,
        )
        assert "1 of prompts that it leaves as they are" in runs.result(cell)["notes"][0]

        # another relation is another prompt
        turned = {pair: 1 if pair == "IQ-R_TA-C" else code for pair, code in RELATIONS.items()}
        relations(runs.output / "reference-noise" / "puzzles" / "relations", turned)
        server.reply = lambda request: f"steady: {puzzle_in(request)}" if is_rewrite(request) else "Yes"
        stale = runs.run(rewriter="dtm")
        assert stale.returncode == 1, stale.stdout
        assert "the rewritten prompt changed: 1 image is stale" in stale.stdout
        anew = runs.run("--overwrite", rewriter="dtm")
        assert anew.returncode == 0, anew.stdout
        assert runs.records(cell)["images/0"]["prompt"] == "steady: puzzle 0"


def test_another_model_or_instruction_has_a_name_of_its_own(checkout: Path, tmp_path: Path) -> None:
    words = tmp_path / "instruction.txt"
    words.write_text("Say it plainly.")
    with Rewriter() as server:
        runs = Runs(checkout, tmp_path, server)
        for kwargs in ("", ",model=other", f",instruction={words}"):
            run = runs.run("--eval", "false", "--limit", "1", kwargs=kwargs)
            assert run.returncode == 0, run.stdout + run.stderr
        assert len(runs.cells()) == 3
        assert [one.fields["model"] for one in server.requests] == [
            "gpt-4o-2024-05-13",
            "other",
            "gpt-4o-2024-05-13",
        ]
        assert server.requests[-1].fields["messages"][0]["content"] == [
            {"type": "text", "text": "Say it plainly."}
        ]


PLAINER = """
from imageevalkit.benchmark.question import Message
from imageevalkit.judges.rewriter import NotRewritten, Rewriter


class Plainer(Rewriter):
    name = "plainer"

    def messages(self, item, text, raw, task):
        if text.endswith("0"):
            raise NotRewritten("it is plain")
        return [Message("system", ("Make it plain.",)), Message("user", (f"Plainer: {text}",))]
"""


def test_a_third_rewriter_is_one_small_class(checkout: Path, tmp_path: Path) -> None:
    file = checkout / "infer/custom_rewriters/plainer.py"
    file.write_text(PLAINER)
    try:
        with Rewriter() as server:
            runs = Runs(checkout, tmp_path, server)
            run = runs.run("--eval", "false", rewriter="plainer")
            assert run.returncode == 0, run.stdout + run.stderr
            assert sorted(server.rewrites) == [f"puzzle {n}" for n in range(1, 6)]
            [cell] = runs.cells()
            assert runs.records(cell)["images/0"]["rewriting"]["kept"] == "it is plain"
    finally:
        file.unlink()


@pytest.mark.parametrize("name", ["my-plainer", "Plainer", "2plain"])
def test_a_name_that_folders_cannot_tell_is_refused(checkout: Path, tmp_path: Path, name: str) -> None:
    file = checkout / f"infer/custom_rewriters/{name}.py"
    file.write_text(PLAINER.replace('"plainer"', f'"{name}"'))
    try:
        with Rewriter() as server:
            run = Runs(checkout, tmp_path, server).run(rewriter=name)
    finally:
        file.unlink()
    assert run.returncode == 2, run.stdout + run.stderr
    assert f"infer/custom_rewriters/{name}.py cannot be used: a rewriter's name begins with" in run.stderr
    assert not server.requests and not list(tmp_path.rglob("*.png"))


def test_the_rewriter_of_the_guide_rewrites_what_is_long(checkout: Path, tmp_path: Path) -> None:
    guide = (REPO / "docs/how-to/rewrite-prompts.md").read_text(encoding="utf-8")
    [code] = [
        block for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "class MyShorter" in block
    ]
    file = checkout / "infer/custom_rewriters/my_shorter.py"
    file.write_text(code)
    try:
        with Rewriter() as server:
            runs = Runs(checkout, tmp_path, server)
            run = runs.run("--eval", "false", rewriter="my_shorter")
        assert run.returncode == 1, run.stdout + run.stderr
        assert (
            "6 stay as they are (the first: it is short): the images would be those of the raw prompts"
            in run.stdout
        )
        assert not list(runs.output.rglob("*.png"))
    finally:
        file.unlink()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--prompt_rewriter", "dtn"), "unknown prompt rewriter 'dtn' (did you mean 'dtm'?)"),
        (("--prompt_rewriter", "wise", "--rewriter_kwargs", "modl=x"), "there is no setting 'modl'"),
        (("--rewriter_kwargs", "model=x"), "--rewriter_kwargs is given, but no --prompt_rewriter"),
        (
            ("--prompt_rewriter", "wise", "--images", "/tmp"),
            "--images makes no images: leave out --prompt_rewriter",
        ),
        (
            ("--model_names", "reference-noise+wise-1a2b3c4d"),
            "--model_names reference-noise --prompt_rewriter wise",
        ),
        (
            ("--prompt_rewriter", "wise", "--rewriter_kwargs", "instruction=/nowhere/at/all"),
            "instruction=/nowhere/at/all cannot be read",
        ),
    ],
)
def test_a_slip_is_one_line(checkout: Path, tmp_path: Path, words: Sequence[str], says: str) -> None:
    base = () if "--model_names" in words else ("--model_names", "reference-noise")
    run = run_eval(checkout, *base, "--ds_names", "puzzles", *words, API_KEY="EMPTY")
    assert run.returncode == 2, run.stdout + run.stderr
    assert says in run.stderr
    assert "Traceback" not in run.stderr


def test_a_benchmark_that_cannot_be_rewritten_stops_no_other(checkout: Path, tmp_path: Path) -> None:
    with Rewriter() as server:
        runs = Runs(checkout, tmp_path, server)
        run = runs.run("--eval", "false", "--limit", "2", ds="quicktext;puzzles")
    assert run.returncode == 1
    assert "takes prompts with an explanation, and those of quicktext have none" in run.stdout
    [cell] = runs.cells()
    assert runs.records(cell).keys() == {"images/0", "images/1"}
    assert not list(runs.output.rglob("*.jpg"))
