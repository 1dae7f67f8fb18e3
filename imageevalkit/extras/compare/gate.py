"""``--gate`` tests whether scores fell below a baseline, which ``--save_baseline`` writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple
from zipfile import is_zipfile

from rich.cells import cell_len

from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.errors import CellFailure, ExitStatus, UserError, say, show, worst
from imageevalkit.common.text import counted, plain
from imageevalkit.extras.compare.junit import Case, junit_xml
from imageevalkit.extras.compare.sides import Pair
from imageevalkit.report.comparison import Comparison, Measured, adjust, compare_all
from imageevalkit.report.leaderboard import format_value
from imageevalkit.report.reading import Scored, headline_of, may_compare, read_all, why_not, write_saved
from imageevalkit.store.cell import log_root, output_root, short_path
from imageevalkit.store.results import DRIFTED

LEVEL = 0.04
"""The gate fails if the p of a fall, adjusted by Holm's method over all metrics, is below this level.

With this level, at most 5 % of unchanged reruns fail. With 0.05 itself, half of all trials of 1,000 reruns
would count more than 50 failures.
"""

HOLDS: Final = "holds"
FELL: Final = "fell"
MISSING: Final = "missing"
NEW: Final = "new"
UNTESTED: Final = "not tested"
UNJUDGED: Final = "cannot be judged"
Verdict = Literal["holds", "fell", "missing", "new", "not tested", "cannot be judged"]


@dataclass(frozen=True)
class Check:
    """The verdict of the gate on one metric of one cell.

    ``p`` is the probability of a fall at least as deep if nothing changed. ``adjusted`` is p by Holm's method
    over all checks. ``remark`` names the test, or the reason why there was no test."""

    cell: str
    metric: str
    verdict: Verdict
    remark: str
    before: float | None = None
    now: float | None = None
    difference: float | None = None
    p: float | None = None
    adjusted: float | None = None
    scale: float = 1.0

    @property
    def fails(self) -> bool:
        return self.verdict in (FELL, MISSING)

    @property
    def name(self) -> str:
        return f"{self.cell}/{self.metric}" if self.metric else self.cell


class Asked(NamedTuple):
    """A metric to test: the baseline's value and the new value."""

    before: Measured
    now: Measured


def falls(asked: Sequence[Asked]) -> list[Comparison]:
    """Compare now - before of each metric. ``p`` is the probability of such a fall, ``adjusted`` is p by
    Holm's method.

    The test is one-sided because a rise does not fail the gate. Its p is half of the p of the symmetric
    two-sided test. :func:`~imageevalkit.report.comparison.compare` says how the judge's noise counts.
    """
    found = [compare_all([one.now, one.before], with_intervals=False)[0] for one in asked]
    return adjust([replace(one, p=_of_fall(one)) for one in found])


def _of_fall(found: Comparison) -> float | None:
    if found.p is None:
        return None
    return found.p / 2 if found.difference < 0 else 1 - found.p / 2


# ---- results against a baseline


def check(
    baseline: Sequence[Scored], now: Sequence[Scored], run: Mapping[str, str] | None = None
) -> list[Check]:
    """Check each headline metric of each cell in ``baseline`` or ``now``, or of the cells of ``run`` only.

    ``run`` maps the key of each cell of a run to the reason of its failure; the reason is empty if it did not
    fail. If the baseline has several results of a cell, its latest evaluator's result is checked.
    """
    known = {one.cell.key: one for one in reversed(baseline)}
    there: dict[str, list[Scored]] = {}
    for one in now:
        there.setdefault(one.cell.key, []).append(one)
    keys = sorted({*known, *there} if run is None else run)
    found: list[Check | tuple[Check, Asked]] = []
    for key in keys:
        if key not in known:
            if key in there:
                found.append(Check(key, "", NEW, "the baseline has no such result"))
        elif key not in there:
            found.append(Check(key, "", MISSING, "there is no result, which the baseline has"))
        elif run and run[key]:  # the result in the folder is from an earlier run
            found.append(Check(key, "", MISSING, f"failed in this run: {run[key]}"))
        else:
            found += _of_cell(known[key], there[key])
    tested = falls([one[1] for one in found if isinstance(one, tuple)])
    answers = iter(tested)
    checks = [one if isinstance(one, Check) else _decided(one[0], next(answers)) for one in found]
    drifted = {one.cell.key for one in (*baseline, *now) if one.result.drift}
    return [
        replace(one, remark="; ".join(filter(None, (one.remark, DRIFTED)))) if one.cell in drifted else one
        for one in checks
    ]


