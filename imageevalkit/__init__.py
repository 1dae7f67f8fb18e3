"""ImageEvalKit: the library that every stage (generate, evaluate, report) shares."""

__version__ = "0.1.0"
