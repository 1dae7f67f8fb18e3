"""Rewritten prompts (``--prompt_rewriter``)."""

CONNECTS: dict[str, str] = {}
