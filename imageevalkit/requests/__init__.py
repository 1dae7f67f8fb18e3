"""Sends requests to OpenAI-compatible endpoints, with limits, retries, failure classes and prices."""
