"""Reads a report as a browser does: its parts, from the files of the site or out of report.html."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from imageevalkit.report.__main__ import main
from imageevalkit.store.cell import output_root

_INSIDE = re.compile(r'<script type="application/json" data-part="([^"]*)">(.*?)</script>', re.S)


class Site:
    """The report at ``page``: index.html with its folder, or report.html."""

    def __init__(self, page: Path) -> None:
        self.page = page
        self.inside = {name: json.loads(text) for name, text in _INSIDE.findall(page.read_text())}
        self.index: dict[str, Any] = self.inside["index"]

    def part(self, name: str) -> Any:
        if name in self.inside:
            return self.inside[name]
        text = (self.page.parent / f"data/{name}.js").read_text()
        found = re.fullmatch(r"reportPart\((\".*?\"),(.*)\)\n", text, re.S)
        assert found and json.loads(found[1]) == name
        return json.loads(found[2])

    def cell(self, model: str, benchmark: str) -> dict[str, Any]:
        """The latest result of a cell, or the cell without one."""
        cells: Sequence[dict[str, Any]] = self.index["cells"]
        return next(one for one in cells if (one["model"], one["benchmark"]) == (model, benchmark))

    def items(self, model: str, benchmark: str) -> dict[str, dict[str, Any]]:
        """All that is known of each item, by id."""
        folder = self.cell(model, benchmark)["folder"]
        items = self.part(f"cells/{folder}/items")
        found = {}
        for n, item in enumerate(items["items"]):
            more = self.part(f"cells/{folder}/more-{n // items['size']}")["items"][n % items["size"]]
            values = dict(zip(items["metrics"], item.get("values", []), strict=False))
            found[item["id"]] = {**item, **more, "values": values}
        return found

    def prompts(self, benchmark: str) -> Any:
        n = [one["name"] for one in self.index["benchmarks"]].index(benchmark)
        return self.part(f"prompts/{n}")

    def picture(self, path: str) -> bytes:
        return (self.page.parent / path).read_bytes()


def reported() -> Site:
    """The site of all results there are now."""
    main([])
    return Site(output_root() / "report/index.html")
