"""Links to comparisons as a section of the report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from msgspec.structs import replace

from imageevalkit.common.errors import UserError, show
from imageevalkit.report import parts
from imageevalkit.report.collect import CellReport
from imageevalkit.report.pages import COMPARISON_PAGE
from imageevalkit.report.sections import Section
from imageevalkit.store.cell import COMPARISONS


class ComparisonsSection(Section):
    """Links to all pages that ``--compare`` wrote."""

    def compare_folders(self, folders: Sequence[Path]) -> None:
        if len(folders) != 2:
            return
        # imported here, because it takes long and most reports compare nothing
        from imageevalkit.extras.compare.telling import compare_words

        try:
            compare_words([str(folder) for folder in folders], Path.cwd())
        except UserError as error:
            show(f"note: {error}")

    def fill(self, index: parts.Index, cells: Sequence[CellReport], place: Path) -> parts.Index:
        pages = [*place.glob(COMPARISON_PAGE), *sorted((place / COMPARISONS).glob(f"*/{COMPARISON_PAGE}"))]
        paths = [(page.parent.name, page.relative_to(place).as_posix()) for page in pages]
        links = [parts.Link(name, f"../{quote(os.fsencode(path))}") for name, path in paths]
        return replace(index, comparisons=links)
