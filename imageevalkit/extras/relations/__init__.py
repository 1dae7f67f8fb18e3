"""Relations between the scores of an item (``--relations``)."""

CONNECTS = {
    "options": "options:OPTIONS",
    "check": "check:check_relations",
    "section": "section:RelationsSection",
}
