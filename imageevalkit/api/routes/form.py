"""Multipart forms, with the field names that OpenAI's own client gives to lists and objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from imageevalkit.api.request import Request
from imageevalkit.api.uploads import Upload
from imageevalkit.text_output import to_bytes


def form(path: str, fields: Mapping[str, Any], files: Sequence[tuple[str, Upload]]) -> Request:
    """The request that posts ``fields`` and ``files`` (names may repeat) to ``path``."""
    import httpx2

    data: dict[str, list[bytes]] = {}
    for name, value in fields.items():
        for flat, text in _flat(name, value):
            data.setdefault(flat, []).append(text)
    request = httpx2.Request(
        "POST",
        "http://form",
        data=data,
        files=[(name, (file.name, file.data, file.mime_type)) for name, file in files],
    )
    return Request(path, request.read(), request.headers["content-type"])


def _flat(name: str, value: Any) -> Iterator[tuple[str, bytes]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}[{key}]", inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _flat(f"{name}[]", inner)
    elif isinstance(value, bool):
        yield name, str(value).lower().encode()
    elif value is not None:
        yield name, to_bytes(str(value))
