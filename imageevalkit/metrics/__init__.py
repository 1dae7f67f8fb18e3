"""Means of scores, with their intervals: every metric of every benchmark."""
