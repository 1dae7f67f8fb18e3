"""WISE's parsers: the worked examples of the specification, the official quirks, and what the official functions
answered on odd replies."""

from __future__ import annotations

import time

import pytest

from benchmarks.wise.replies import legacy_scores, verified_score, without_thoughts


@pytest.mark.parametrize("reply", ["<think>" * 60_000, "score" + " " * 60_000, "realism" + " " * 60_000])
def test_no_reply_keeps_the_parsers_busy(reply: str) -> None:
    """Minutes, where each tag or blank is followed to the end of the reply."""
    started = time.perf_counter()
    assert without_thoughts(reply) == reply.strip()
    assert verified_score(reply) == legacy_scores(reply) == {}
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("Score: 1", 1),
        ("**Score**: 0", 0),
        (" 1 ", 1),
        ("I give Score: 0. Later Score: 1", 0),
        ("Score: 0.5", 0),
        ("Score: 0/1", 0),
        ("score 1", 1),
        ("Score:\n1", 1),
        ("***Score***: 1", None),
        ("**Score:** 1", None),
        ("Score：1", None),
        ("Score: 10", None),
        ("Score: 2", None),
        ("Score: 2\nScore: 1", 1),
        ("Score = 1", None),
        ("Score::1", None),
        ("Score: **1**", None),
        ("Score: 1_", None),
        ("Score 1a", None),
        ("Score: ١", None),
        ("The underscore 1", 1),
        ("ſcore: 1", 1),
        ("0\n1", None),
        ("1\n1", None),
        ("x\r\n1\r\n", 1),
        ("1\r0", None),
        ("\u30001\u00a0", 1),
        ("Score: 10\n\n 1\t\nbecause", 1),
        ("", None),
    ],
)
def test_verified(reply: str, score: int | None) -> None:
    assert verified_score(reply) == ({} if score is None else {"score": score})


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ("<think>Score: 0</think>\n\nScore: 1\n", "Score: 1"),
        ("Score: 0</think>\n Score: 1", "Score: 0Score: 1"),
        ("a<think>\n1\n</think> b <think>2</think>c", "ab c"),
        ("<think>Score: 0", "<think>Score: 0"),
        ("<THINK>0</THINK> 1", "<THINK>0</THINK> 1"),
    ],
)
def test_thoughts_are_removed(reply: str, text: str) -> None:
    assert without_thoughts(reply) == text


@pytest.mark.parametrize(
    ("reply", "scores"),
    [
        ("Consistency: 2\nRealism: 1\nAesthetic Quality: 0", (2, 1, 0)),
        ("2\n1\n0", (2, 1, 0)),
        ("2\n1\n0\n2", (2, 1, 0)),
        ("3\n2\n1\n0", (2, 1, 0)),
        ("2\r\n 1 \r\n\r\n0", (2, 1, 0)),
        ("2\n1", None),
        ("Consistency: 1\nConsistency: 2\nRealism: 1\nAesthetic Quality: 1", (2, 1, 1)),
        ("**CONSISTENCY**: 2, *realism* 1, aesthetic quality:0", (2, 1, 0)),
        ("**Consistency**: 9\nRealism: 12\nAesthetic Quality: 1.5", (9, 1, 1)),
        ("Inconsistency: 0 Realism: 1 Aesthetic Quality: 2", (0, 1, 2)),
        ("Consistency: ٢\nRealism: 1\nAesthetic Quality: 0", (2, 1, 0)),
        ("**Consistency:** 2\n**Realism:** 1\n**Aesthetic Quality:** 0", None),
        ("Consistency：2\nRealism：1\nAesthetic Quality：0", None),
        ("Consistency = 2\nRealism = 1\nAesthetic Quality = 0", None),
        ("I cannot judge this.", None),
    ],
)
def test_legacy(reply: str, scores: tuple[int, int, int] | None) -> None:
    names = ("consistency", "realism", "aesthetic_quality")
    assert legacy_scores(reply) == ({} if scores is None else dict(zip(names, scores, strict=True)))


@pytest.mark.parametrize(
    ("reply", "scores"),
    [
        ("Consistency: 2\n1\n1\n1", {"consistency": 2}),
        ("Aesthetic  Quality: 1\nConsistency: 1\nRealism: 1", {"consistency": 1, "realism": 1}),
        ("Realism: one\n2\n2\n2\nAesthetic Quality: 0", {"aesthetic_quality": 0}),
    ],
)
def test_one_label_rules_the_bare_lines_out(reply: str, scores: dict[str, float]) -> None:
    assert legacy_scores(reply) == scores
