"""The power of a benchmark."""
