"""Rewritten prompts (``--prompt_rewriter``)."""

CONNECTS = {
    "options": "options:OPTIONS",
    "resolve": "planning:resolve",
    "first_jobs": "planning:rewrite_jobs",
    "order": "order:RewriteOrder",
    "forecast": "__main__:forecast_of",
}
