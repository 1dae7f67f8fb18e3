"""Repeats questions to measure a judge's noise (``--judge_repeats``)."""

CONNECTS = {
    "options": "options:OPTIONS",
    "resolve": "planning:resolve",
    "after_questions": "repeats:Repeats",
}
