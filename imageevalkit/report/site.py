"""Write the site: ``report/index.html`` with its parts, and ``report.html``, the site in one file.

The page is built from ``page/`` into ``bundle/``. Both files open from ``file://`` and load nothing from the
network.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from urllib.parse import quote

import msgspec
from markupsafe import Markup
from msgspec.structs import replace
from tqdm import tqdm

from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.machine import available_cores
from imageevalkit.metrics import grouped
from imageevalkit.report import parts
from imageevalkit.report.cell_parts import PICTURES, SUMMARY, Shown, Summary, build, preview_path, state_of
from imageevalkit.report.collect import CellReport, natural
from imageevalkit.report.index import Built, Found, index_of, one_up
from imageevalkit.report.leaderboard import Ranks
from imageevalkit.report.pages import template
from imageevalkit.store.cell import SITE

PAGE, SINGLE = "index.html", "report.html"
_OPENING = '<script type="application/json" data-part="index">'
_BUNDLE = Path(__file__).parent / "bundle"
_STATE = ".state.json"
# A select with more choices than this is a list, not a filter.
_MAX_CHOICES = 60
# from so many items on, the start of processes pays off; each of them takes 100 MB
_MANY, _MOST_PROCESSES = 5_000, 4
# bytes per picture in report.html beside its base64 text: its path and markup
_EACH_PICTURE = 100


class _State(msgspec.Struct):
    """For each result, by its file: the hash of :func:`state_of` and the folder of its parts."""

    made: dict[str, tuple[str, str]]


def write_site(
    place: Path,
    cells: Sequence[CellReport],
    found: Found,
    ranks: Ranks,
    megabytes: float,
) -> list[Path]:
    """Write the site of ``cells`` and ``found`` into ``place``/report, and ``report.html`` beside it.

    If ``report.html`` would be larger than ``megabytes``, it only links the site. Parts of unchanged cells
    stay. The index is written last, and only then old parts are removed: until then the old site works.
    Returns the paths of both pages. Raises OSError or CellFailure if a file cannot be written.
    """
    site = place / SITE
    if inside := [cell.key for cell in cells if cell.folder.is_relative_to(site)]:
        raise CellFailure(
            f"the report goes into {site}, where the results of {inside[0]} are: rename their folder"
        )
    built, state = _build(site, cells)
    of_sections = {path: data for one in found.sections for path, data in one.pictures(cells).items()}
    for path, data in of_sections.items():
        _write(site / path, data)
    # one benchmark at a time, because the items take more memory than anything else
    of_benchmark = grouped(
        ((n, one) for n, one in enumerate(built) if one.folder), lambda one: one[1].report.cell.benchmark
    )
    prompts = dict[str, bytes]()
    counts = dict[str, int]()
    for name, of_it in of_benchmark.items():
        part = _prompts(site, of_it)
        counts[name], prompts[name] = len(part.rows), parts.to_json(part)
    index = index_of(built, counts, found, ranks, place)
    if (last := _index_in(site / PAGE)) and replace(index, made=last.made) == last:
        index = last  # unchanged: it keeps the time of the last change
    for name in ("page.js", "page.css"):
        _write(site / name, (_BUNDLE / name).read_bytes())
    for n, benchmark in enumerate(index.benchmarks):
        if benchmark.name in prompts:
            part_name = f"prompts/{n}"
            _write(
                site / f"data/{part_name}.js",
                parts.script_of(part_name, msgspec.Raw(prompts[benchmark.name])),
            )
    page = template("index.html.j2", autoescape=True).render(
        index=Markup(parts.script_json(index).decode()), single=None
    )
    _write(site / PAGE, page.encode())
    _write(site / _STATE, parts.to_json(state))
    pictures = {sha256 for one in built if one.summary for sha256 in one.summary.pictures}
    pictures |= {Path(path).stem for path in of_sections}
    _forget(site, {one.folder for one in built}, len(index.benchmarks), pictures)
    single = place / SINGLE
    _write(single, _single(site, index, pictures, megabytes))
    return [site / PAGE, single]


def _split(page: Path) -> tuple[str, str, str]:
    """Return the text of ``page`` before its index, the JSON of the index, and the text after it.

    Raises OSError if the page cannot be read."""
    before, opening, rest = page.read_text(encoding="utf-8").partition(_OPENING)
    text, closing, after = rest.partition("</script>")
    return before + opening, text, closing + after


def _index_in(page: Path) -> parts.Index | None:
    """Return the index in ``page``, or None if there is none or it is of another version."""
    with contextlib.suppress(OSError, ValueError):
        return parts.of_json(_split(page)[1].encode(), parts.Index)
    return None


def _write(path: Path, data: bytes) -> None:
    """Write a file, except if it has this content: its time stays, so that copies of a site skip it."""
    with contextlib.suppress(OSError):
        if path.read_bytes() == data:
            return
    write_atomic(path, data, durably=False)


def _build(site: Path, cells: Sequence[CellReport]) -> tuple[list[Built], _State]:
    """Return all cells with their parts, and the new state. Missing and stale parts are written."""
    before, now = _State({}), _State({})
    with contextlib.suppress(OSError, ValueError):
        before = parts.of_json((site / _STATE).read_bytes(), _State)
    there = {path.stem for path in (site / PICTURES).glob("*/*.webp")}
    built, changed = [Built(cell) for cell in cells], list[int]()
    for n, cell in enumerate(cells):
        if cell.recorded:
            state, folder = before.made.get(str(cell.source), ("", ""))
            summary = (
                Summary.read(site / "data/cells" / folder / SUMMARY) if state == state_of(cell) else None
            )
            if summary and summary.holds(cell.folder) and there.issuperset(summary.pictures):
                now.made[str(cell.source)] = state, folder
                built[n] = Built(cell, folder, summary.without_shown())
            else:
                changed.append(n)
    for n, (state, folder, summary) in zip(changed, _made(site, [cells[n] for n in changed]), strict=True):
        now.made[str(cells[n].source)] = state, folder
        built[n] = Built(cells[n], folder, summary)
    return built, now


def _made(site: Path, cells: Sequence[CellReport]) -> Iterator[tuple[str, str, Summary]]:
    """Yield the result of :func:`build` for each cell, from up to four processes if there are many items."""
    count = sum(cell.recorded for cell in cells)
    cores = min(available_cores(), len(cells), _MOST_PROCESSES)
    # only on a terminal, and only after one second
    bar = tqdm(total=count, desc="report", unit="item", disable=None, delay=1.0)
    with bar, contextlib.ExitStack() as stack:
        mapped: Callable[..., Iterator[tuple[str, str, Summary]]] = map
        if count >= _MANY and cores > 1:
            context = multiprocessing.get_context("spawn")  # a fork would copy all results
            mapped = stack.enter_context(ProcessPoolExecutor(cores, context)).map
        small = [cell.without_parts() for cell in cells]
        for cell, made in zip(cells, mapped(build, small, [site] * len(small)), strict=True):
            bar.update(cell.recorded)
            yield made


def _forget(site: Path, folders: set[str], benchmarks: int, pictures: set[str]) -> None:
    """Remove the parts and pictures that the new index does not use."""
    for folder in (site / "data/cells").glob("*"):
        if folder.name not in folders:
            shutil.rmtree(folder, ignore_errors=True)
    for path in (site / "data/prompts").glob("*.js"):
        if not path.stem.isdecimal() or int(path.stem) >= benchmarks:
            path.unlink(missing_ok=True)
    for path in (site / PICTURES).glob("*/*"):  # also temporary files of a killed report
        if path.stem not in pictures:
            path.unlink(missing_ok=True)


# ---- prompts


def _prompts(site: Path, cells: Sequence[tuple[int, Built]]) -> parts.Prompts:
    """Return a row for each prompt with its input images, from the numbered ``cells`` of a benchmark.

    An item id stands for the same prompt with every model."""
    items, keys, sources = dict[str, Shown](), dict[str, dict[str, str]](), dict[str, _Sources]()
    for n, one in cells:
        summary = Summary.read(site / "data/cells" / one.folder / SUMMARY)
        placed = set(summary.pictures) if summary else set()
        for item in summary.shown if summary else ():
            if item.id not in items or not items[item.id].prompt:
                items[item.id] = item
            keys.setdefault(item.id, {}).update(item.keys)
            if item.inputs:
                found = [_input(n, one.report, placed, path, copy) for _, path, copy in item.inputs]
                # old records name no inputs: take them from another model's record of the same item or prompt
                for known in (item.id, item.prompt_sha256):
                    of_model = sources.setdefault(known, {})
                    what = tuple(sha256 for sha256, _, _ in item.inputs)
                    if what not in of_model or not all(each.preview for each in of_model[what][1]):
                        of_model[what] = one.report.model, found

    def shown(id: str) -> str:
        item = items[id]
        # the hash also differs for edits with the same instruction but other input images
        return item.prompt_sha256 or item.prompt or id

    rows = [
        parts.PromptRow(
            items[ids[0]].prompt,
            ids,
            {name: value for id in ids for name, value in keys[id].items()},
            _inputs([sources.get(id, {}) for id in ids] + [sources.get(items[ids[0]].prompt_sha256, {})]),
        )
        for ids in grouped(sorted(items, key=natural), shown).values()
    ]
    return parts.Prompts(rows, _filters(rows))


_Sources = dict[tuple[str, ...], tuple[str, list[parts.Input]]]
"""By the hashes of the input images of an item: the name of a model, and the images."""


def _inputs(known: Sequence[_Sources]) -> list[parts.Input]:
    """Return the input images of a row. If they changed between runs, each image names its model."""
    found: _Sources = {}
    for sources in known:
        found = {**sources, **found}
    several = len(found) > 1
    return [replace(one, of=model) if several else one for model, inputs in found.values() for one in inputs]


def _input(n: int, report: CellReport, placed: set[str], path: str, copy_sha256: str) -> parts.Input:
    """Return an input image. ``path`` is empty if the copy is missing; a preview may still exist."""
    preview = preview_path(copy_sha256) if copy_sha256 in placed else ""
    if not path:
        return parts.Input(preview)
    return parts.Input(preview, quote(os.fsencode(f"{report.cell.key}/{path}")), n)


def _filters(rows: Iterable[parts.PromptRow]) -> dict[str, list[str]]:
    choices = dict[str, set[str]]()
    for row in rows:
        for name, value in row.keys.items():
            choices.setdefault(name, set()).add(value)
    shown = {name: values for name, values in choices.items() if 1 < len(values) <= _MAX_CHOICES}
    return {name: sorted(values, key=natural) for name, values in shown.items()}


# ---- all in one file


def _single(site: Path, index: parts.Index, pictures: Iterable[str], megabytes: float) -> bytes:
    """Return ``report.html``, or a page that links the site if it would be larger than ``megabytes``."""
    names = [f"prompts/{n}" for n, one in enumerate(index.benchmarks) if one.prompts]
    for cell in index.cells:
        if cell.folder:
            files = sorted((site / "data/cells" / cell.folder).glob("*.js"))
            names += [f"cells/{cell.folder}/{file.stem}" for file in files]
    paths = [preview_path(sha256) for sha256 in sorted(pictures)]
    size = sum((site / f"data/{name}.js").stat().st_size for name in names)
    # a large report exceeds the limit early, so this loop does not look at all its pictures
    room = megabytes * 1e6 - size
    for path in paths:
        room -= (site / path).stat().st_size * 4 / 3 + _EACH_PICTURE
        if room < 0:
            break
    if room < 0:
        return template("moved.html.j2", autoescape=True).render(megabytes=f"{megabytes:g}").encode()
    script = (_BUNDLE / "page.js").read_text(encoding="utf-8")
    # in JavaScript texts and patterns the escapes mean the same, but they do not end the script element
    script = script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    images = {
        path: f"data:image/webp;base64,{base64.b64encode((site / path).read_bytes()).decode()}"
        for path in paths
    }
    inside = {name: _json_of(site / f"data/{name}.js", name) for name in names}
    inside["pictures"] = parts.script_json(images)
    return (
        template("index.html.j2", autoescape=True)
        .render(
            index=Markup(parts.script_json(one_up(index)).decode()),
            single={
                "style": Markup(
                    (_BUNDLE / "page.css").read_text(encoding="utf-8").replace("</style", "<\\/style")
                ),
                "script": Markup(script),
                "hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
                "parts": {name: Markup(text.decode()) for name, text in inside.items()},
            },
        )
        .encode()
    )


def _json_of(path: Path, name: str) -> bytes:
    """Return the JSON inside the file of a part."""
    return path.read_bytes()[len(b"reportPart(%s," % parts.script_json(name)) : -len(b")\n")]


# ---- elsewhere


def copy_site(
    site: Path, target: Path, public: Callable[[str], str], of_settings: Callable[[str], str]
) -> None:
    """Copy a site that :func:`write_site` wrote, without links to files outside it, such as full-size images.

    ``public`` converts all texts; before that, ``of_settings`` converts the settings of evaluators and the
    provenance. Unchanged files are not written. Raises OSError if a file cannot be read or written.
    """
    before, text, after = _split(site / PAGE)
    index = parts.of_json(text.encode(), parts.Index)
    cells = [
        replace(
            cell,
            evaluator={name: of_settings(value) for name, value in cell.evaluator.items()},
            provenance={name: of_settings(value) for name, value in cell.provenance.items()},
        )
        for cell in index.cells
    ]
    alone = replace(
        index,
        cells=cells,
        roots=["" for _ in index.roots],
        relations=[replace(one, files=[]) for one in index.relations],
        comparisons=[],
    )
    kept = set[Path]()
    for path in sorted(site.rglob("*")):
        to = target / path.relative_to(site)
        if path.is_dir() or path.name.startswith(".") or path.name == PAGE:
            continue
        kept.add(to)
        if path.suffix == ".webp":
            # the name is a hash of the content; a file of another size was cut short
            if not to.is_file() or to.stat().st_size != path.stat().st_size:
                write_atomic(to, path.read_bytes(), durably=False)
        else:
            is_data = path.is_relative_to(site / "data")
            _write(to, public(path.read_text(encoding="utf-8")).encode() if is_data else path.read_bytes())
    shown = public(parts.script_json(alone).decode())
    if last := _index_in(target / PAGE):
        as_then = public(parts.script_json(replace(alone, made=last.made)).decode())
        if as_then == _split(target / PAGE)[1]:
            shown = as_then  # unchanged: it keeps the time of the last change
    _write(target / PAGE, (before + shown + after).encode())
    for path in target.rglob("*"):
        if path.is_file() and path not in kept and path.name != PAGE:
            path.unlink()
