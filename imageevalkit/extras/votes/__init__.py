"""Votes of people (``--votes``)."""

CONNECTS = {
    "options": "options:OPTIONS",
    "results": "hook:VotesHook",
    "section": "section:VotesSection",
}
