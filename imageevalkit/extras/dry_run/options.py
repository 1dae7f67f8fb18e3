"""The option ``--dry_run``."""

from __future__ import annotations

from imageevalkit.plan.config import Option, parse_boolean

OPTIONS = {
    "dry_run": Option(
        "",
        "show the plan: jobs, environments, images to generate; start nothing",
        parse_boolean,
        prefetch="",
        group="jobs",
    )
}
