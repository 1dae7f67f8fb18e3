"""Sends requests to OpenAI-compatible endpoints: identity, limits, retries, failures and prices."""
