"""The options ``--prompt_rewriter`` and ``--rewriter_kwargs``."""

from __future__ import annotations

from imageevalkit.plan.config import Option, parse_kwargs

OPTIONS = {
    "prompt_rewriter": Option(
        "dtm|wise",
        "have a language model rewrite the prompts before images are made",
        lambda text, where: text.strip(),
        default="",
        config="PROMPT_REWRITER",
        prefetch="decisive",
        group="images",
    ),
    "rewriter_kwargs": Option(
        '"p=1,q=2"',
        "settings of the prompt rewriter, over REWRITER_KWARGS_MAP",
        parse_kwargs,
        default={},
        group="images",
    ),
}
