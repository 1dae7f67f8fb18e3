"""The documentation: links, the reference against the code, the length of sentences and pages."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest

from imageevalkit.api.failures import Kind
from imageevalkit.common.errors import ExitStatus
from imageevalkit.plan.options import TABLE
from imageevalkit.store.cell import REPO
from tests.support.documentation import blocks, is_chinese, name_of, pages, prose
from tests.support.extras import needs_extra
from utils.reference_pages import written

ENGLISH = [page for page in pages() if not is_chinese(page)]
PAIRS = [(page, page.with_suffix(".zh.md")) for page in ENGLISH if page.with_suffix(".zh.md").exists()]
PAIRS += [(REPO / "README.md", REPO / "README_zh.md")]
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
_BOTH = pytest.mark.parametrize("end", [".md", ".zh.md"])


def reference(name: str, end: str) -> str:
    """Returns the text of a page of the reference."""
    return (REPO / f"docs/reference/{name}{end}").read_text(encoding="utf-8")


def first_words(text: str) -> list[str]:
    """Returns the first word in code of each row of the tables in ``text``."""
    return re.findall(r"^\| `([^`\s]+)", text, re.MULTILINE)


# ---- links


def anchors(page: Path) -> set[str]:
    """Returns the anchors of the headings of ``page``, as GitHub and the site make them."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ +(.*)$", prose(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {slug if not n else f"{slug}-{n}" for slug, most in found.items() for n in range(most + 1)}


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_and_anchors_resolve(page: Path) -> None:
    wrong = []
    for link in _LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page))):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []


# ---- the reference

# the options of all of them are in the tables: a tree without extras has none of these
_ALL_EXTRAS = needs_extra("noise")


@_ALL_EXTRAS
def test_tables_of_the_reference_are_up_to_date() -> None:
    for page, text in written().items():
        assert page.read_text(encoding="utf-8") == text, "run .venv/bin/python -m utils.reference_pages"
        assert not re.findall(r"^\| `.* \|  \|$", text, re.MULTILINE), (
            f"{name_of(page)}: a row has no meaning"
        )


@_BOTH
@_ALL_EXTRAS
def test_every_option_is_in_the_reference_once(end: str) -> None:
    found = [
        word for word in first_words(reference("options", end).split("bash eval.sh env")[0]) if word[0] == "-"
    ]
    assert sorted(found) == sorted(entry.name for entry in TABLE.values() if entry.prefetch != "config")


@_BOTH
def test_every_variable_of_config_sh_is_in_the_reference_once(end: str) -> None:
    config = (REPO / "config.sh").read_text(encoding="utf-8")
    variables = re.findall(r"^(?:declare -gA )?([A-Z][A-Z0-9_]*)=", config, re.MULTILINE)
    assert sorted(
        re.findall(r"^\| `([A-Z][A-Z0-9_]+)`", reference("configuration", end), re.MULTILINE)
    ) == sorted(variables)


@_BOTH
def test_every_failure_class_and_exit_status_is_in_the_reference(end: str) -> None:
    classes = re.findall(r"^\| ([a-z ]+) \|", reference("failures", end), re.MULTILINE)
    assert [classes.count(kind.value) for kind in Kind] == [1] * len(Kind)
    statuses = re.findall(r"^\| (\d+) \|", reference("exit-statuses", end), re.MULTILINE)
    assert statuses == [str(int(status)) for status in sorted(ExitStatus)]


@_BOTH
def test_every_schema_is_linked(end: str) -> None:
    linked = set(re.findall(r"\(\.\./schemas/([\w.]+)\)", reference("files", end)))
    assert linked == {path.name for path in (REPO / "docs/schemas").glob("*.json")}


# ---- words


def sentences(text: str) -> list[str]:
    """Returns the sentences of Markdown ``text``; an item of a list and a cell of a table end one."""
    text = re.sub(r"^ *(?:#+ .*|\|[-:|\s]+\||!\[.*|:::.*|    .*)$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`\n]*`", "`x`", text)
    parts: list[str] = []
    for block in re.split(r"\n\s*\n|\n(?= *(?:[*-]|\d+\.) )|(?<!\\)\|", text):
        parts += re.split(r"(?<=[.!?])\s+", " ".join(block.split()))
    return [part for part in parts if re.search(r"[A-Za-z]{2}", part)]


def words(sentence: str) -> int:
    return len(re.findall(r"[\w'’./×-]*\w", sentence))


def texts_and_cells(page: Path) -> tuple[list[int], list[int]]:
    """Returns the lengths of the sentences of ``page`` in words: outside of tables, and in them."""
    lines = prose(page).splitlines()
    table = "\n".join(line for line in lines if line.lstrip().startswith("|"))
    text = "\n".join("" if line.lstrip().startswith("|") else line for line in lines)
    return [words(one) for one in sentences(text)], [words(one) for one in sentences(table)]


def test_sentences_are_short() -> None:
    texts, cells = [], []
    for page in ENGLISH:
        of_text, of_cells = texts_and_cells(page)
        texts += of_text
        cells += of_cells
    assert statistics.median(texts) <= 15
    for lengths in (texts, cells):
        assert statistics.quantiles(lengths, n=20)[-1] <= 35


def test_no_page_is_long() -> None:
    for page in pages():
        lines = page.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= (200 if page.parent == REPO else 400), page


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: name_of(pair[0]))
def test_both_languages_have_the_same_commands(pair: tuple[Path, Path]) -> None:
    def commands(page: Path) -> list[list[str]]:
        of_shell = [block.text for block in blocks(page) if block.language in ("bash", "sh")]
        return [[re.sub(r" *#.*", "", line) for line in text.splitlines()] for text in of_shell]

    english, chinese = map(commands, pair)
    assert english == chinese
