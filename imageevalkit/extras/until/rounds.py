"""``--until "a vs b"``: generates and judges images in rounds, until it is settled which model is better.

Each round covers the first items of one random order: a tenth of all items, then a quarter more each time. A
round is a plan over the benchmarks that are not settled yet. The last plan covers all cells and writes the
report: a benchmark that stopped early keeps the items of its rounds, the others take all items.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

from imageevalkit.cli.command_line import Scheduler
from imageevalkit.common.errors import CellFailure, ExitStatus, say, worst
from imageevalkit.common.text import counted
from imageevalkit.extras.until.settling import Look, look
from imageevalkit.jobs.plan import Plan
from imageevalkit.plan.benchmarks import choose_benchmark
from imageevalkit.plan.config import Config
from imageevalkit.plan.options import Options
from imageevalkit.plan.planner import plan_run
from imageevalkit.run.display import RunSummary, print_table
from imageevalkit.run.local import run_plan
from imageevalkit.store.cell import Cell
from imageevalkit.store.results import Until

_FIRST, _FEWEST, _MORE = 0.1, 30, 1.25


def first_round(total: int) -> int:
    """Returns the number of items of the first round, out of ``total``."""
    return min(total, max(_FEWEST, math.ceil(_FIRST * total)))


def next_round(asked: int, total: int) -> int:
    """Returns the number of items of the round after one with ``asked`` items, up to ``total``."""
    more = math.ceil(_MORE * asked)
    return more if _MORE * more < total else total


def _described(options: Options) -> str:
    rivals = options.extra["until"]["until"]
    return (
        f"that is the most: --until asks for {_FIRST:.0%} of the items of a benchmark ({_FEWEST} at least), then for "
        f'{_MORE - 1:.0%} more each time, and stops once it is settled which of "{" vs ".join(rivals)}" is better'
    )


def run_rounds(options: Options, config: Config, plan: Plan, locks: dict[str, int]) -> RunSummary:
    """Runs ``plan``, which covers all items, in rounds. ``locks`` are the descriptors that lock its cells.

    Raises UserError like :func:`~imageevalkit.plan.planner.plan_run` and
    :func:`~imageevalkit.run.local.run_plan`.
    """
    return _Rounds(options, config, plan, locks).run()


class _Rounds:
    def __init__(self, options: Options, config: Config, plan: Plan, locks: dict[str, int]) -> None:
        self._options, self._config, self._plan, self._locks = options, config, plan, locks
        self._rivals = [options.cell(model, "").model for model in options.extra["until"]["until"]]
        self._asked = dict[str, int]()
        self._better = dict[str, dict[str, tuple[str, int]]]()
        self._both = dict[str, int]()
        self._settled = set[str]()

    def _look(self, benchmark: str) -> Look | None:
        first, second = (Cell(model, benchmark) for model in self._rivals)
        # The report prints the warnings about unreadable results: they must not appear in each round.
        return look(first, second, lambda line: None)

    def run(self) -> RunSummary:
        """Runs all rounds, then the plan of all cells with the report."""
        going_on = [name for name in self._options.benchmarks if self._can_stop_early(name)]
        in_rounds = [*going_on]
        options = replace(self._options, judge_repeats=0)
        while going_on:
            for name in going_on:
                say(f"round: {name}, {self._asked[name]:,} items of both models")
            asked = {name: self._asked[name] for name in going_on}
            until = {name: Until(self._rivals, self._better.get(name, {})) for name in going_on}
            of_round = replace(options, benchmarks=going_on, asked=asked, until=until)
            summary = run_plan(self._planned(of_round, with_report=False), self._locks, with_table=False)
            if summary.status in (ExitStatus.INTERRUPTED, ExitStatus.TERMINATED):
                print_table(summary, sys.stdout)
                return summary
            going_on = [name for name in going_on if self._goes_on(name)]
            # --retry_refused and --retry_unparsed apply to the first round only: one retry for each item.
            options = replace(options, retry_refused=False, retry_unparsed=False)
        last = replace(
            self._options,
            asked=self._asked,
            until={name: Until(self._rivals, self._better.get(name, {})) for name in self._asked},
            retry_refused=options.retry_refused,
            retry_unparsed=options.retry_unparsed,
        )
        summary = run_plan(self._planned(last), self._locks)
        if summary.status in (ExitStatus.INTERRUPTED, ExitStatus.TERMINATED):
            return summary
        for name in in_rounds:
            if name not in self._settled:
                what = "the same command continues" if name in self._asked else "all items were asked for"
                say(f"{name}: it is not settled which of the two is better; {what}")
        stopped = self._asked.keys() - self._settled
        return replace(summary, status=worst([summary.status, *[ExitStatus.INCOMPLETE] * bool(stopped)]))

    def _planned(self, options: Options, with_report: bool = True) -> Plan:
        plan = plan_run(options, self._config, Path(self._plan.run_folder).name, with_report)
        plan.save()
        return plan

    def _can_stop_early(self, benchmark: str) -> bool:
        """Returns True if ``benchmark`` has a first round; sets its number of items in ``self._asked``."""
        options, cells = self._options, [Cell(model, benchmark).key for model in self._rivals]
        if any(cell in self._plan.blocked for cell in cells):
            return False
        judge = options.judges.get(benchmark, "")
        choice = choose_benchmark(self._config, benchmark, judge, options.judge_kwargs, options.ds_kwargs)
        if choice.needs_all_items:  # a note of the plan says so
            return False
        try:
            total = choice.check_dataset()
        except CellFailure:  # the jobs of the benchmark report it
            return False
        total = min(total, options.limit or total)
        found = self._look(benchmark)
        asked = first_round(total)
        if found and found.total == total:  # the run continues an earlier one
            asked = max(asked, found.asked)
        if asked < total:
            self._asked[benchmark] = asked
        elif found:
            say(f"{benchmark}: all items are asked for already; {found.summary(self._rivals)}")
        else:
            say(f"{benchmark}: all {counted(total, 'item')} are needed")
        return asked < total

    def _goes_on(self, benchmark: str) -> bool:
        """Reads the results of a round and sets the size of the next. Returns True if there is a next one."""
        found, asked = self._look(benchmark), self._asked[benchmark]
        if found is None or found.asked < asked:
            say(f"{benchmark}: stopped after {asked:,} items, some without a score")
            return False
        say(f"{benchmark}: {found.summary(self._rivals)}")
        if found.unfit:
            del self._asked[benchmark]
            return False
        self._better[benchmark] = found.better(self._rivals)
        if found.is_settled:
            self._settled.add(benchmark)
            return False
        if found.verdicts and found.both <= self._both.get(benchmark, 0):
            say(f"{benchmark}: stopped after {asked:,} items: the last round added no score of both models")
            return False
        self._both[benchmark] = found.both
        more = next_round(asked, found.total)
        if more < found.total:
            self._asked[benchmark] = more
            return True
        del self._asked[benchmark], self._better[benchmark]
        say(f"{benchmark}: all {found.total:,} items are asked for")
        return False


SCHEDULER = Scheduler("--until", run_rounds, _described)
