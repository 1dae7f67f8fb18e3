"""Relations between the scores of an item (``--relations``)."""
