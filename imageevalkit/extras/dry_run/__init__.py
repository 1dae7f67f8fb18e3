"""Shows the plan of a run and starts nothing (``--dry_run``)."""

CONNECTS = {
    "options": "options:OPTIONS",
    "commands": "describe:COMMANDS",
}