def _of_cell(before: Scored, results: Sequence[Scored]) -> Iterator[Check | tuple[Check, Asked]]:
    key = before.cell.key
    now = next((one for one in results if may_compare(before.result, one.result)), None)
    if now is None:
        reason = why_not(before.result, results[0].result)
        yield Check(key, "", MISSING, f"not as the baseline's: {reason}; save a new one if that is meant")
        return
    pair = Pair(before, now)
    left_out = pair.other_prompts
    # withheld in both: the metrics are tested anyway, because a fall of them is still a fall
    unwhole = not before.result.headline and not now.result.headline
    for metric in headline_of(before.result, now.result):
        was, is_ = pair.measured(metric)
        if was is None or (before.result.headline and metric not in before.result.headline):
            yield Check(
                key, metric, NEW, "the baseline has no such score", now=is_.metric.value if is_ else None
            )
            continue
        value, scale = was.metric.value, was.metric.scale
        missing = Check(key, metric, MISSING, "", before=value, scale=scale)
        if is_ is None:
            yield replace(missing, remark="there is no such score, which the baseline has")
        elif before.result.headline and not now.result.headline:
            withheld = " ".join(now.result.withheld.split())
            yield replace(missing, remark=f"the score is withheld: {withheld}")
        elif not math.isclose(scale, is_.metric.scale):
            yield replace(missing, remark=f"it is on another scale ({scale:g}, {is_.metric.scale:g})")
        elif before.result.limit != now.result.limit and not (was.metric.parts and is_.metric.parts):
            yield replace(
                missing,
                verdict=UNTESTED,
                now=is_.metric.value,
                remark="on other items, and nothing pairs them",
            )
        elif left_out and not (was.metric.parts and is_.metric.parts):
            yield replace(missing, now=is_.metric.value, remark="none of the baseline's prompts is left")
        else:
            remarks = [f"{counted(len(left_out), 'item')} with other prompts left out"] * bool(left_out)
            if unwhole:
                remarks.insert(
                    0, f"the score is withheld, then and now: {' '.join(now.result.withheld.split())}"
                )
            verdict: Verdict = UNJUDGED if unwhole else HOLDS
            yield (
                Check(key, metric, verdict, "; ".join(remarks), value, is_.metric.value, scale=scale),
                Asked(was, is_),
            )


def _decided(asked: Check, found: Comparison) -> Check:
    verdict = asked.verdict
    if fell(found):
        verdict = FELL
    elif verdict == HOLDS and (found.p is None or found.adjusted is None):
        verdict = UNTESTED
    return replace(
        asked,
        verdict=verdict,
        remark="; ".join(filter(None, (found.test, asked.remark))),
        difference=found.difference,
        p=found.p,
        adjusted=found.adjusted,
    )


def fell(found: Comparison) -> bool:
    """Whether a comparison of :func:`falls` shows a fall that chance does not explain (p below LEVEL)."""
    return found.adjusted is not None and found.adjusted < LEVEL and found.difference < 0


# ---- for a user


