"""Repeats questions to measure a judge's noise (``--judge_repeats``)."""

CONNECTS = {
    "options": "options:OPTIONS",
    "resolve": "planning:resolve",
    "last_jobs": "planning:repeat_jobs",
    "after_questions": "repeats:Repeats",
}
