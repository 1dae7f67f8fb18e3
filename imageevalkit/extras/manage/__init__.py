"""Shows and ends the runs that have not ended (``--status``, ``--cancel``)."""

CONNECTS = {
    "options": "options:OPTIONS",
    "commands": "runs:COMMANDS",
}
