"""Results for experiment trackers (``--export``)."""
