"""Probabilities of wanted strings from the most probable first tokens that a chat endpoint lists."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from imageevalkit.api.json_reply import list_of

_ROUNDING = 1e-4  # of a sum of probabilities that are sent as logarithms


class FirstToken(NamedTuple):
    """The probability (0-1) of each ``listed`` first token by its bytes, and the one that was ``sampled``.

    ``top`` is how many likeliest ones the endpoint listed; the sampled one may be another.
    """

    sampled: bytes
    listed: Mapping[bytes, float]
    top: int

    def is_enough(self, asked: int) -> bool:
        """Whether a token that is not listed is surely less probable than ``asked`` others."""
        return self.top >= asked or self.outside <= _ROUNDING

    @property
    def outside(self) -> float:
        """The probability of all tokens that are not listed."""
        return max(0.0, 1.0 - math.fsum(self.listed.values()))

    def probabilities(self, wanted: Sequence[str]) -> dict[str, float]:
        """P(the first token of each string); 0 where it is not listed, so up to ``outside`` too low."""
        return {string: self._probability(string) for string in wanted}

    def _probability(self, string: str) -> float:
        return next((self.listed[t] for t in _first_tokens(string) if t in self.listed), 0.0)


def first_token(choice: Mapping[str, Any]) -> FirstToken | None:
    """Read ``logprobs`` of a chat completion's choice; None when it holds none.

    Source: https://platform.openai.com/docs/api-reference/chat/object (vLLM and SGLang answer in the same shape).
    """
    logprobs = choice.get("logprobs")
    tokens = list_of(logprobs.get("content")) if isinstance(logprobs, dict) else []
    if not tokens or not isinstance(tokens[0], dict):
        return None
    entries = [entry for entry in list_of(tokens[0].get("top_logprobs")) if isinstance(entry, dict)]
    listed, top = dict[bytes, float](), 0
    # the sampled token is listed twice, or once where it is not among the most probable ones
    for entry in [*entries, tokens[0]]:
        if (probability := _probability(entry.get("logprob"))) is not None:
            listed.setdefault(_bytes(entry), probability)
            top += entry is not tokens[0]
    return FirstToken(_bytes(tokens[0]), listed, top) if listed else None


def _probability(logprob: Any) -> float | None:
    if isinstance(logprob, bool) or not isinstance(logprob, (int, float)) or math.isnan(logprob):
        return None
    if logprob < -1e6:
        return 0.0  # an integer of hundreds of digits is no float
    return math.exp(min(logprob, 0.0))  # 0 is sometimes passed by a rounding error


def _bytes(entry: Mapping[str, Any]) -> bytes:
    """The bytes of a token; its text is a guess where the token ends within a character."""
    text, raw = entry.get("token"), entry.get("bytes")
    text = text if isinstance(text, str) else ""
    if ("\N{REPLACEMENT CHARACTER}" in text or not text) and isinstance(raw, list):
        try:
            return bytes(raw)
        except (TypeError, ValueError):
            pass
    return text.encode(errors="surrogatepass")


def _first_tokens(string: str) -> Iterator[bytes]:
    """What the first token of ``string`` may be, the longest first; there is no tokenizer to ask.

    Words that benchmarks want are one token. Digits are not: Qwen's tokenizers split them off one by one, so that
    of " 7" the first token is the bare space, and of "10" the "1".
    """
    yield string.encode()
    if len(string) > 1 and string.removeprefix(" ").isdecimal():
        yield string[0].encode()
