"""The options ``--status`` and ``--cancel``."""

from __future__ import annotations

from imageevalkit.plan.config import Option, parse_boolean

OPTIONS = {
    "status": Option(
        "",
        "show the progress of unfinished runs; start nothing",
        parse_boolean,
        prefetch="",
        command="status",
    ),
    "cancel": Option("", "end unfinished runs and their jobs", parse_boolean, prefetch="", command="cancel"),
}
