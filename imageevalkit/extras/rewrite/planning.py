"""Chooses the rewriter of a run, and plans its job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

from imageevalkit import registry
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.common.errors import UserError
from imageevalkit.extras.rewrite.contract import Rewriter
from imageevalkit.extras.rewrite.order import RewriteOrder
from imageevalkit.jobs.plan import Job
from imageevalkit.plan.benchmarks import checked
from imageevalkit.plan.config import DRIVER_PYTHON, Config, parse_kwargs
from imageevalkit.plan.options import Options
from imageevalkit.plan.stage_jobs import RETRIES, Run
from imageevalkit.store.cell import log_root


def resolve(options: Options, given: Mapping[str, Any], config: Config) -> None:
    """Sets ``options.rewriter``. Raises UserError: an option is given in vain, or a setting is wrong."""
    own = options.extra["rewrite"]
    name = own["prompt_rewriter"]
    if options.images is not None:
        if name and "--prompt_rewriter" in given:
            raise UserError("--images makes no images: leave out --prompt_rewriter")
    elif name:
        options.rewriter = _chosen(config, name, own["rewriter_kwargs"])
    else:
        raise UserError("--rewriter_kwargs is given, but no --prompt_rewriter")


def _chosen(config: Config, name: str, given: Mapping[str, Any]) -> Rewriter:
    """Return the rewriter ``name`` with the settings ``given`` over REWRITER_KWARGS_MAP.

    Raises UserError: there is no such rewriter, or a setting is unknown or invalid.
    """
    texts = config.map("REWRITER_KWARGS_MAP")
    cls: type[Rewriter] = registry.rewriter_class(name)
    kwargs = {**parse_kwargs(texts.get(name, ""), f"REWRITER_KWARGS_MAP['{name}'] in config.sh"), **given}
    remark = " (request parameters go into extra_body)"
    return cls(checked(cls.settings_class, kwargs, f"prompt rewriter '{name}'", remark))


def rewrite_jobs(run: Run) -> list[Job]:
    """Returns the one job that rewrites the prompts of all cells; an empty list if the run rewrites none.

    Raises UserError: the key or the price of the rewriter is missing.
    """
    options, rewriter = run.options, cast("Rewriter | None", run.options.rewriter)
    cells = [cell for model in options.models for cell in run.open_cells(model)]
    if rewriter is None or not options.rewrites or not cells:
        return []
    settings, what = rewriter.settings, f"prompt rewriter '{rewriter.name}'"
    secrets = list[str]()
    # If all prompts are rewritten already, the run may continue on a machine without network and key.
    if not all(cell.prompts.exists() for cell in cells) or os.environ.get(settings.api_key_env or "API_KEY"):
        try:
            secrets = run.secrets_of(Endpoint.of(vars(settings), needs_key=options.needs_keys))
        except UserError as error:
            raise UserError(f"{what} is reached through an API: {error}") from None
        options.check_price(what, settings.price_of(rewriter.model_id), "--rewriter_kwargs")
    name = f"rewrite:{rewriter.id}"
    order = run.order(
        RewriteOrder,
        rewriter=rewriter.name,
        kwargs=asdict(settings),
        workers=options.num_workers,
        shared=run.shared,
    )
    return [
        Job(
            name=name,
            stage="rewrite",
            command=[DRIVER_PYTHON, "-m", "imageevalkit.extras.rewrite", *run.words(name)],
            cells=[cell.key for cell in cells],
            logs=[str(log_root() / f"rewrite_{rewriter.id}_{run.stamp}.log")],
            secrets=secrets,
            cores=1,
            retries=RETRIES,
            order=order,
        )
    ]
