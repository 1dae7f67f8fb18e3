"""The endpoints a model can be reached through, one file each."""

from __future__ import annotations

from typing import Any

from imageevalkit.api.routes.base import Route
from imageevalkit.api.routes.chat import Chat
from imageevalkit.api.routes.images import Images
from imageevalkit.api.routes.responses import Responses
from imageevalkit.errors import UserError, suggest

_ROUTES: dict[str, Route] = {route.name: route for route in (Images(), Chat(), Responses())}


def of(name: Any) -> Route:
    """The route of that ``name``.

    Raises:
        UserError: there is none.
    """
    if isinstance(name, str) and name in _ROUTES:
        return _ROUTES[name]
    hint = suggest(str(name), _ROUTES)
    raise UserError(f"endpoint must be one of {', '.join(_ROUTES)}, not {name!r}{hint}")
