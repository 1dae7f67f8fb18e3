"""Finds and decodes the image in a reply, with bounds on size and work."""

from __future__ import annotations

import binascii
import itertools
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from imageevalkit.api.failures import LONGEST_MESSAGE, Failure, Kind, in_words, refuses
from imageevalkit.common import images
from imageevalkit.common.images import CorruptImage, EncodedImage, TooLarge
from imageevalkit.common.redaction import beginning, one_line

_LONGEST_KEY = 200  # characters


def strings_of(holder: Mapping[str, Any], *names: str) -> dict[str, str]:
    """Returns the fields ``names`` that are strings, shortened: they are stored with the image."""
    return {name: beginning(holder[name]) for name in names if isinstance(holder.get(name) or None, str)}


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
    return checked(data)


def checked(data: bytes) -> EncodedImage | Failure:
    """Returns the complete image in ``data``, or a Failure: it does not decode. Takes CPU time."""
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
            name = beginning(key, _LONGEST_KEY)
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
