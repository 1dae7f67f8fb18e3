"""The URL and key of an endpoint."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from imageevalkit.common.errors import UserError
from imageevalkit.common.network import check_network
from imageevalkit.common.redaction import SHORTEST

DEFAULT_BASE_URL = "https://api.openai.com/v1"
_KEY_VARIABLE = "API_KEY"
# the names that the official client uses
_AZURE_KEY, _AZURE_ENDPOINT, _AZURE_VERSION = (
    "AZURE_OPENAI_API_KEY",
    "AZURE_OPENAI_ENDPOINT",
    "OPENAI_API_VERSION",
)
# The official client reads these. ImageEvalKit names them in an error if no variable of its own is set.
_OFFICIAL_KEY, _OFFICIAL_URL = "OPENAI_API_KEY", "OPENAI_BASE_URL"
_OFFICIAL_VARIABLES = ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_CUSTOM_HEADERS")
_REDACTED = "***"
# Providers quote a rejected key with only its middle masked ("sk-proj-ab***xy"). Its ends are secret, too.
_KEY_LIKE = re.compile(r"\bsk-[\w*.\-]{6,}|\bbearer\s+[\w*.\-]{16,}", re.IGNORECASE)


def _is_http_url(text: str) -> bool:
    if re.search(r"\s", text):  # urlsplit removes some blanks silently
        return False
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # the port is no number, or a bracket is not closed
        return False


class Azure(NamedTuple):
    """A ``deployment`` of Azure OpenAI, and the version of its API."""

    deployment: str
    api_version: str


class Place(NamedTuple):
    """A URL for requests, and the setting that gave it (empty: the default). ``azure``: for Azure OpenAI."""

    url: str
    name: str = ""
    azure: bool = False


def place_of(kwargs: Mapping[str, Any]) -> Place:
    """Returns the URL for a model with these ``kwargs``: its own, else the environment's, else OpenAI's."""
    for name in ("base_url", "azure_endpoint"):
        if given := str(kwargs.get(name) or "").strip():
            return Place(given, name, name == "azure_endpoint")
    if base_url := os.environ.get("BASE_URL", "").strip():
        return Place(base_url, "BASE_URL")
    if _key_variable(kwargs) == _AZURE_KEY and (url := os.environ.get(_AZURE_ENDPOINT, "").strip()):
        return Place(url, _AZURE_ENDPOINT, azure=True)
    return Place(DEFAULT_BASE_URL)


def _key_variable(kwargs: Mapping[str, Any]) -> str:
    """Returns the name of the variable that holds the key.

    Azure's variable counts only for an Azure endpoint or without ``API_KEY``: else a key may reach a wrong
    provider.
    """
    if given := kwargs.get("api_key_env"):
        return str(given)
    is_azure = bool(kwargs.get("azure_endpoint")) or not os.environ.get(_KEY_VARIABLE, "").strip()
    return _AZURE_KEY if is_azure and os.environ.get(_AZURE_KEY, "").strip() else _KEY_VARIABLE


@dataclass(frozen=True)
class Endpoint:
    """The URL and the key of an endpoint. No repr shows the key; ``redact`` removes the key from a text."""

    base_url: str
    key: str = field(repr=False)
    key_variable: str = field(default=_KEY_VARIABLE, compare=False)
    azure: Azure | None = None
    elsewhere: bool = field(default=False, compare=False)
    """True if the model's kwarg ``base_url`` gives the URL, and not the environment."""

    @classmethod
    def of(cls, model_kwargs: Mapping[str, Any], model_id: str = "", needs_key: bool = True) -> Endpoint:
        """Returns the endpoint at ``BASE_URL`` (empty: OpenAI's own) with the key in ``API_KEY``.

        In ``model_kwargs``, ``base_url`` and ``api_key_env`` (the name of another variable) replace them.
        ``azure_endpoint`` replaces the URL, too; its deployment is ``azure_deployment``, else ``model_id``.
        If ``needs_key`` is False, the key may be missing: a dry run sends nothing.

        Raises UserError: the key is missing, a variable is malformed, or certificates or the proxy cannot be
        used.
        """
        variable = _key_variable(model_kwargs)
        if not re.fullmatch(r"([A-Za-z_]\w*_)?API_KEY", variable):
            raise UserError(
                "api_key_env must be the name of a variable that ends in API_KEY, not a key "
                "(such a variable is exported from config.local.sh and kept out of logs)"
            )
        key = os.environ.get(variable, "").strip()
        if not key and needs_key and variable == _KEY_VARIABLE and os.environ.get(_OFFICIAL_KEY, "").strip():
            raise UserError(
                f"{variable} is not set: {_OFFICIAL_KEY} is, but ImageEvalKit does not read it; write "
                f'{variable}="${_OFFICIAL_KEY}" into config.local.sh'
            )
        if not key and needs_key:
            raise UserError(
                f"{variable} is not set: set it in config.local.sh or the environment "
                f"({variable}=EMPTY for a server that asks for no key)"
            )
        if key and not re.fullmatch(r"[!-~]+", key):
            raise UserError(
                f"{variable} holds a blank or a character that no key has: correct it in config.local.sh"
            )
        place = place_of(model_kwargs)
        meant = os.environ.get(_OFFICIAL_URL, "").strip().rstrip("/")
        if not place.name and meant not in ("", DEFAULT_BASE_URL):
            raise UserError(  # else OpenAI would receive the key of another endpoint
                f"BASE_URL is not set: {_OFFICIAL_URL} is, but ImageEvalKit does not read it; write "
                f'BASE_URL="${_OFFICIAL_URL}" into config.local.sh, or BASE_URL={DEFAULT_BASE_URL} for OpenAI'
            )
        if not _is_http_url(place.url):
            where = "its kwargs" if place.name.islower() else "config.sh"
            looks = "https://name.openai.azure.com" if place.azure else "https://host/v1"
            raise UserError(f"{place.name} must look like {looks}: correct it in {where}")
        azure = None
        if place.azure:
            version = str(model_kwargs.get("api_version") or os.environ.get(_AZURE_VERSION, "")).strip()
            if not version:
                raise UserError(
                    "Azure OpenAI asks for the version of its API: give api_version (2025-04-01-preview, say), or "
                    f"set {_AZURE_VERSION}"
                )
            azure = Azure(str(model_kwargs.get("azure_deployment") or model_id), version)
        check_network(place.url)
        elsewhere = place.name == "base_url"
        return cls(place.url.rstrip("/"), key, variable, azure, elsewhere)

    @classmethod
    def without_key(cls, base_url: str, where: str) -> Endpoint:
        """Returns the endpoint of a server that asks for no key.

        Raises UserError: ``where`` holds a malformed ``base_url``, or certificates or the proxy cannot be used.
        """
        if not _is_http_url(base_url):
            raise UserError(f"{where} must hold a URL like http://host:8000/v1")
        check_network(base_url)
        return cls(base_url.rstrip("/"), "EMPTY", "the variable that api_key_env names")

    @property
    def official_words(self) -> tuple[str | None, ...]:
        """The organisation, project and headers of the environment, None if not set.

        They belong to the account of the default key, so all are None with another key or URL.
        """
        is_default = self.key_variable in (_KEY_VARIABLE, _AZURE_KEY) and not self.elsewhere
        return tuple(os.environ.get(name) if is_default else None for name in _OFFICIAL_VARIABLES)

    @property
    def secrets(self) -> list[str]:
        """The names of the set environment variables that hold the endpoint's key and secret headers."""
        names = [self.key_variable, *(_OFFICIAL_VARIABLES[-1:] if self.official_words[-1] else ())]
        return [name for name in names if name in os.environ]

    @property
    def host(self) -> str:
        """Host and port for messages, without the user name and password that a URL may contain."""
        return urlsplit(self.base_url).netloc.rpartition("@")[2]

    @property
    def account(self) -> str:
        """A hash of URL, key, organisation and project. Processes share limits by this account."""
        words = (self.base_url, self.key, *(word or "" for word in self.official_words[:2]))
        return hashlib.sha256("\n".join(words).encode()).hexdigest()

    def redact(self, text: str) -> str:
        """Returns ``text`` without the key and without anything that looks like a key."""
        return _KEY_LIKE.sub(_REDACTED, self.without_own_key(text))

    def without_own_key(self, text: str) -> str:
        """Returns ``text`` without the key. Unlike ``redact``, it keeps data that only looks like a key."""
        return text.replace(self.key, _REDACTED) if len(self.key) >= SHORTEST else text

    def redact_all(self, value: Any) -> Any:
        """Returns a JSON value with ``redact`` applied to each of its strings."""
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, dict):
            return {self.redact(str(key)): self.redact_all(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.redact_all(item) for item in value]
        return value
