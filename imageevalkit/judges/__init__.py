"""Judges: vision-language models that answer questions about images, and the requests to their APIs."""
