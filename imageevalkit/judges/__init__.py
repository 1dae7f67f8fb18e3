"""Judges: vision-language models that answer questions about images, and how those behind an API are asked."""
