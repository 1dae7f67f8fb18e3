"""The endpoint of a model and the key for it, and keeping that key out of every text."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from imageevalkit.errors import UserError
from imageevalkit.secrets import SHORTEST

DEFAULT_BASE_URL = "https://api.openai.com/v1"
_KEY_VARIABLE = "API_KEY"
_REDACTED = "***"
# Providers quote a rejected key with only its middle masked ("sk-proj-ab***xy"): those ends are secret too.
_KEY_LIKE = re.compile(r"\bsk-[\w*.\-]{6,}|\bbearer\s+[\w*.\-]{16,}", re.IGNORECASE)


def _is_http_url(text: str) -> bool:
    if re.search(r"\s", text):  # urlsplit drops some of them
        return False
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # a port that is no number, a bracket that is not closed
        return False


@dataclass(frozen=True)
class Endpoint:
    """Where requests go and the key they carry; no repr shows it and ``redact`` takes it out of any text."""

    base_url: str
    key: str = field(repr=False)
    key_variable: str = field(default=_KEY_VARIABLE, compare=False)

    @classmethod
    def of(cls, model_kwargs: Mapping[str, Any]) -> Endpoint:
        """The endpoint of a model: ``BASE_URL`` (empty: OpenAI's own) and ``API_KEY`` of the environment.

        ``base_url`` and ``api_key_env`` (the name of another variable) among ``model_kwargs`` replace them.

        Raises:
            UserError: a missing or malformed value.
        """
        variable = str(model_kwargs.get("api_key_env") or _KEY_VARIABLE)
        if not re.fullmatch(r"([A-Za-z_]\w*_)?API_KEY", variable):
            raise UserError(
                "api_key_env must be the name of a variable that ends in API_KEY, not a key "
                "(such a variable is exported from config.local.sh and kept out of logs)"
            )
        key = os.environ.get(variable, "").strip()
        if not key:
            raise UserError(
                f"{variable} is not set: set it in config.local.sh or the environment "
                f"({variable}=EMPTY for a server that asks for no key)"
            )
        if not re.fullmatch(r"[!-~]+", key):
            raise UserError(
                f"{variable} holds a blank or a character that no key has: correct it in config.local.sh"
            )
        base_url = str(model_kwargs.get("base_url") or "").strip()
        name, where = ("base_url", "its kwargs") if base_url else ("BASE_URL", "config.sh")
        base_url = base_url or os.environ.get("BASE_URL", "").strip() or DEFAULT_BASE_URL
        if not _is_http_url(base_url):
            raise UserError(f"{name} must look like https://host/v1: correct it in {where}")
        return cls(base_url.rstrip("/"), key, variable)

    @classmethod
    def without_key(cls, base_url: str, where: str) -> Endpoint:
        """The endpoint of a server that asks for no key; ``where`` says where ``base_url`` is from.

        Raises:
            UserError: a malformed ``base_url``.
        """
        if not _is_http_url(base_url):
            raise UserError(f"{where} must hold a URL like http://host:8000/v1")
        return cls(base_url.rstrip("/"), "EMPTY", "the variable that api_key_env names")

    @property
    def secrets(self) -> list[str]:
        """The variable of the environment that holds its key; none where no key is asked for."""
        return [self.key_variable] if self.key_variable in os.environ else []

    @property
    def host(self) -> str:
        """Host and port for messages, without the user name and password that a URL may carry."""
        return urlsplit(self.base_url).netloc.rpartition("@")[2]

    @property
    def turn(self) -> str:
        """Names the endpoint and key for ``Job.turns``: two jobs would each start at the ceiling set for it."""
        return f"{self.host} {self.key_variable}"

    def redact(self, text: str) -> str:
        """``text`` without the key and without anything that looks like one."""
        return _KEY_LIKE.sub(_REDACTED, self.without_own_key(text))

    def without_own_key(self, text: str) -> str:
        """``text`` without the very key: for words that are data, where others may look like one."""
        return text.replace(self.key, _REDACTED) if len(self.key) >= SHORTEST else text

    def redact_all(self, value: Any) -> Any:
        """``redact`` on every string of a JSON value."""
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, dict):
            return {self.redact(str(key)): self.redact_all(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.redact_all(item) for item in value]
        return value
