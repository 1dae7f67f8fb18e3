"""Results for other people (``--publish``)."""

CONNECTS = {
    "options": "options:OPTIONS",
    "results": "hook:PublishHook",
}
