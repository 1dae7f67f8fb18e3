"""Stops early once two models can be told apart (``--until``)."""