@dataclass(frozen=True)
class Gate:
    """The options ``--gate`` and ``--save_baseline``. The baseline is in memory: a run may overwrite it."""

    place: Path | None
    baseline: Sequence[Scored]
    save: Path | None

    @classmethod
    def of(cls, place: Path | None, save: Path | None) -> Gate:
        """Read the baseline. Raises UserError if it cannot be read, or if ``save`` is not usable."""
        baseline = list[Scored]()
        if place:
            if not place.exists():
                raise UserError(
                    f"--gate: {short_path(place)} does not exist: bash eval.sh --save_baseline FILE writes one"
                )
            try:
                baseline = read_all(place, _tell)[1]
            except UserError as error:
                raise UserError(f"--gate: {error}") from None
        if save and save.is_dir():
            raise UserError(f"--save_baseline: {short_path(save)} is a folder: name a file in it")
        if save and save.exists() and not is_zipfile(save):
            raise UserError(
                f"--save_baseline: {short_path(save)} is another file, no baseline: name a new one"
            )
        return cls(place, baseline, save)

    def check_cells(self, keys: Collection[str]) -> None:
        """Raise UserError if the baseline has none of the cells of a run: nothing would be checked."""
        known = dict.fromkeys(one.cell.key for one in self.baseline)
        if self.place and not known.keys() & set(keys):
            shown = ", ".join([*known][:5]) + (", …" if len(known) > 5 else "")
            raise UserError(f"--gate: {short_path(self.place)} has no result of this run; it has {shown}")

    def close(self, run: Mapping[str, str] | None = None) -> ExitStatus:
        """Check and save the results in output/; ``run`` is as in :func:`check`.

        Raises UserError if there is nothing to check or save, and CellFailure if a file cannot be written.
        """
        root = output_root()
        place = self.place and self.place.resolve()
        if run is None and place and not is_zipfile(place) and place.is_relative_to(root.resolve()):
            raise UserError("--gate: the baseline is the present output/: give an older one, or a saved file")
        try:
            now = read_all(root, _tell)[1]
        except UserError as error:
            if run is None:
                raise UserError(f"nothing to check or save: {error}") from None
            now = []  # all cells of the run failed
        status = ExitStatus.COMPLETE
        if self.place:
            if run is None:
                self.check_cells([one.cell.key for one in now])
            status = self._check(now, run)
        if self.save:
            # a result that stopped early covers other items in the next run: nothing would be comparable
            whole = (one for one in now if one.result.headline and not one.result.coverage.unasked)
            scored = [one for one in whole if run is None or one.cell.key in run]
            status = worst([status, self._save(scored, status, run or {})])
        return status

    def _check(self, now: Sequence[Scored], run: Mapping[str, str] | None) -> ExitStatus:
        assert self.place
        checks = check(self.baseline, now, run)
        place = short_path(self.place)
        lines = list(table_lines(checks))
        for line in lines:
            show(line)
        path = log_root() / "gate.xml"
        xml = junit_xml(
            "imageevalkit gate", [_case(one) for one in checks], {"baseline": place}, "\n".join(lines)
        )
        _write(path, lambda: write_atomic(path, xml))
        for note in dict.fromkeys(one.result.drift for one in (*self.baseline, *now) if one.result.drift):
            _tell(note)
        failed, unjudged = sum(one.fails for one in checks), sum(one.verdict == UNJUDGED for one in checks)
        status, what = ExitStatus.COMPLETE, "no score fell"
        if failed:
            status, what = ExitStatus.FELL, f"{failed} of {counted(len(checks), 'line')} failed"
        elif unjudged:
            status, what = (
                ExitStatus.INCOMPLETE,
                f"{unjudged} of {counted(len(checks), 'line')} cannot be judged",
            )
        show(f"gate: {what}, baseline {place}: exit status {int(status)}; {short_path(path)}")
        return status

    def _save(self, scored: Sequence[Scored], status: ExitStatus, run: Mapping[str, str]) -> ExitStatus:
        """Save the baseline, unless a cell or the gate failed. Returns FAILED if it is not saved.

        If the gate found a fall, the status is COMPLETE: the check itself reports the fall."""
        assert self.save
        why = "" if scored else "there is no result"
        if failed := sum(map(bool, run.values())):
            why = f"{counted(failed, 'result')} failed"
        elif status == ExitStatus.FELL:  # else the baseline would go down with every fall
            why = "the gate failed"
        if why:
            show(f"not saved: {why}; {short_path(self.save)} stays as it is")
            return ExitStatus.COMPLETE if status == ExitStatus.FELL else ExitStatus.FAILED
        count = _write(self.save, lambda: write_saved(self.save or Path(), scored))
        show(f"baseline of {counted(count or 0, 'result')}: {short_path(self.save)}")
        return ExitStatus.COMPLETE


def _case(one: Check) -> Case:
    """Return the JUnit test case of a check.

    The class name keeps the slashes of the cell: readers of JUnit XML take names with dots for packages."""
    numbers = "" if one.now is None else f"{_number(one.before, one)} → {_number(one.now, one)}"
    chance = "" if one.adjusted is None else f"p {_chance(one.adjusted)}"
    words = f"{one.verdict}: {', '.join(filter(None, (numbers, chance, one.remark)))}"
    skipped = one.verdict in (UNTESTED, NEW)
    bad = one.fails or one.verdict == UNJUDGED
    return Case(one.cell, one.metric or "result", words * bad, words * skipped)


def _write(path: Path, write: Callable[[], int | None]) -> int | None:
    try:
        return write()
    except OSError as error:
        raise CellFailure(f"{short_path(path)} cannot be written: {error.strerror}") from error


def _tell(line: str) -> None:
    say(f"note: {plain(line)}")


def table_lines(checks: Sequence[Check]) -> Iterator[str]:
    """Yield the lines of the table of checks."""
    rows: list[tuple[str, ...]] = [("gate", "metric", "baseline", "now", "change", "", "")]
    rows += [
        (
            one.verdict,
            plain(one.name),
            _number(one.before, one),
            _number(one.now, one),
            "" if one.difference is None else f"{one.difference:+.{4 if one.scale <= 1 else 2}f}",
            "" if one.adjusted is None else f"p {_chance(one.adjusted)}",
            plain(one.remark),
        )
        for one in checks
    ]
    widths = [max(cell_len(row[n]) for row in rows) for n in range(6)]
    for row in rows:
        padded = [
            " " * (width - cell_len(text)) + text if n in (2, 3, 4) else text + " " * (width - cell_len(text))
            for n, (text, width) in enumerate(zip(row, widths, strict=False))
        ]
        yield "  ".join([*padded, row[6]]).rstrip()


def _number(value: float | None, one: Check) -> str:
    return "–" if value is None else format_value(value, one.scale)


def _chance(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"
