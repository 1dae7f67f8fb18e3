"""A JSON Lines file keeps every whole record, whatever a full disk or a killed process left between them."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from imageevalkit.common.errors import CellFailure
from imageevalkit.store.jsonl import JsonlWriter


def test_a_line_that_a_full_disk_cut_does_not_swallow_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, room = os.write, [10**6]

    def limited(fd: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(fd, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", limited)
    writer = JsonlWriter(tmp_path / "records.jsonl")
    writer.append({"item": "first"})
    room[0] = 5
    with pytest.raises(CellFailure, match="disk full"):
        writer.append({"item": "cut"})
    room[0] = 10**6  # another process has made room
    writer.append({"item": "last"})
    writer.close()
    first, cut, last = (tmp_path / "records.jsonl").read_bytes().splitlines()
    assert [json.loads(line) for line in (first, last)] == [{"item": "first"}, {"item": "last"}]
    assert cut == b'{"ite'
