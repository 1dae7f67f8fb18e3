"""Downloads and verifies what a run needs (``utils/prefetch.sh``)."""

CONNECTS = {"options": "options:OPTIONS"}
