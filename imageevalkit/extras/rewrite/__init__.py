"""Rewritten prompts (``--prompt_rewriter``)."""

CONNECTS = {
    "options": "options:OPTIONS",
    "resolve": "planning:resolve",
    "first_jobs": "planning:rewrite_jobs",
    "forecast": "__main__:forecast_of",
}
