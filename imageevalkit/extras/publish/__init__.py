"""Results for other people (``--publish``)."""
