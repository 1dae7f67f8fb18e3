"""Comparison of results (``--compare``), and the gate against a baseline (``--gate``)."""

CONNECTS = {
    "options": "options:OPTIONS",
    "command": "hook:COMMAND",
    "results": "hook:GateHook",
    "section": "section:ComparisonsSection",
}
