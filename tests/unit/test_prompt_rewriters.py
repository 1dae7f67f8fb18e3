"""Prompt rewriters: replies of a language model on a real HTTP server become prompts, or are told to be none."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import custom_rewriters
import pytest
from custom_rewriters import dtm, wise

from imageevalkit import registry
from imageevalkit.assets import PromptsAsset
from imageevalkit.assets.data import pinned_texts
from imageevalkit.common.errors import CellFailure, UserError
from imageevalkit.extras.rewrite.order import RewriteOrder
from imageevalkit.extras.rewrite.rewriting import Reply, RewriteRun, make_rewriter
from imageevalkit.jobs.plan import COMPLETE, FAILED, INCOMPLETE, Outcome
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from tests.support.mirror import official_source
from tests.support.puzzles import PuzzleEdits, Puzzles, PuzzleSubjects
from tests.support.raw_relations import certainty, relations
from tests.support.rewriter_server import RewriterServer

REFUSAL = "I'm sorry, but I can't assist with that request."


class Rewritten(NamedTuple):
    """The outcome of a cell, and by item the texts for its model and why they are the original ones."""

    outcome: Outcome
    texts: dict[str, list[str]]
    kept: dict[str, str]


@pytest.fixture(autouse=True)
def puzzles(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {cls.name: cls for cls in (Puzzles, PuzzleEdits, PuzzleSubjects)}
    monkeypatch.setattr(registry, "load_dataset", lambda name, _: registry.BenchmarkDataset(made[name]()))
    monkeypatch.setenv("API_KEY", "EMPTY")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


def rewrite(
    server: RewriterServer, benchmark: str = "puzzles", rewriter: str = "wise", **settings: Any
) -> Rewritten:
    kwargs = {"base_url": server.base_url, "backoff": 0.01, **settings}
    chosen = make_rewriter(rewriter, kwargs)
    cell = Cell(f"m+{chosen.id}", benchmark)
    run = RewriteRun(chosen, RewriteOrder(rewriter, kwargs), ProgressWriter())
    run.plan(cell)
    run.ask()
    outcome = run.outcome(run.planned[0])
    lines = cell.prompts.read_text().splitlines() if cell.prompts.exists() else ()
    shown = {record["item"]: record for record in map(json.loads, lines)}
    return Rewritten(
        outcome,
        {item: one["texts"] for item, one in shown.items()},
        {item: one["kept"] for item, one in shown.items() if one["kept"]},
    )


def test_what_passes_is_asked_again_and_what_has_no_prompt_keeps_the_original() -> None:
    with RewriterServer() as server:
        server.fail("puzzle 0", "429", "reset", "ok")
        server.fail("puzzle 1", "no_choices", "500", "ok")
        server.fail("puzzle 2", "refuse")
        server.fail("puzzle 3", "garbage")
        server.fail("puzzle 4", "blank")
        usual = server.reply
        server.reply = lambda request: REFUSAL if "puzzle 5" in request.prompt else usual(request)
        outcome, texts, kept = rewrite(server, max_attempts=3)
    asked = Counter(server.rewrites)
    assert [asked[f"puzzle {n}"] for n in (0, 1, 2, 3, 5)] == [3, 3, 1, 3, 1]
    assert outcome.state == INCOMPLETE
    assert "2 of 6 prompts rewritten; 4 could not be and are used as they are" in outcome.message
    plain = ["plain: puzzle 0", "plain: puzzle 1"]
    assert [*texts.values()] == [[text] for text in (*plain, *(f"puzzle {n}" for n in range(2, 6)))]
    for n, why in {2: "I can't assist", 3: "not JSON", 4: "empty", 5: "the reply refuses"}.items():
        assert why in kept[f"images/{n}"]


def test_a_cut_reply_is_no_prompt_and_more_tokens_are_another_request() -> None:
    with RewriterServer() as server:
        server.fail("puzzle 2", "no_logprobs", "ok")  # "Yes", for the length
        outcome, texts, _ = rewrite(server)
        assert outcome.state == INCOMPLETE and "1 could not be and are used" in outcome.message
        assert "the reply reached its token limit" in outcome.message
        assert 'extra_body={"max_tokens":8000}' in outcome.message
        assert texts["images/2"] == ["puzzle 2"]
        again = rewrite(server, extra_body={"max_tokens": 8000})
        assert again.texts["images/2"] == ["plain: puzzle 2"] and len(server.rewrites) == 12
        assert server.requests[-1].fields["max_tokens"] == 8000


@pytest.mark.parametrize(("fault", "says"), [("401", "API_KEY"), ("404", "does not exist")])
def test_a_rewriter_that_cannot_be_used_leaves_no_raw_prompts(fault: str, says: str) -> None:
    with RewriterServer(default=fault) as server:
        outcome, texts, _ = rewrite(server)
    assert outcome.state == FAILED and says in outcome.message and server.rewrites
    assert not texts, "a model would make images of them"


def test_replies_of_another_host_are_used_and_told() -> None:
    with RewriterServer() as server:
        rewrite(server)
        outcome = rewrite(server, base_url=server.base_url.replace("127.0.0.1", "localhost")).outcome
        assert len(server.rewrites) == 6
    told = "6 rewritten by 127.0.0.1, and this run asks localhost: to have all asked again, delete "
    assert outcome.state == COMPLETE and told in outcome.message


def test_a_subjects_name_and_images_stay() -> None:
    with RewriterServer() as server:
        assert rewrite(server, "puzzle-edits").texts["images/1"] == ["plain: edit 1"]
        assert rewrite(server, "puzzle-subjects").texts == {"images/0": ["dog", "plain: a dog on the moon"]}


def test_another_model_or_instruction_has_a_name_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "instruction.txt"
    file.write_text("Say it plainly.")
    usual, other = make_rewriter("wise", {}), make_rewriter("wise", {"model": "other"})
    own = make_rewriter("wise", {"instruction": str(file)})
    assert len({usual.id, other.id, own.id}) == 3 and other.model_id == "other"
    item = Item("0", Path("0.png"), 42, "a puzzle", None, {"explanation": "because"})
    system, _ = own.messages(item, "a puzzle", Cell("m", "puzzles"), "t2i")
    assert system.parts == ("Say it plainly.",)
    with pytest.raises(CellFailure, match="takes prompts with an explanation, and x has none"):
        wise.Wise().messages(
            Item("0", Path("0.png"), 42, "a text", None, {}), "a text", Cell("m", "x"), "t2i"
        )


@pytest.mark.parametrize(
    "reply",
    [
        "I'm sorry, but I can't assist with that request.",
        "**I'm sorry**, I can't help with that.",
        "As an AI, I am unable to generate such content.",
        "Sorry but I won't comply.",
        "> I must respectfully decline.",
        "抱歉，我无法帮助您改写这个提示。",
        "ごめんなさい、そのリクエストにはお応えできません。",
        "<think>First I look at",
    ],
)
def test_no_refusal_or_thought_is_a_prompt(reply: str) -> None:
    assert Reply(reply, "ok").why_not(dtm.Dtm())


@pytest.mark.parametrize(
    ("reply", "prompt"),
    [
        ("I can't believe this cat meme, wide shot", ""),
        ("Sorry, no vacancy: a neon sign", ""),
        ("我不能相信这只猫，广角", ""),
        ("<think>a</think>b</think> A cat\n", "A cat"),
    ],
)
def test_a_prompt_that_begins_like_a_refusal_is_one(reply: str, prompt: str) -> None:
    assert dtm.Dtm().prompt_in(reply) == (prompt or reply)
    assert not Reply(reply, "ok").why_not(dtm.Dtm())


def test_dtm_takes_the_map_of_a_trial_for_trials_only() -> None:
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
    ("pair", "instruction", "task", "named"),
    [
        ("IQ-R_TA-C", "join Realism and Content", "t2i", "t2i"),
        ("IQ-R_TA-S", "break Realism and Style", "edit", "p2p"),
        ("TA-C_TA-S", "prefer Style to Content", "subject", "s2p"),
        ("IQ-O_R-B", "balance Originality and Bias", "t2i", "t2i"),
        ("IQ-A_TA-C", "prefer Aesthetics to Content", "edit", "p2p"),
    ],
)
def test_dtm_asks_for_the_relation_of_the_pair(
    monkeypatch: pytest.MonkeyPatch, pair: str, instruction: str, task: str, named: str
) -> None:
    """With texts that stand in for the official ones."""
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


def test_dtm_tells_of_a_damaged_map() -> None:
    raw = Cell("some-model", "puzzles")
    relations(raw.folder / "relations", {"IQ-R_TA-C": 7})
    with pytest.raises(CellFailure, match=r"result\.json holds no relationship_codes"):
        dtm.Dtm().check(raw, None)


def test_dtm_needs_the_relations_of_the_raw_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = "evaluate the raw prompts first (bash eval.sh --model_names some-model --ds_names puzzles)"
    with pytest.raises(CellFailure, match=re.escape(told)):
        dtm.Dtm().check(Cell("some-model", "puzzles"), None)
    monkeypatch.setattr("imageevalkit.assets.REWRITERS", tmp_path)
    told = "prompts/judge_prompts.json is missing. Run: bash eval.sh prefetch --prompt_rewriter dtm"
    with pytest.raises(CellFailure, match=re.escape(told)):
        _ = dtm.Dtm().texts


def test_the_official_texts_are_in_the_official_program() -> None:
    """So prefetch finds them on GitHub too, where there are no lists of texts."""
    [asset] = dtm.Dtm.assets
    assert isinstance(asset, PromptsAsset)
    found = pinned_texts(asset, {}, lambda path: official_source(asset.repo, asset.commit, path).encode())
    assert found.keys() == asset.texts.keys()


PLAINER = """
from imageevalkit.benchmark.question import Message
from imageevalkit.extras.rewrite.contract import NotRewritten, Rewriter


