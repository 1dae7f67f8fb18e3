"""Images made elsewhere (``--images``)."""
