"""Repeats questions to measure a judge's noise (``--judge_repeats``)."""

CONNECTS: dict[str, str] = {}
