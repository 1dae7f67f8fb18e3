"""Reads the image from the bytes of a reply, with bounds on size and work."""

from __future__ import annotations

import asyncio
import binascii
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from imageevalkit.api.channel import Engine
from imageevalkit.api.client import in_time, read_body
from imageevalkit.api.endpoint import NotAllowed
from imageevalkit.api.failures import (
    LONGEST_MESSAGE,
    LOOKED_AT,
    Failure,
    Kind,
    asked_wait,
    classify_error_in_200,
    error_of,
    in_words,
    refuses,
)
from imageevalkit.api.streams import joined
from imageevalkit.common import images
from imageevalkit.common.images import CorruptImage, EncodedImage, TooLarge
from imageevalkit.common.machine import on_cpu
from imageevalkit.common.redaction import beginning, one_line

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

_MOST_TOKENS = 10**12  # a larger number is no count, and with hundreds of digits no float
# Bounds on the counts of a reply: the record of the image contains all of them.
_MOST_COUNTS = 100
_LONGEST_NAME = 200
# finish reasons: OpenAI's content_filter, and Gemini's SAFETY, PROHIBITED_CONTENT, BLOCKLIST, SPII,
# RECITATION, each also as IMAGE_…
_POLICY = re.compile(r"content_?filter|safety|prohibited|blocklist|spii|recitation", re.IGNORECASE)


def read_json(content: bytes, read: Callable[[dict[str, Any]], T | Failure]) -> T | Failure:
    """Returns ``read`` of the JSON object in the body of a 200, which may be a stream of events."""
    try:
        try:
            reply = json.loads(content)
        except ValueError:
            reply = joined(content)
        if isinstance(reply, Failure):
            return reply
        if reply is None:
            words = in_words(content[:LOOKED_AT].decode(errors="replace")).message
            text = f"the reply is not JSON but {words or 'empty'}"
            return Failure(Kind.TRANSIENT, text, unlike="it is not JSON")
        if not isinstance(reply, dict):
            return Failure(Kind.TRANSIENT, "the reply is not a JSON object", unlike="it is not a JSON object")
        return read(reply)
    except RecursionError:
        return Failure(Kind.TRANSIENT, "the reply is JSON nested too deep to be read")


def failure_in(*holders: Mapping[str, Any]) -> Failure | None:
    """Returns the Failure for the first ``error`` in ``holders``, else the first ``refusal``, else None."""
    for holder in holders:
        if holder.get("error"):
            return classify_error_in_200(error_of(holder))
    for holder in holders:
        words = holder.get("refusal")
        if isinstance(words, str) and words.strip():
            return Failure(Kind.REFUSAL, one_line(words, LONGEST_MESSAGE))
    return None


def tokens_of(usage: Any, prefix: str = "") -> dict[str, int]:
    """Returns the integers of ``usage`` that can be counts; nested ones have a dotted name."""
    return dict(itertools.islice(_counts(usage, prefix), _MOST_COUNTS))


def _counts(usage: Any, prefix: str) -> Iterator[tuple[str, int]]:
    for name, value in usage.items() if isinstance(usage, dict) else ():
        if len(dotted := prefix + name) > _LONGEST_NAME:
            continue
        if isinstance(value, dict):
            yield from _counts(value, f"{dotted}.")
        elif isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST_TOKENS:
            yield dotted, value


