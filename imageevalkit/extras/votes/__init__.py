"""Votes of people (``--votes``)."""
