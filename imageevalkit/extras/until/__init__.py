"""Stops early once it is settled which of two models is better (``--until``)."""

CONNECTS = {
    "options": "options:OPTIONS",
    "check": "check:check_until",
    "scheduler": "rounds:SCHEDULER",
}
