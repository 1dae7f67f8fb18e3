"""Leaderboard and gallery, from result files alone."""
