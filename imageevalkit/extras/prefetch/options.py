"""The options of ``utils/prefetch.sh`` that eval.sh does not have."""

from __future__ import annotations

from imageevalkit.plan.config import Option, folder, parse_boolean

OPTIONS = {
    "mirror": Option(
        "DIR", "copy data and code from DIR/<owner>/<repo>/<commit>/…, no internet", folder, prefetch="own"
    ),
    "check": Option("", "only report what is missing or wrong, by size", parse_boolean, prefetch="own"),
    "hashes": Option(
        "", "verify the content of every file too, not only its size", parse_boolean, prefetch="own"
    ),
}
