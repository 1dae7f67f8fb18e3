"""The user's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from imageevalkit.plan import config


@pytest.mark.parametrize(
    ("mode", "text", "told"),
    [
        (0o644, "API_KEY=sk-something\n", True),
        (0o600, "API_KEY=sk-something\n", False),
        (0o644, "API_KEY=EMPTY\nNUM_WORKERS=2\nBASE_URL=http://gpu1:8000/v1\n", False),
        (0o644, "# API_KEY=sk-something\n", False),
    ],
)
def test_a_key_that_others_may_read_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: int, text: str, told: bool
) -> None:
    local = tmp_path / "config.local.sh"
    local.write_bytes(text.encode(errors="surrogateescape"))
    local.chmod(mode)
    config._tell_of_readable_secret(local)
    note = f"note: {local} holds a key, and other users may read it: chmod 600 {local}\n"
    assert capsys.readouterr().err == (note if told else "")
