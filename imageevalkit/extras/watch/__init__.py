"""Evaluates checkpoints as they appear (``--watch``)."""

CONNECTS = {
    "options": "options:OPTIONS",
    "command": "watch:COMMAND",
}
