"""Sends requests as batches of the provider, at half the price (``--batch``)."""

CONNECTS = {
    "options": "options:OPTIONS",
    "resolve": "planning:resolve",
    "check": "planning:check_batch",
    "sender": "batches:Batches",
}
