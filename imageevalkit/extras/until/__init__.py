"""Stops early once it is settled which of two models is better (``--until``)."""

CONNECTS = {
    "options": "options:OPTIONS",
    "check": "check:check_until",
    "after_questions": "note:Settled",
    "scheduler": "rounds:SCHEDULER",
}
