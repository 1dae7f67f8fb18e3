"""Talking to an OpenAI-compatible endpoint: who it is, what its failures mean, when to ask again."""