def list_of(value: Any) -> list[Any]:
    """Returns ``value`` if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def objects_in(value: Any) -> list[dict[str, Any]]:
    """Returns the objects in ``value`` if it is a list, else an empty list."""
    return [each for each in list_of(value) if isinstance(each, dict)]


def strings_of(holder: Mapping[str, Any], *names: str) -> dict[str, str]:
    """Returns the fields ``names`` that are strings, shortened: they are stored with the image."""
    return {name: beginning(holder[name]) for name in names if isinstance(holder.get(name) or None, str)}


def finish_reasons(reply: Mapping[str, Any], choice: Mapping[str, Any]) -> tuple[str, str]:
    """Returns why a chat model stopped: the endpoint's reason and its provider's, each empty if missing."""
    native = choice.get("native_finish_reason") or reply.get("native_finish_reason") or ""
    reasons = str(choice.get("finish_reason") or ""), str(native)
    return one_line(reasons[0], LONGEST_MESSAGE), one_line(reasons[1], LONGEST_MESSAGE)


def stopped_by_policy(reply: Mapping[str, Any], choice: Mapping[str, Any], words: str) -> Failure | None:
    """Returns the refusal, with ``words`` if any, if a content filter ended ``choice``; else None."""
    finish, native = finish_reasons(reply, choice)
    # gateways report all of Gemini's reasons (NO_IMAGE, IMAGE_OTHER) as content_filter: use Gemini's own
    reason = native or finish
    return Failure(Kind.REFUSAL, words or f"finish reason {reason}") if _POLICY.search(reason) else None


# The image exists and may have been billed: a second download is cheaper than a new image.
_TRIES = 3
_MAY_PASS = frozenset({408, 425, 429})
_MOST_REDIRECTS = 20


async def download_image(engine: Engine, link: str) -> EncodedImage | Failure:
    """Downloads the complete image at ``link``, which comes from a reply of the endpoint.

    Follows redirects to allowed addresses only. A redirect to another origin does not get the key. Returns a
    Failure: LOST after failed downloads, ITEM if a new image would fail too, TRANSIENT if ``link`` is no URL.
    """
    import httpx2

    base, timeout = httpx2.URL(engine.endpoint.base_url), engine.settings.timeout
    try:
        url = base.join(link)
    except httpx2.InvalidURL:
        return Failure(Kind.TRANSIENT, "the reply holds an image URL that is no URL")
    if url.scheme not in ("http", "https"):
        return Failure(Kind.TRANSIENT, f"the reply holds an image URL of scheme '{url.scheme}'")
    # some gateways require the key for their own files; no other host may get the key
    same_origin = (url.scheme, url.host, url.port) == (base.scheme, base.host, base.port)
    headers = {"Authorization": f"Bearer {engine.endpoint.key}"} if same_origin else {}

    async def fetch() -> EncodedImage | Failure:
        files = engine.clients.files
        request = files.build_request("GET", url, headers=headers)
        try:
            for _ in range(_MOST_REDIRECTS):  # not by the client, which would read each body of any length
                response = await files.send(request, stream=True)
                try:
                    if response.next_request is None:
                        return await _image_in(response)
                    request = response.next_request
                finally:
                    await response.aclose()
        except NotAllowed as error:
            return Failure(Kind.ITEM, str(error))
        return Failure(Kind.TRANSIENT, "too many redirects")

    clock = asyncio.get_running_loop().time
    until = clock() + engine.settings.max_elapsed
    tries = 1
    while isinstance(result := await in_time(fetch, timeout), Failure) and result.kind is not Kind.ITEM:
        wait = engine.settings.delay(tries, result.retry_after)
        if not result.kind.retried or tries == _TRIES or clock() + wait > until:
            # names only the host: the query of a signed URL is secret
            return Failure(Kind.LOST, f"the image from {url.host} could not be downloaded: {result.text}")
        tries += 1
        await asyncio.sleep(wait)
    return result


async def _image_in(response: httpx2.Response) -> EncodedImage | Failure:
    status = response.status_code
    if status != 200:
        gone = 400 <= status < 500 and status not in _MAY_PASS
        text, wait = f"HTTP {status}", asked_wait(response.headers)
        return Failure(Kind.PERMANENT if gone else Kind.TRANSIENT, text, wait)
    image, whole = await read_body(response, LARGEST_IMAGE)
    if not whole:
        host = response.url.host
        return Failure(Kind.ITEM, f"the image from {host} is larger than {LARGEST_IMAGE >> 20} MiB")
    return await on_cpu(_proven, image)


class ImageReply(NamedTuple):
    """An image in a reply: ``encoded`` (base64 or a data URL), ``image`` after decoding, or a ``url``.

    ``tokens`` are the counts of ``usage``. ``extra`` holds the server's statements on the image.
    ``reported_cost`` is the cost in USD that the server states.
    """

    encoded: Any = None
    url: str | None = None
    extra: Mapping[str, Any] = MappingProxyType({})
    image: EncodedImage | None = None
    tokens: Mapping[str, int] = MappingProxyType({})
    reported_cost: float | None = None


LARGEST_IMAGE = 100 * 2**20
"""Bytes. An image of 4096² pixels that does not compress has half of it."""
LARGEST_REPLY = 144 * 2**20
"""Bytes of a reply with an image: the largest image in base64, and some text."""
_DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
# PNG, JPEG and WebP in base64. A path may begin like a JPEG, but is shorter.
_BARE_BASE64 = re.compile(r"(?:iVBORw0KGgo|/9j/|UklGR)[A-Za-z0-9+/_\s-]{64}")
_HTTP = re.compile(r"https?://", re.IGNORECASE)
_URL_SAFE = str.maketrans("-_", "+/")
# A refusal is final. These patterns are therefore strict: they search only the beginning of a text, and they
# need both the inability and the task. "We" does not count: operators of gateways use it for plans and rates.
_SPEECH_BEGINS_WITHIN = 200
_REFUSAL_SPEECH = re.compile(
    r"(?<![\w/.-])I(?![\w/.-]).{0,30}"
    r"\b(can['’]?t|can ?not|(un|not )able to|won['’]?t|will not|not (comfortable|allowed|permitted))\b.{0,30}"
    r"\b(assist|help|comply|creat|generat|produc|fulfil|draw|edit|depict|render)|"
    r"(抱歉|对不起|對不起|遗憾|遺憾|不好意思).{0,30}(无法|無法|不能|不可以|没办法|沒辦法|不便|拒绝|拒絕)|"
    r"(^|[我们們，。,.!！;；:：\s])(无法|無法|不能|不可以|没办法|沒辦法|拒绝|拒絕).{0,20}"
    r"(生成|创建|創建|创作|創作|绘制|繪製|画|畫|制作|製作|编辑|編輯|协助|協助|帮助|幫助|满足|滿足|完成|处理|處理|提供)",
    re.IGNORECASE | re.DOTALL,
)
# A model that cannot make images, or that got no image to edit, uses similar words. That is no refusal.
_NOT_CAPABLE = re.compile(
    r"\btext[- ](based|only)\b|\bdirectly\b|\b(upload|attach)|\b(see|find|received?) (an|any|the|your) image|"
    r"\b(create|generate|produce|draw|edit) (images|pictures|photos|visuals)"
    r"(?=\s*($|[.,;:!]|\b(or|and|but|because|here|myself|with)\b))|"
    r"文本模型|文字模型|纯文本|純文本|直接|不具备|不具備|(没有|沒有|未)(看到|收到|生成|绘|繪|画|畫)|上传|上傳",
    re.IGNORECASE,
)
_MOST_WORDS = 10**6  # characters of a reply that are searched for a refusal
_LEAST_WORDS = 200  # least count of a string: each pattern also takes time for a short one
_PASSES = re.compile(
    r"overload|\b(later|again|quota|capacity|busy|rates?)\b|rate_?limit|"
    r"稍后|稍後|重试|重試|再试|再試|繁忙|超时|超時|限流|频繁|頻繁|额度|額度|余额|餘額|配额|配額|错误|錯誤|异常|異常|故障|失败|失敗",
    re.IGNORECASE,
)
# Fields with the user's text, the request's settings or the model's thoughts: no refusal is read from them.
_NOT_SAID = re.compile(
    r"revised_prompt|prompt|input|instructions|tools|metadata|user|model|reasoning(_content|_details)?"
)


def found_in(value: Any) -> ImageReply | None:
    """Returns the image in ``value``: a URL, base64, or an object in one of the formats of servers."""
    if isinstance(value, str):
        return _in_text(value) or (ImageReply(url=value.strip()) if value.strip() else None)
    if not isinstance(value, dict):
        return None
    if value.get("b64_json"):
        return ImageReply(encoded=value["b64_json"])
    for holder in (value.get("inline_data"), value.get("inlineData"), value.get("source")):
        if isinstance(holder, dict) and holder.get("data"):
            named = (holder.get(name) for name in ("mime_type", "mimeType", "media_type"))
            is_image = str(next(filter(None, named), "image/")).lower().startswith("image/")
            return ImageReply(encoded=holder["data"]) if is_image else None
    for name in ("image_url", "imageUrl", "url"):
        if found := found_in(value.get(name)):
            return found
    image, source = value.get("image"), value.get("source")
    if isinstance(image, str):
        return _in_text(image)  # no relative URL here: the text may be a state such as "pending"
    return found_in(image) or (found_in(source) if isinstance(source, dict) else None)


def _in_text(text: str) -> ImageReply | None:
    """Returns the image if ``text`` is a data URL, base64, or a URL with a scheme; else None."""
    text = text.strip()
    if _DATA_URL.match(text) or _BARE_BASE64.match(text):
        return ImageReply(encoded=text)
    return ImageReply(url=text) if _HTTP.match(text) else None


# Fields in which gateways return an image. None is a field of the request, which some gateways repeat.
_HOLDERS = ("data", "images", "output", "result", "response", "image", "image_urls", "image_base64", "base64")
_DEEPEST = 4
_MOST_ENTRIES = 10  # entries of a list that are searched: one image was requested


def found_below(value: Any, depth: int = _DEEPEST) -> ImageReply | None:
    """Returns the first image in ``value``, or in its fields ``_HOLDERS`` up to ``depth`` levels down."""
    if isinstance(value, str):
        return _in_text(value)
    if isinstance(value, list):
        return next(filter(None, (found_below(each, depth) for each in value[:_MOST_ENTRIES])), None)
    if not isinstance(value, dict) or depth < 0:
        return None
    inner = (found_below(value.get(name), depth - 1) for name in _HOLDERS)
    return found_in(value) or next(filter(None, inner), None)


def decoded(encoded: Any) -> EncodedImage | Failure:
    """Returns the complete image in base64 or a data URL. Takes CPU time."""
    import pybase64  # the standard library's base64 holds the interpreter lock for 5 ms per image

    try:
        head = _DATA_URL.match(encoded)
        payload = encoded[head.end() :] if head else encoded
        if "-" in payload or "_" in payload:
            # URL-safe base64, as pydantic writes it; b64decode would silently skip these characters
            payload = payload.translate(_URL_SAFE)
        try:
            data = pybase64.b64decode(payload, validate=True)  # five times as fast as without validate
        except binascii.Error:  # the text may contain line ends
            data = pybase64.b64decode(payload)
    except (binascii.Error, TypeError, ValueError):
        return Failure(Kind.TRANSIENT, "the image is not base64")
    return _proven(data)


def _proven(data: bytes) -> EncodedImage | Failure:
    try:
        return images.facts(data, images.REPLY_FORMATS)
    except TooLarge as error:
        return Failure(Kind.ITEM, f"the image ({len(data)} bytes) is not decoded: {error}", maybe_billed=True)
    except CorruptImage as error:
        text = f"the image ({len(data)} bytes) does not decode: {error}"
        return Failure(Kind.TRANSIENT, one_line(text, LONGEST_MESSAGE))


def refusal_in_words(reply: Any) -> Failure | None:
    """Returns the refusal in any string of ``reply``: servers put a refusal with status 200 anywhere."""
    left = _MOST_WORDS
    for said in map(beginning, _strings(reply)):
        if _refuses_in_words(said):
            return Failure(Kind.REFUSAL, one_line(said, LONGEST_MESSAGE))
        left -= max(len(said), _LEAST_WORDS)
        if left < 0:
            break
    return None


def no_image(reply: Mapping[str, Any], words: str = "", because: str = "") -> Failure:
    """Returns the Failure for a ``reply`` without image, error or refusal; quotes the reply's ``words``."""
    text = "the reply (HTTP 200) holds no image"
    text += f" ({because})" if because else ""
    text += f": {words}" if words else ""
    keys = ", ".join(itertools.islice(_keys(reply), _MOST_KEYS))
    unlike = one_line(f"its keys: {keys or 'none'}", LONGEST_MESSAGE)
    return Failure(Kind.TRANSIENT, one_line(text, LONGEST_MESSAGE), unlike=unlike)


_MOST_KEYS = 20


def _keys(value: Any, path: str = "") -> Iterator[str]:
    """Yields the path of each value in ``value``; of a list only the first entry."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            name = beginning(key, _LONGEST_NAME)
            yield from _keys(item, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        yield from _keys(value[0], f"{path}[0]")
    elif path:
        yield path


def _refuses_in_words(said: str) -> bool:
    error = in_words(said)
    if refuses(200, error._replace(codes=() if " " in said else (said,))):
        return True
    start = said[:_SPEECH_BEGINS_WITHIN]
    if error.page or _PASSES.search(said) or _NOT_CAPABLE.search(start):
        return False
    return bool(_REFUSAL_SPEECH.search(start))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value:
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if not _NOT_SAID.fullmatch(key):
                yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
