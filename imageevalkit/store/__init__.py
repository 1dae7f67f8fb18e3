"""The files of a result."""
