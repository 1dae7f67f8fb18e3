"""The options ``--status`` and ``--cancel``."""

from __future__ import annotations

from imageevalkit.plan.config import Option, parse_boolean

OPTIONS = {
    "status": Option(
        "",
        "show how far the runs are that have not ended; start nothing",
        parse_boolean,
        prefetch="",
        command="status",
    ),
    "cancel": Option(
        "", "end the runs that have not ended, and their jobs", parse_boolean, prefetch="", command="cancel"
    ),
}
