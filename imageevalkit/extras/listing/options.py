"""The option ``--list``."""

from __future__ import annotations

from imageevalkit.plan.config import Option, parse_boolean

OPTIONS = {"list": Option("", "show all models and benchmarks", parse_boolean, prefetch="", command="list")}
