"""The sections that extras add to the report. See :mod:`imageevalkit.extension_points`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from imageevalkit.extension_points import connected
from imageevalkit.report import parts
from imageevalkit.report.collect import CellReport
from imageevalkit.store.jsonl import Tell


class Section:
    """A section of one report.

    Args:
        asked: The user's options for the section, by name, for the cells of the run.
        keys: The keys of the cells of the run. Empty: there is no run.
    """

    def __init__(self, asked: Mapping[str, Any], keys: Sequence[str]) -> None:
        self.asked, self.keys = asked, keys
        self.refused = list[str]()
        """A line for each thing that the user asked for and that cannot be computed."""

    def update(self, cells: Sequence[CellReport], tell: Tell) -> None:
        """Compute the section of ``cells`` and write its files. ``tell`` gets a line for each problem.

        Raises:
            OSError, CellFailure: A file cannot be written.
        """
        self.read(cells, tell)

    def read(self, cells: Sequence[CellReport], tell: Tell) -> None:
        """Read the section of ``cells`` from files, and write none."""

    def compare_folders(self, folders: Sequence[Path]) -> None:
        """Prepare the section for a report of several ``folders``, whose paths are absolute."""

    def pictures(self, cells: Sequence[CellReport]) -> dict[str, bytes]:
        """Return the pictures of the section by their path in the site. Raises OSError."""
        return {}

    def fill(self, index: parts.Index, cells: Sequence[CellReport], place: Path) -> parts.Index:
        """Return ``index`` with the section.

        ``cells`` are the cells of ``index.cells``, in the same order. ``place`` is the folder of the report.
        """
        return index


def sections_of(
    asked: Mapping[str, Mapping[str, Any]] | None = None, keys: Sequence[str] = ()
) -> list[Section]:
    """Return the sections of all extras for one report. ``asked`` has the options of a run by extra."""
    return [cls((asked or {}).get(name, {}), keys) for name, cls in connected("section").items()]
