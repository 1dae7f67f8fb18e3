"""Tiny checkpoints with random weights, built from configs and saved to disk: no download. One file for each family."""
