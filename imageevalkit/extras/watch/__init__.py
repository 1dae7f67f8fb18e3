"""Checkpoints of a training run as models (``run@1000``), and their evaluation as they appear (``--watch``)."""

CONNECTS = {
    "options": "options:OPTIONS",
    "models": "checkpoints:with_checkpoints",
    "weights": "checkpoints:lacks_of",
    "commands": "watch:COMMANDS",
}
