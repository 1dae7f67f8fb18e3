"""The options of ``utils/prefetch.sh`` that eval.sh does not have."""

from __future__ import annotations

from imageevalkit.plan.config import Option, folder, parse_boolean

OPTIONS = {
    "mirror": Option(
        "DIR", "copy data and code from DIR/<owner>/<repo>/<commit>/…, no internet", folder, prefetch="own"
    ),
    "check": Option("", "only report missing files and files of a wrong size", parse_boolean, prefetch="own"),
    "hashes": Option("", "also verify the content of every file", parse_boolean, prefetch="own"),
}
