"""Lists models, benchmarks and judges, and what each still needs (``--list``)."""

CONNECTS = {
    "options": "options:OPTIONS",
    "commands": "listing:COMMANDS",
}
