"""Images made elsewhere (``--images``)."""

CONNECTS = {
    "options": "options:OPTIONS",
    "resolve": "planning:resolve",
    "image_jobs": "planning:adopt_jobs",
    "images_to_come": "planning:to_come",
    "order": "order:AdoptOrder",
    "forecast": "__main__:forecast_of",
}
