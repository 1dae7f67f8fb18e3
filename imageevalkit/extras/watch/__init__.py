"""Evaluates checkpoints as they appear (``--watch``)."""
