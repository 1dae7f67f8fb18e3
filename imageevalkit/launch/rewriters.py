"""The prompt rewriter of a run: its settings, what its results are called, and what its requests take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from imageevalkit import registry
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.assets import RewriterFiles
from imageevalkit.cell import Cell
from imageevalkit.errors import CellFailure, UserError, suggest
from imageevalkit.launch.config import Config
from imageevalkit.launch.kwargs import checked, parse_kwargs
from imageevalkit.rewriting.rewriter import Rewriter


class ConfiguredRewriter(NamedTuple):
    """A rewriter with the user's settings of it, ``kwargs``."""

    rewriter: Rewriter
    kwargs: Mapping[str, Any]

    @property
    def id(self) -> str:
        """What stands in the names of its results: ``dtm-1a2b3c4d``."""
        return self.rewriter.id

    @property
    def files(self) -> RewriterFiles:
        """What prefetch gets for it."""
        return self.rewriter.files()

    @property
    def setting(self) -> dict[str, str]:
        """What an image's settings tell of it."""
        return {"prompt_rewriter": self.id, "prompt_rewriter.model": self.rewriter.model_id}

    @property
    def key_variable(self) -> str:
        """The variable of the environment that holds its key."""
        return self.rewriter.settings.api_key_env or "API_KEY"

    def lacks(self, raw: Cell, limit: int | None) -> str:
        """Why the prompts of ``raw``, the first ``limit``, cannot be rewritten; empty: nothing is known."""
        try:
            if problems := self.files.problems():
                return self.files.explain(problems)
            self.rewriter.check(raw, limit)
        except CellFailure as failure:
            return str(failure)
        return ""

    def endpoint(self) -> Endpoint:
        """Where it is asked. Raises UserError: there is no key, or a malformed setting."""
        try:
            return Endpoint.of(vars(self.rewriter.settings))
        except UserError as error:
            raise UserError(
                f"prompt rewriter '{self.rewriter.name}' is reached through an API: {error}"
            ) from None


def configured_rewriter(config: Config, name: str, given: Mapping[str, Any]) -> ConfiguredRewriter:
    """The rewriter ``name``: settings ``given`` over REWRITER_KWARGS_MAP.

    Raises:
        UserError: there is none, or the settings are not its own.
    """
    texts = config.maps.get("REWRITER_KWARGS_MAP", {})
    for mapped in texts:
        if mapped not in (names := registry.rewriter_names()):
            raise UserError(
                f"REWRITER_KWARGS_MAP in config.sh names unknown prompt rewriter '{mapped}'{suggest(mapped, names)}"
            )
    cls: type[Rewriter] = registry.rewriter_class(name)
    kwargs = {**parse_kwargs(texts.get(name, ""), f"REWRITER_KWARGS_MAP['{name}'] in config.sh"), **given}
    settings = checked(
        cls.settings_class, kwargs, f"prompt rewriter '{name}'", " (request parameters go into extra_body)"
    )
    return ConfiguredRewriter(cls(settings), kwargs)
