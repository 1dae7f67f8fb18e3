"""Rewritten prompts (``--prompt_rewriter``)."""
