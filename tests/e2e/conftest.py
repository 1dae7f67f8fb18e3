"""A checkout whose text reader finds nothing, and runs in it against a server of images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api_runs import ApiRuns
from tests.support.checkout import find_no_text, make_checkout
from tests.support.image_server import ImageServer


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return find_no_text(make_checkout(tmp_path / "checkout"))


@pytest.fixture
def api(checkout: Path) -> Iterator[ApiRuns]:
    with ImageServer() as server:
        yield ApiRuns(checkout, server)
