"""What a reply says about when to ask again: ``Retry-After``, the providers' reset headers, Google's RetryInfo."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

# OpenAI and Azure: x-ratelimit-{remaining,reset}-{requests,tokens,…}; OpenRouter and many gateways: without a kind;
# the IETF draft on RateLimit header fields: ratelimit-{remaining,reset}.
_RESET = re.compile(r"(?:x-)?ratelimit-reset(-[a-z-]+)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_RETRY_DELAY = re.compile(r'"retryDelay"\s*:\s*"(\d+(?:\.\d+)?)s"')
# Larger numbers are points in time, in seconds or milliseconds since 1970, not durations.
_EPOCH, _EPOCH_MS = 1e9, 1e12

LONGEST_WAIT = 120.0
"""Seconds. A server may ask for an hour; one question every two minutes is no burden."""


def asked_wait(headers: Mapping[str, str], body: str = "", now: datetime | None = None) -> float | None:
    """Seconds after which a failed request may be made again, or None when the reply does not say.

    ``headers`` is case-insensitive (httpx's). ``Retry-After`` (RFC 9110 §10.2.3) wins over the reset of a
    window that is used up, and that over ``retryDelay`` of google.rpc.RetryInfo in ``body``.
    """
    now = now or datetime.now(timezone.utc)
    asked = _retry_after(headers, now)
    if asked is None:
        asked = used_up_for(headers, now)
    if asked is None and (delay := _RETRY_DELAY.search(body)):
        asked = float(delay[1])
    return asked


def used_up_for(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds until the window that a reply calls used up (``remaining`` is 0) ends; None when none is."""
    now = now or datetime.now(timezone.utc)
    waits = []
    for name, value in headers.items():
        if _RESET.fullmatch(name.lower()):
            remaining = headers.get(name.lower().replace("reset", "remaining"), "")
            wait = _seconds(value.strip(), now)
            if remaining.strip() in ("0", "0.0") and wait is not None:
                waits.append(wait)
    return max(waits, default=None)


def _retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    return _until(date, now)


def _seconds(text: str, now: datetime) -> float | None:
    if _DURATION.fullmatch(text):
        return sum(float(n) * _UNITS[unit] for n, unit in re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", text))
    try:
        number = float(text)
    except ValueError:
        try:
            return _until(datetime.fromisoformat(text.replace("Z", "+00:00")), now)
        except ValueError:
            return None
    if not math.isfinite(number) or number < 0:
        return None
    if number >= _EPOCH:
        number = (number / 1000 if number >= _EPOCH_MS else number) - now.timestamp()
    return max(0.0, number)


def _until(date: datetime, now: datetime) -> float:
    if date.tzinfo is None:
        date = date.replace(tzinfo=timezone.utc)
    return max(0.0, (date - now).total_seconds())
