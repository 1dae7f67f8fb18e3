"""Comparison of results (``--compare``, ``--gate``)."""
