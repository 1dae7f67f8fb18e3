"""Comparison of results (``--compare``), and the gate against a baseline (``--gate``)."""

CONNECTS = {
    "options": "options:OPTIONS",
    "commands": "hook:COMMANDS",
    "results": "hook:GateHook",
    "section": "section:ComparisonsSection",
}
