"""The stage in place of generation: take the images of a folder that were made elsewhere (``--images``)."""
