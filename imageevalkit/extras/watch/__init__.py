"""Evaluates checkpoints as they appear (``--watch``)."""

CONNECTS = {
    "options": "options:OPTIONS",
    "commands": "watch:COMMANDS",
}
