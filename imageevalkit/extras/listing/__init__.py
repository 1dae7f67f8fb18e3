"""What there is and what is missing (``--list``)."""

CONNECTS = {
    "options": "options:OPTIONS",
    "commands": "listing:COMMANDS",
}
