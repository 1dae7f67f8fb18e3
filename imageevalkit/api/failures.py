"""Classifies failed requests, and reads from a reply when to retry.

===========================================  ===========  ==================================================
reply                                        class        what happens
===========================================  ===========  ==================================================
429                                          RATE_LIMIT   ``Limiter`` waits as long as the server asks;
                                                          never counts against the item
408, 409, 425, 5xx                           TRANSIENT    retry with full-jitter backoff (``Retry-After`` if
                                                          sent)
connection reset, broken reply, timeout      TRANSIENT    the same
200 with HTML, no JSON, no image, an image
that does not decode, or an ``error``
without a status                             TRANSIENT    the same
200 with HTML before any reply of an API     PERMANENT    the cell stops: BASE_URL leads to a web site
third 200 without an image before any image  PERMANENT    the cell stops and shows the keys of the reply
200 with an ``error`` whose code is or means
a 4xx or 5xx                                 as that one  as that one
no connection at all (DNS, refused, TLS)     UNREACHABLE  the same as TRANSIENT; if the endpoint never
                                                          replied, the cell then stops (on hold if images of
                                                          these settings exist)
any of these from item after item            TRANSIENT    an outage (``Outage``): waits, no item fails
an outage of ``max_outage`` seconds; a batch
that somebody cancelled                      DOWN         the cell is on hold (also if the budget is SPENT)
dead image URL, or three failed downloads;
a chat reply without text that did not stop
by itself                                    LOST         one new result is requested, then the item fails
content policy, by a code: any 4xx except
401 and 402, or a 200 without an image       REFUSAL      recorded with the provider's words, never retried
content policy, by its words alone: 400, 422,
451, or a 200 without an image; never 403    REFUSAL      the same
400, 413, 422 about the prompt or the image  ITEM         this item fails at once
a reply or an image above its size limit, an
image at an address that is not allowed      ITEM         the same
400, 422 after another item has succeeded    ITEM         the parameters are the same for all items
400, 422 before that, blaming no parameter   PERMANENT    the same, but in ``doubt``: a judge first tries
                                                          other items
403 without a code of content policy; 401,
402, 404, 405, 3xx, quota used up            PERMANENT    the cell stops with one line
any other 4xx (a bad parameter)              PERMANENT    the same
===========================================  ===========  ==================================================

An HTML page comes from a proxy or a firewall on the way, so its words are never a REFUSAL.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple

from imageevalkit.common.redaction import beginning, one_line

# OpenAI and Azure: x-ratelimit-{remaining,reset}-{requests,tokens,…}; OpenRouter and many gateways: without a kind;
# the IETF draft on RateLimit header fields: ratelimit-{remaining,reset}.
_RESET = re.compile(r"(?:x-)?ratelimit-reset(-[a-z-]+)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_RETRY_DELAY = re.compile(r'"retryDelay"\s*:\s*"(\d+(?:\.\d+)?s)"')
# Larger numbers are no durations but times in seconds or milliseconds since 1970.
_EPOCH, _EPOCH_MS = 1e9, 1e12

LONGEST_WAIT = 120.0
"""Seconds. A server may ask for an hour, but one request every two minutes is no burden for it."""


def asked_wait(headers: Mapping[str, str], body: str = "", now: datetime | None = None) -> float | None:
    """Returns the seconds until a failed request may be retried, or None if the reply does not say.

    ``Retry-After`` (RFC 9110 §10.2.3) has priority over the reset of a used-up rate window. That has priority
    over ``retryDelay`` of google.rpc.RetryInfo in ``body``. ``headers`` is case-insensitive (httpx's).
    """
    delay = _RETRY_DELAY.search(body)
    for asked in (
        _wait(headers.get("retry-after-ms", ""), now, unit=0.001),
        _wait(headers.get("retry-after", ""), now),
        used_up_for(headers, now),
        _wait(delay[1], now) if delay else None,
    ):
        if asked is not None:
            return asked
    return None


def used_up_for(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Returns the seconds until all rate windows with ``remaining`` 0 have ended; None if there is none."""
    waits = [
        _wait(value.strip(), now)
        for name, value in headers.items()
        if _RESET.fullmatch(name.lower())
        and headers.get(name.lower().replace("reset", "remaining"), "").strip() in ("0", "0.0")
    ]
    return max((wait for wait in waits if wait is not None), default=None)


def _wait(text: str, now: datetime | None, unit: float = 1.0) -> float | None:
    """Returns the seconds in a header: a number of ``unit`` seconds, "1m6.5s", an HTTP or ISO 8601 date."""
    now = now or datetime.now(timezone.utc)
    if _DURATION.fullmatch(text):
        return sum(float(n) * _UNITS[unit] for n, unit in _PART.findall(text))
    try:
        seconds = float(text) * unit
    except ValueError:
        for read in (parsedate_to_datetime, datetime.fromisoformat):
            with contextlib.suppress(ValueError, OverflowError):
                date = read(text.replace("Z", "+00:00"))
                date = date if date.tzinfo else date.replace(tzinfo=timezone.utc)
                return max(0.0, (date - now).total_seconds())
        return None
    if seconds >= _EPOCH:
        seconds = (seconds / 1000 if seconds >= _EPOCH_MS else seconds) - now.timestamp()
    return max(0.0, seconds) if math.isfinite(seconds) else None


class Kind(Enum):
    """The class of a failure: the second column of this module's table."""

    RATE_LIMIT = "rate limit"
    TRANSIENT = "transient"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    REFUSAL = "refusal"
    ITEM = "item"
    PERMANENT = "permanent"
    DOWN = "down"
    SPENT = "spent"

    @property
    def retried(self) -> bool:
        return self in (Kind.RATE_LIMIT, Kind.TRANSIENT, Kind.UNREACHABLE, Kind.LOST)


class Failure(NamedTuple):
    """One failed request: its class, its text (one line), and the wait in seconds that the server asks for.

    ``maybe_billed``: the provider may have generated an image, because the reply was lost, late or broken.
    ``tokens`` and ``reported_cost`` (USD) come from the reply (see ``ImageReply``). ``doubt``: the text for
    the case that the item caused the failure (before any success); empty if this is excluded. ``unlike``: how
    a reply of status 200 differs from a usable one (its keys); empty for other failures.
    """

    kind: Kind
    text: str
    retry_after: float | None = None
    maybe_billed: bool = False
    tokens: Mapping[str, int] = MappingProxyType({})
    reported_cost: float | None = None
    doubt: str = ""
    unlike: str = ""


class ErrorBody(NamedTuple):
    """The message and codes of an error reply, and the parameter it blames. ``page``: it is an HTML page."""

    message: str
    codes: tuple[str, ...] = ()
    param: str = ""
    page: bool = False

    @property
    def words(self) -> str:
        """The message, or the codes if there is no message."""
        return self.message or ", ".join(self.codes)


LOOKED_AT = 10_000  # bytes that are read of a body that is not JSON
LONGEST_MESSAGE = 400  # characters of a provider's message in a log
# Codes seen from: OpenAI (content_policy_violation, moderation_blocked), Azure (content_filter,
# ResponsibleAIPolicyViolation), Google (…UNSAFE_GENERATION, PROHIBITED_CONTENT, IMAGE_SAFETY), DashScope
# (DataInspectionFailed), Ark (OutputImageSensitiveContentDetected), new-api (sensitive_words_detected,
# prompt_blocked).
_REFUSAL_CODE = re.compile(
    r"content_?policy|moderation_blocked|content_?moderat|content_?filter|responsibleaipolicy|"
    r"unsafe_?(generation|content|prompt|image|input|output)|(prompt|image|content)_?unsafe|^unsafe$|"
    r"prohibited_content|(image|prompt|^)_?safety$|data_?inspection|sensitive_?(content|words?)|"
    r"^prompt_blocked$",
    re.IGNORECASE,
)
# Codes of a failed response (openai 3: ResponseError). In a 4xx they may concern an organisation.
_POLICY_OF_200 = re.compile(r"_policy(_violation)?$")
_REFUSAL_WORDS = re.compile(
    r"safety (system|filter|setting|polic)|content (management )?polic|content (filter|moderat)|"
    r"request (was )?moderated|moderation system|responsible ai|DataInspectionFailed|"
    r"flagged as potentially violating|"
    r"(inappropriate|sensitive|prohibited|unsafe) (content|words?)|"
    r"内容(违规|不合规|安全|审核)|(敏感|违规|不合规|不当)的?(内容|信息|词|图)|"
    r"(输入|提示词|文本|图片|图像).{0,6}(违规|不合规)",
    re.IGNORECASE,
)
# a banned account and an unknown value of a safety setting mention a policy, too
_NOT_ABOUT_CONTENT = re.compile(
    r"\b(account|organi[sz]ation|your access|api key)\b.{0,40}"
    r"\b(banned|blocked|deactivated|disabled|suspended|terminated|restricted)|"
    r"(账号|账户|帐号|帐户).{0,30}(封禁|封停|停用|禁用|冻结|违规)|封号|"
    r"\b(invalid|unknown|unsupported|unexpected|unrecognized) (value|parameter|argument|field|option)",
    re.IGNORECASE,
)
_CONTENT_PARAM = re.compile(r"^$|prompt|image|input|text|message", re.IGNORECASE)
# Each repetition is bounded, as in all patterns for server text: many "<title" would take quadratic time.
_TITLE = re.compile(r"<title[^>]{0,200}>([^<]{0,400})", re.IGNORECASE)
_HTML = re.compile(r"<(!doctype|html|head|title|body|h1|center)\b|^\s*<\?", re.IGNORECASE)
# Without 403: its words concern the account or the network as often as the prompt.
_WORDS_COUNT = frozenset({200, 400, 422, 451})
# A gateway sends these if the server behind it was too slow or broke off. The server may have made the image.
_LOST_ON_THE_WAY = frozenset({408, 502, 504, 520, 522, 524})
_QUOTA_CODE = re.compile(r"insufficient_(user_)?quota|billing|quota_not_enough|arrearage", re.IGNORECASE)
# Error codes in a 200, by the status they mean. Quota codes come first: some providers use 429 for them.
_STATUS_OF_CODE = {
    402: _QUOTA_CODE,
    401: re.compile(
        r"^((invalid|incorrect)_?api_?key|authentication_error|unauthenticated|unauthorized)$", re.I
    ),
    403: re.compile(r"^(permission_(denied|error)|access_denied|forbidden)$", re.I),
    404: re.compile(r"^model_?not_?found$", re.I),
    429: re.compile(r"^(rate_?limit_(exceeded|error)|too_many_requests|resource_exhausted)$", re.I),
}
_KEY_UNKNOWN = "API_KEY (or the variable that api_key_env names)"
_ITEM_CODE = re.compile(
    r"string_(above_max_length|too_long)|context_length|^invalid_prompt$|image_(too|parse|file)|"
    r"(invalid|empty|unsupported|failed_to_download)_?(base64_)?image",
    re.IGNORECASE,
)
_ITEM_WORDS = re.compile(
    r"\b(prompt|text|string|context)\b.{0,60}\b(too long|exceed\w*|maximum (context )?length|max(imum)? \d+)|"
    # vLLM and SGLang, which give no code
    r"\bmaximum (context|model) length\b|\blonger than the model's context length\b|"
    r"\bcannot identify image\b|\bimage file is truncated\b|"
    r"\b(invalid|corrupt(ed)?) (base64 )?image (data|file|url|bytes)|\bfailed to (load|decode|open) (the )?image\b",
    re.IGNORECASE,
)
_ITEM_PARAM = re.compile(r"(prompt|images?)(\[\d*\]|_url|\.\d+)*", re.IGNORECASE)


def parse_error(body: str) -> ErrorBody:
    """Reads an error reply: OpenAI's ``{"error": {…}}``, FastAPI's ``detail``, plain text or an HTML page."""
    try:
        return error_of(json.loads(body))
    except (ValueError, RecursionError):
        return in_words(body)


def error_of(parsed: Any) -> ErrorBody:
    """Returns the error in a parsed reply. Its message is empty if the reply contains none."""
    if not isinstance(parsed, dict):
        return in_words(str(parsed))
    error = parsed.get("error") or parsed.get("detail") or parsed
    if isinstance(error, list) and error:
        error = error[0]
    if not isinstance(error, dict):
        return in_words(str(error))
    message = error.get("message") or error.get("msg") or parsed.get("message") or ""
    location = error.get("loc")
    param = error.get("param") or (location[-1] if isinstance(location, list) and location else "")
    return in_words(str(message))._replace(
        codes=tuple(beginning(code, LONGEST_MESSAGE) for code in _codes(error)),
        param=beginning(str(param), LONGEST_MESSAGE),
    )


def _codes(error: Mapping[str, Any]) -> Iterator[str]:
    for key in ("code", "type", "status", "reason"):
        if isinstance(error.get(key), (str, int)) and not isinstance(error[key], bool):
            yield str(error[key])
    metadata = error.get("metadata")
    if isinstance(metadata, dict) and "flagged_input" in metadata:
        yield "moderation_blocked"  # OpenRouter: only this field marks such a 403, which has no code
    for key in ("innererror", "inner_error", "details"):
        nested = error.get(key)
        for inner in nested if isinstance(nested, list) else [nested]:
            if isinstance(inner, dict):
                yield from _codes(inner)


def in_words(text: str) -> ErrorBody:
    """Returns the error that ``text`` states; for an HTML page its title is the message."""
    text = beginning(text)
    if not _HTML.search(text):
        return ErrorBody(one_line(text, LONGEST_MESSAGE))
    title = _TITLE.search(text)
    words = f"an HTML page, '{title[1]}'" if title else "an HTML page"
    return ErrorBody(one_line(words, LONGEST_MESSAGE), page=True)


def page_in(body: bytes) -> str:
    """Returns a description of the HTML page in ``body``; empty if ``body`` is no page."""
    start = body[:LOOKED_AT].lstrip()
    error = in_words(start.decode(errors="replace"))
    return error.message if error.page and start.startswith(b"<") else ""


def refuses(status: int, error: ErrorBody) -> bool:
    """Returns whether ``error`` is a refusal by content policy.

    Its codes decide, or its words if ``status`` fits: a 403 or 429 may quote a policy on accounts or rates.
    If ``error`` blames another parameter than the prompt or image, its words do not count.
    """
    if not (status == 200 or 400 <= status < 500):
        return False
    if any(_REFUSAL_CODE.search(c) or (status == 200 and _POLICY_OF_200.search(c)) for c in error.codes):
        return True
    return (
        status in _WORDS_COUNT
        and not error.page
        and bool(_CONTENT_PARAM.search(error.param))
        and bool(_REFUSAL_WORDS.search(error.message))
        and not _NOT_ABOUT_CONTENT.search(error.message)
    )


def classify_status(
    status: int, headers: Mapping[str, str], body: str, proven: bool, key: str = "API_KEY"
) -> Failure:
    """Returns the Failure for an HTTP reply with ``status`` (not 2xx). ``key`` names the variable of the key.

    ``proven``: an earlier item succeeded with the same parameters, so a 400 is caused by this item.
    """
    error = parse_error(body)
    text = f"HTTP {status}: {error.words}" if error.words else f"HTTP {status}"
    if status < 400:
        target = headers.get("location", "").partition("?")[0]
        return Failure(
            Kind.PERMANENT, f"HTTP {status} redirect to '{target}': set BASE_URL to the final address"
        )
    return _classified(status, error, text, asked_wait(headers, body), proven, key)


def classify_error_in_200(error: ErrorBody) -> Failure:
    """Returns the Failure for an ``error`` in a reply of status 200, by the status that its codes mean."""
    text = f"the reply (HTTP 200) holds an error: {error.words or 'no words'}"
    # {"error": "insufficient_quota"}: a single word in place of a message is a code
    status = _status_meant(error.codes or re.findall(r"^\w+$", error.message))
    if not 400 <= status < 500 and refuses(200, error):
        return Failure(Kind.REFUSAL, error.words)
    if status:
        # with a 200 the server has accepted the parameters: a 400 is caused by this item
        return _classified(status, error, text, None, proven=True, key=_KEY_UNKNOWN)
    return Failure(Kind.ITEM if _blames_item(error) else Kind.TRANSIENT, text)


def _status_meant(codes: Iterable[str]) -> int:
    for code in codes:
        if re.fullmatch(r"[45]\d\d", code):
            return int(code)
        for status, pattern in _STATUS_OF_CODE.items():
            if pattern.search(code):
                return status
    return 0


def _classified(
    status: int, error: ErrorBody, text: str, retry_after: float | None, proven: bool, key: str
) -> Failure:
    quota = any(_QUOTA_CODE.search(code) for code in error.codes)
    if status == 401:
        return Failure(
            Kind.PERMANENT,
            f"{text}; the key is rejected: correct {key} in config.local.sh or the environment",
        )
    if status == 402 or (quota and status < 500):
        return Failure(Kind.PERMANENT, f"{text}; the account has no quota left: top it up and run again")
    if refuses(status, error):
        return Failure(Kind.REFUSAL, error.words)
    if status == 429:
        return Failure(Kind.RATE_LIMIT, text, retry_after)
    if status in (408, 409, 425) or status >= 500:
        return Failure(Kind.TRANSIENT, text, retry_after, status in _LOST_ON_THE_WAY)
    if status in (404, 405):
        return Failure(Kind.PERMANENT, f"{text}; check the model id and BASE_URL (it usually ends in /v1)")
    if status in (400, 413, 422) and (proven or status == 413 or _blames_item(error)):
        return Failure(Kind.ITEM, text)
    doubtful = status in (400, 422) and bool(_CONTENT_PARAM.search(error.param))
    doubt = text if doubtful else ""
    return Failure(Kind.PERMANENT, f"{text}; check its kwargs and the account's rights", doubt=doubt)


def _blames_item(error: ErrorBody) -> bool:
    return bool(
        any(_ITEM_CODE.search(code) for code in error.codes)
        or _ITEM_PARAM.fullmatch(error.param)
        or _ITEM_WORDS.search(error.message)
    )


def classify_connection(error: BaseException) -> Failure:
    """Returns the Failure for an exception of the HTTP client (``httpx2``) or of a lower layer."""
    import httpx2

    text = one_line(f"{type(error).__name__}: {error}".rstrip(": "), LONGEST_MESSAGE)
    unreachable = isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError))
    return Failure(Kind.UNREACHABLE if unreachable else Kind.TRANSIENT, text, maybe_billed=not unreachable)
