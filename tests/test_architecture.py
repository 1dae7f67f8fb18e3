"""The map of the tree is true: the files that documents name are there, and imports go the way that is drawn."""

from __future__ import annotations

import re
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

from imageevalkit.cell import REPO
from tests.support.imports import parts

MAP = REPO / "docs/architecture.md"
OUTSIDE = ("benchmarks", "eval_models", "infer")


def drawn() -> dict[str, set[str]]:
    """The arrows of the diagram: who imports whom."""
    [diagram] = re.findall(r"```mermaid\n(.*?)```", MAP.read_text(encoding="utf-8"), re.DOTALL)
    arrows: dict[str, set[str]] = {}
    for line in diagram.splitlines():
        chain = line.split(" --> ")
        for importer, imported in pairwise(chain):
            arrows.setdefault(importer.strip(), set()).add(imported.strip())
    return arrows


def below(part: str, arrows: dict[str, set[str]]) -> set[str]:
    """All that arrows lead to from ``part``."""
    return {lower for near in arrows.get(part, ()) for lower in ({near} | below(near, arrows))}


def test_no_part_imports_itself_through_others() -> None:
    inside = {part: imported for part, imported in parts().items() if part not in OUTSIDE}
    assert len(inside) > 20
    assert list(TopologicalSorter(inside).static_order())


def test_the_library_imports_no_benchmark_model_or_dataset() -> None:
    found = parts()
    assert not [part for part in found if part not in OUTSIDE and not found[part].isdisjoint(OUTSIDE)]
    assert found["eval_models"].isdisjoint(OUTSIDE)
    assert "infer" not in found["benchmarks"]


def test_imports_go_the_way_that_is_drawn() -> None:
    arrows, found = drawn(), parts()
    assert [
        f"{importer} --> {imported}"
        for importer, named in arrows.items()
        for imported in named - found[importer]
    ] == []
    inside = {part for part in arrows if part not in OUTSIDE}
    against = [
        f"{part} --> {imported}"
        for part in inside
        for imported in (found[part] & inside) - below(part, arrows)
    ]
    assert against == []


@pytest.mark.parametrize("document", ["README.md", "README_zh.md", "docs/architecture.md"])
def test_documents_name_files_that_there_are(document: str) -> None:
    text = (REPO / document).read_text(encoding="utf-8")
    folders = "imageevalkit|benchmarks|eval_models|infer|utils|docs|perf"
    named = set(re.findall(rf"(?<![\w/.])((?:{folders})/[\w/]*\w\.(?:py|sh|md))\b", text))
    there = {path for path in named if not Path(path).name.startswith("my_") and "/my_" not in path}
    assert there
    assert [path for path in sorted(there) if not (REPO / path).is_file()] == []
