"""Results for experiment trackers (``--export``)."""

CONNECTS = {
    "options": "options:OPTIONS",
    "results": "hook:ExportHook",
}
