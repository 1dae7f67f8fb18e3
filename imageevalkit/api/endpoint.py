"""The endpoint of a run (``BASE_URL`` and ``API_KEY``), and keeping its key out of every text."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from imageevalkit.errors import UserError

# Explicit, because the openai client would otherwise take OPENAI_BASE_URL and send API_KEY there.
DEFAULT_BASE_URL = "https://api.openai.com/v1"
_REDACTED = "***"
# Providers quote a rejected key with only its middle masked ("sk-proj-ab***xy"): those ends are secret too.
_KEY_LIKE = re.compile(r"\bsk-[\w*.\-]{6,}|\bbearer\s+[\w*.\-]{16,}", re.IGNORECASE)


@dataclass(frozen=True)
class Endpoint:
    """Where requests go and the key they carry; no repr shows it and ``redact`` takes it out of any text."""

    base_url: str
    key: str = field(repr=False)

    @classmethod
    def from_environment(cls) -> Endpoint:
        """The endpoint that ``BASE_URL`` (empty: OpenAI's own) and ``API_KEY`` name.

        Raises:
            UserError: a missing or malformed value.
        """
        key = os.environ.get("API_KEY", "").strip()
        base_url = os.environ.get("BASE_URL", "").strip() or DEFAULT_BASE_URL
        if not key:
            raise UserError(
                "API_KEY is not set: set it in config.local.sh or the environment "
                "(API_KEY=EMPTY for a gateway that asks for no key)"
            )
        if not re.fullmatch(r"[!-~]+", key):
            raise UserError(
                "API_KEY holds a blank or a character that no key has: correct it in config.local.sh"
            )
        if not re.match(r"https?://[^/\s]+", base_url) or re.search(r"\s", base_url):
            raise UserError("BASE_URL must look like https://host/v1: correct it in config.sh")
        return cls(base_url, key)

    @property
    def host(self) -> str:
        """Host and port for messages, without the user name and password that a URL may carry."""
        return urlsplit(self.base_url).netloc.rpartition("@")[2]

    def redact(self, text: str) -> str:
        """``text`` without the key and without anything that looks like one."""
        return _KEY_LIKE.sub(_REDACTED, text.replace(self.key, _REDACTED))

    def redact_all(self, value: Any) -> Any:
        """``redact`` on every string of a JSON value."""
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, dict):
            return {self.redact(str(key)): self.redact_all(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.redact_all(item) for item in value]
        return value
