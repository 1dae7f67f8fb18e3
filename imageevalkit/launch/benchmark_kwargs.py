"""The settings that a user gave for a benchmark: DS_KWARGS_MAP, and ``--ds_kwargs`` over it."""

from __future__ import annotations

from typing import Any

from imageevalkit.benchmark.contract import rules_of
from imageevalkit.errors import UserError
from imageevalkit.launch.config import Config
from imageevalkit.launch.kwargs import parse_kwargs
from imageevalkit.launch.options import Options


def configured_settings(config: Config, benchmark: str) -> dict[str, Any]:
    """Those of DS_KWARGS_MAP. Raises UserError for malformed ones."""
    text = config.maps.get("DS_KWARGS_MAP", {}).get(benchmark, "")
    return parse_kwargs(text, f"DS_KWARGS_MAP['{benchmark}'] in config.sh")


def benchmark_kwargs(options: Options, config: Config, benchmark: str) -> dict[str, Any]:
    """All of ``benchmark``, known to be such that it takes them.

    Raises:
        UserError: a malformed setting, or one that the benchmark does not take.
    """
    given = {**configured_settings(config, benchmark), **options.ds_kwargs}
    try:
        rules = rules_of(benchmark, given)
    except UserError as error:
        hint = ""
        if options.ds_kwargs and len(options.benchmarks) > 1:
            hint = "; --ds_kwargs goes to all benchmarks of a run, DS_KWARGS_MAP has settings for each"
        raise UserError(f"{error}{hint}") from None
    for name in getattr(rules, "of_images_elsewhere", ()):
        if name in given and options.infer and options.images is None:
            where = (
                "--ds_kwargs" if name in options.ds_kwargs else f"DS_KWARGS_MAP['{benchmark}'] in config.sh"
            )
            raise UserError(
                f"{where}: the setting {name} of {benchmark} is about images made elsewhere (--images), but this run "
                "makes its own: leave it out"
            )
    return given
