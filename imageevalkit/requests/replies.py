"""From the bytes of a reply to the image in it, within bounds."""

from __future__ import annotations

import asyncio
import binascii
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from imageevalkit import images
from imageevalkit.images import CorruptImage, EncodedImage, TooLarge
from imageevalkit.machine import on_cpu
from imageevalkit.requests.client import in_time, read_body
from imageevalkit.requests.endpoint import NotAllowed
from imageevalkit.requests.engine import Engine
from imageevalkit.requests.failures import (
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
from imageevalkit.requests.streams import joined
from imageevalkit.secrets import beginning, one_line

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

_MOST_TOKENS = 10**12  # more are no count, and no float either where they have hundreds of digits
# of the counts that a reply tells: a record of its image holds them all
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
    """What the first ``error`` among ``holders`` means, else the first ``refusal``; None when there is none."""
    for holder in holders:
        if holder.get("error"):
            return classify_error_in_200(error_of(holder))
    for holder in holders:
        words = holder.get("refusal")
        if isinstance(words, str) and words.strip():
            return Failure(Kind.REFUSAL, one_line(words, LONGEST_MESSAGE))
    return None


def tokens_of(usage: Any, prefix: str = "") -> dict[str, int]:
    """The whole numbers of ``usage`` that can be counts, nested ones with a dotted name."""
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
    """``value`` where it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def objects_in(value: Any) -> list[dict[str, Any]]:
    """The objects in the list ``value``, if it is one."""
    return [each for each in list_of(value) if isinstance(each, dict)]


def strings_of(holder: Mapping[str, Any], *names: str) -> dict[str, str]:
    """Those of the fields ``names`` that are strings, or their beginnings: they are for the record."""
    return {name: beginning(holder[name]) for name in names if isinstance(holder.get(name) or None, str)}


def finish_reasons(reply: Mapping[str, Any], choice: Mapping[str, Any]) -> tuple[str, str]:
    """Why a chat model stopped, in the words of the endpoint and of the provider behind it; empty where not told."""
    native = choice.get("native_finish_reason") or reply.get("native_finish_reason") or ""
    reasons = str(choice.get("finish_reason") or ""), str(native)
    return one_line(reasons[0], LONGEST_MESSAGE), one_line(reasons[1], LONGEST_MESSAGE)


def stopped_by_policy(reply: Mapping[str, Any], choice: Mapping[str, Any], words: str) -> Failure | None:
    """The refusal of a ``choice`` that a filter ended, in its own ``words`` if there are any."""
    finish, native = finish_reasons(reply, choice)
    # gateways fold all of Gemini's reasons (NO_IMAGE, IMAGE_OTHER) into content_filter: its own one decides
    reason = native or finish
    return Failure(Kind.REFUSAL, words or f"finish reason {reason}") if _POLICY.search(reason) else None


# The image exists and may have been billed: asking for it again is cheaper than asking for a new one.
_TRIES = 3
_MAY_PASS = frozenset({408, 425, 429})
_MOST_REDIRECTS = 20


async def download_image(engine: Engine, link: str) -> EncodedImage | Failure:
    """The whole image at ``link``, as a reply of the endpoint has it.

    A failure is a LOST, or an ITEM where a new image would be no better; TRANSIENT: it is no link. Redirects are
    followed, to allowed places only; the key is dropped where one leaves the origin.
    """
    import httpx2

    base, timeout = httpx2.URL(engine.endpoint.base_url), engine.settings.timeout
    try:
        url = base.join(link)
    except httpx2.InvalidURL:
        return Failure(Kind.TRANSIENT, "the reply holds an image URL that is no URL")
    if url.scheme not in ("http", "https"):
        return Failure(Kind.TRANSIENT, f"the reply holds an image URL of scheme '{url.scheme}'")
    # some gateways guard the files they serve themselves; nobody else may see the key
    same_origin = (url.scheme, url.host, url.port) == (base.scheme, base.host, base.port)
    headers = {"Authorization": f"Bearer {engine.endpoint.key}"} if same_origin else {}

    async def fetch() -> EncodedImage | Failure:
        files = engine.clients.files
        request = files.build_request("GET", url, headers=headers)
        try:
            for _ in range(_MOST_REDIRECTS):  # by hand: the client would read the body of each, however long
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
            # the host only: the query of a signed URL is a secret
            return Failure(Kind.LOST, f"the image from {url.host} could not be had: {result.text}")
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
    """An image in a reply: in base64 (perhaps a data URL) until it is ``image``, or the ``url`` it can be had from.

    ``tokens`` are the counts of ``usage``, ``extra`` what the server says it did, ``reported_cost`` (USD) its account.
    """

    encoded: Any = None
    url: str | None = None
    extra: Mapping[str, Any] = MappingProxyType({})
    image: EncodedImage | None = None
    tokens: Mapping[str, int] = MappingProxyType({})
    reported_cost: float | None = None


LARGEST_IMAGE = 100 * 2**20
"""Bytes; 4096² pixels that do not compress take half of it."""
LARGEST_REPLY = 144 * 2**20
"""Bytes of a reply that holds an image: the largest one in base64, and some words."""
_DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
# PNG, JPEG and WebP in base64. A path could begin like a JPEG, but not go on so for long.
_BARE_BASE64 = re.compile(r"(?:iVBORw0KGgo|/9j/|UklGR)[A-Za-z0-9+/_\s-]{64}")
_HTTP = re.compile(r"https?://", re.IGNORECASE)
_URL_SAFE = str.maketrans("-_", "+/")
# A refusal is recorded and never sent again, so these patterns look only at the beginning of a text, and they name
# both the inability and the task. "We" is the operator of the gateway, who speaks about plans and rates.
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
# A model that makes no images at all, or that got none to edit, says so in similar words. That is no content policy.
_NOT_CAPABLE = re.compile(
    r"\btext[- ](based|only)\b|\bdirectly\b|\b(upload|attach)|\b(see|find|received?) (an|any|the|your) image|"
    r"\b(create|generate|produce|draw|edit) (images|pictures|photos|visuals)"
    r"(?=\s*($|[.,;:!]|\b(or|and|but|because|here|myself|with)\b))|"
    r"文本模型|文字模型|纯文本|純文本|直接|不具备|不具備|(没有|沒有|未)(看到|收到|生成|绘|繪|画|畫)|上传|上傳",
    re.IGNORECASE,
)
_MOST_WORDS = 10**6  # characters of a reply in which a refusal is looked for
_LEAST_WORDS = 200  # what a short string counts as: it is searched as often as a long one
_PASSES = re.compile(
    r"overload|\b(later|again|quota|capacity|busy|rates?)\b|rate_?limit|"
    r"稍后|稍後|重试|重試|再试|再試|繁忙|超时|超時|限流|频繁|頻繁|额度|額度|余额|餘額|配额|配額|错误|錯誤|异常|異常|故障|失败|失敗",
    re.IGNORECASE,
)
# the user's words, the request's settings, and what a model thinks on its way: none is the provider's answer
_NOT_SAID = re.compile(
    r"revised_prompt|prompt|input|instructions|tools|metadata|user|model|reasoning(_content|_details)?"
)


def found_in(value: Any) -> ImageReply | None:
    """The image in ``value``: a URL or base64, or an object that holds one in one of the ways servers do."""
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
        return _in_text(image)  # may be a state such as "pending", no relative URL
    return found_in(image) or (found_in(source) if isinstance(source, dict) else None)


def _in_text(text: str) -> ImageReply | None:
    """The image that ``text`` surely is: a data URL, base64, or a URL with its scheme."""
    text = text.strip()
    if _DATA_URL.match(text) or _BARE_BASE64.match(text):
        return ImageReply(encoded=text)
    return ImageReply(url=text) if _HTTP.match(text) else None


# Where gateways put the image of an image endpoint. None of these is a name of the request, which some repeat.
_HOLDERS = ("data", "images", "output", "result", "response", "image", "image_urls", "image_base64", "base64")
_DEEPEST = 4
_MOST_ENTRIES = 10  # of a list: one image was asked for


def found_below(value: Any, depth: int = _DEEPEST) -> ImageReply | None:
    """The first image in ``value`` or in what it holds under the names ``_HOLDERS``, ``depth`` levels down."""
    if isinstance(value, str):
        return _in_text(value)
    if isinstance(value, list):
        return next(filter(None, (found_below(each, depth) for each in value[:_MOST_ENTRIES])), None)
    if not isinstance(value, dict) or depth < 0:
        return None
    inner = (found_below(value.get(name), depth - 1) for name in _HOLDERS)
    return found_in(value) or next(filter(None, inner), None)


def decoded(encoded: Any) -> EncodedImage | Failure:
    """The whole image in base64, perhaps as a data URL. Takes CPU time."""
    import pybase64  # base64 of the standard library holds the interpreter lock for 5 ms an image

    try:
        head = _DATA_URL.match(encoded)
        payload = encoded[head.end() :] if head else encoded
        if "-" in payload or "_" in payload:
            # pydantic's base64 (a gateway in Python), whose letters b64decode would silently leave out
            payload = payload.translate(_URL_SAFE)
        try:
            data = pybase64.b64decode(payload, validate=True)  # in a fifth of the time
        except binascii.Error:  # perhaps it has line ends
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
    """The refusal among the strings of ``reply``: who answers 200 to one puts its words wherever it likes."""
    left = _MOST_WORDS
    for said in map(beginning, _strings(reply)):
        if _refuses_in_words(said):
            return Failure(Kind.REFUSAL, one_line(said, LONGEST_MESSAGE))
        left -= max(len(said), _LEAST_WORDS)
        if left < 0:
            break
    return None


def no_image(reply: Mapping[str, Any], words: str = "", because: str = "") -> Failure:
    """The failure of a ``reply`` without an image that is neither error nor refusal, quoting its ``words``."""
    text = "the reply (HTTP 200) holds no image"
    text += f" ({because})" if because else ""
    text += f": {words}" if words else ""
    keys = ", ".join(itertools.islice(_keys(reply), _MOST_KEYS))
    unlike = one_line(f"its keys: {keys or 'none'}", LONGEST_MESSAGE)
    return Failure(Kind.TRANSIENT, one_line(text, LONGEST_MESSAGE), unlike=unlike)


_MOST_KEYS = 20


def _keys(value: Any, path: str = "") -> Iterator[str]:
    """The path of each value in ``value``; of a list only the first entry is looked at."""
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