class Plainer(Rewriter):
    name = "plainer"

    def messages(self, item, text, raw, task):
        if text.endswith("0"):
            raise NotRewritten("it is plain")
        return [Message("system", ("Make it plain.",)), Message("user", (f"Plainer: {text}",))]
"""


@pytest.fixture
def add_rewriter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes the file of a rewriter where a user would."""
    folder = tmp_path / "rewriters"
    folder.mkdir()
    monkeypatch.setattr(registry, "REWRITERS", folder)
    monkeypatch.setattr(custom_rewriters, "__path__", [str(folder)])

    def add(name: str, code: str) -> None:
        (folder / f"{name}.py").write_text(code)

    return add


def test_a_third_rewriter_is_one_small_class(add_rewriter: Callable[[str, str], None]) -> None:
    add_rewriter("plainer", PLAINER)
    with RewriterServer() as server:
        _, texts, kept = rewrite(server, rewriter="plainer")
    assert sorted(server.rewrites) == [f"puzzle {n}" for n in range(1, 6)]
    assert kept == {"images/0": "it is plain"} and texts["images/1"] == ["plain: puzzle 1"]


def test_a_name_that_folders_cannot_tell_is_refused(add_rewriter: Callable[[str, str], None]) -> None:
    add_rewriter("my-plainer", PLAINER.replace('"plainer"', '"my-plainer"'))
    told = "infer/custom_rewriters/my-plainer.py cannot be used: a rewriter's name begins with"
    with pytest.raises(UserError, match=re.escape(told)):
        registry.rewriter_class("my-plainer")
