"""Stand-in for the authors' own copy of transformers."""

__version__ = "4.47.0.dev0"
