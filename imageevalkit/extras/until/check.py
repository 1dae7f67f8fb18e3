"""Checks ``--until`` before a run."""

from __future__ import annotations

from collections.abc import Mapping

from imageevalkit.common.errors import UserError, suggest
from imageevalkit.plan.benchmarks import BenchmarkChoice
from imageevalkit.plan.options import LOCAL, Options


def check_until(options: Options, benchmarks: Mapping[str, BenchmarkChoice]) -> list[str]:
    """Returns a note for each benchmark that ``--until`` cannot stop early.

    Raises UserError: ``--until`` needs a local run that generates and judges images of just two models."""
    rivals = options.extra["until"]["until"]
    compare = options.extra.get("compare", {})
    for name in rivals:
        if name not in options.models:
            near = suggest(name, options.models)
            raise UserError(f"--until names '{name}', which is no model of this run{near}")
    if others := [name for name in options.models if name not in rivals]:
        raise UserError(
            f"--until is about two models, and this run has '{others[0]}' too: run them alone first "
            f'(--model_names "{";".join(rivals)}"), then all without --until'
        )
    in_vain = {
        "--images": options.images is not None,
        "--rescore": options.rescore,
        "--infer false": not options.infer,
        "--eval false": not options.eval,
    }
    for name in filter(in_vain.get, in_vain):
        raise UserError(f"--until is for runs that make images and judge them: leave out {name}")
    unfit = {
        f"--launcher {options.launcher}": (options.launcher != LOCAL, "its rounds run on this machine"),
        "--batch": (
            bool(options.sender),
            "it looks at the scores after each round, and a batch may take 24 hours",
        ),
        "--missing_items official": (
            options.missing_items == "official",
            "official scores with missing items are of all images",
        ),
        "--gate": (bool(compare.get("gate")), "a score of a part of the items is never held against others"),
        "--save_baseline": (bool(compare.get("save_baseline")), "a baseline is of all items"),
    }
    for name, (is_given, why) in unfit.items():
        if is_given:
            raise UserError(f"--until does not go with {name}: {why}")
    return [
        f"--until cannot stop {name} early; all of its images are generated, because {choice.needs_all_items}"
        for name, choice in benchmarks.items()
        if choice.needs_all_items
    ]
