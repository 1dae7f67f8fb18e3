"""Images made elsewhere (``--images``)."""

CONNECTS: dict[str, str] = {}
