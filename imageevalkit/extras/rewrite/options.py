"""The options ``--prompt_rewriter`` and ``--rewriter_kwargs``."""

from __future__ import annotations

from imageevalkit.plan.config import Option, parse_kwargs

OPTIONS = {
    "prompt_rewriter": Option(
        "dtm|wise",
        "rewrite the prompts with a language model before generation",
        lambda text, where: text.strip(),
        default="",
        config="PROMPT_REWRITER",
        prefetch="decisive",
        group="images",
    ),
    "rewriter_kwargs": Option(
        '"p=1,q=2"',
        "settings of the prompt rewriter; override REWRITER_KWARGS_MAP",
        parse_kwargs,
        default={},
        group="images",
    ),
}
