"""``--watch DIR``: evaluates each checkpoint that appears in a folder in a run of its own, until stopped."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit.assets.checkpoints import files_of, steps_in, tells_all, what_lacks
from imageevalkit.cli.command_line import Command
from imageevalkit.common import logs
from imageevalkit.common.errors import CellFailure, ExitStatus, UserError, complain, say, worst
from imageevalkit.common.machine import require
from imageevalkit.common.redaction import one_line
from imageevalkit.common.text import counted
from imageevalkit.extension_points import extras
from imageevalkit.extras.watch.checkpoints import DENOISER, LORA, WEIGHTS, checkpoint_kwargs
from imageevalkit.extras.watch.keepers import Keepers
from imageevalkit.jobs.launcher import detach, note_launcher
from imageevalkit.jobs.plan import GenerateOrder, Plan, cell_of
from imageevalkit.plan.config import Config
from imageevalkit.plan.options import LOCAL, Options, resolve
from imageevalkit.plan.planner import make_plan, plan_run
from imageevalkit.run.display import RunSummary, print_report
from imageevalkit.run.local import run_plan
from imageevalkit.store.cell import LAUNCHERS_LOCK, Checkpoint, checkpoint_of, lock_cell
from imageevalkit.store.results import read_result

_LOOK_EVERY = 1.0  # seconds
_TICK = 0.1
_FILES, _FILES_OF_CELL = 96, 3  # files open at once in this process, and for each cell of a run
# Seconds. A checkpoint without a file that lists its parts counts as complete if unchanged for so long.
_QUIET = 60.0
_STOPPED = {
    signal.SIGINT: ExitStatus.INTERRUPTED,
    signal.SIGTERM: ExitStatus.TERMINATED,
    signal.SIGHUP: ExitStatus.TERMINATED,
}


def _watch(given: Mapping[str, Any], config: Config, here: Path) -> ExitStatus:
    return watch(resolve(given, config), config)


COMMANDS = [Command("--watch", _watch, uses_results=False)]


def watch(options: Options, config: Config) -> ExitStatus:
    """Evaluates the checkpoints that appear in the folder of ``--watch`` until a signal (Ctrl-C, SIGTERM) comes.

    Returns the worst status of the evaluated checkpoints, or the status of a run that the signal interrupted.

    Raises UserError: an option does not go with --watch, or no run with these options could start.
    """
    _check(options)
    options = replace(options, weights_are_here=False)  # a checkpoint does not exist yet when it is planned
    folder = options.extra["watch"]["watch"].absolute()
    [(run, kwargs)] = options.models.items()
    given = {key: Path(str(kwargs[key])).expanduser().absolute() for key in WEIGHTS if key in kwargs}
    key = next((key for key, path in given.items() if path == folder), "model_path")
    if not folder.parent.is_dir():
        raise UserError(
            f"--watch: there is no {folder.parent}, where {folder.name} would be: correct the path"
        )
    # A plan for a pretended checkpoint shows mistakes in the options now, not hours later at the first one.
    pretended = {Checkpoint(run, 0).name: checkpoint_kwargs(kwargs, key, folder / "0")}
    plan = make_plan(replace(options, models=pretended), config)
    if plan.blocked:
        raise UserError(f"no checkpoint could be evaluated: {next(iter(plan.blocked.values()))}")
    orders = [job.order for job in plan.jobs if isinstance(job.order, GenerateOrder)]
    if any(order.api for order in orders):
        raise UserError(f"--watch: model '{run}' is reached through an API, and has no weights to watch")
    if not folder.is_dir():
        say(f"there is no {folder} yet")
    return _Watch(options, config, plan, folder, run, key).run()


def _check(options: Options) -> None:
    problems = {
        "--launcher": options.launcher != LOCAL and "runs jobs on this machine: leave it out, or use local",
        "--model_names": len(options.models) != 1 and "watches the checkpoints of one model: name one",
        "--images": options.images and "makes the images itself: leave it out",
        "--use_api": options.use_api and "is for weights on this machine: leave it out",
        "--infer": not options.infer and "makes images: leave out --infer false and --rescore",
    }
    with_results = [name for name in options.active_extras if "results" in extras()[name]]
    for name in (name for extra in with_results for name, value in options.extra[extra].items() if value):
        problems[f"--{name}"] = f"has no end at which to do this: give --{name} when it has ended"
    for name, problem in problems.items():
        if problem:
            raise UserError(f"{name}: --watch {problem}")
    for name in options.models:
        if checkpoint_of(name):
            raise UserError(
                f"--model_names: --watch takes the name of the run, without a step: '{name}' has one"
            )


@dataclass
class _Seen:
    """A checkpoint that waits for its evaluation.

    ``files`` holds size and time of each file, unchanged ``since`` a time (monotonic seconds). ``lacks`` says
    what is missing (None: not checked yet). ``reported`` is the last printed reason for the wait.
    """

    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    since: float = 0.0
    lacks: str | None = None
    reported: str = ""


class _Taken(NamedTuple):
    """A checkpoint that was evaluated: the status of its run, and its files at that time."""

    status: ExitStatus
    files: Mapping[str, tuple[int, int]]


class _Watch:
    def __init__(
        self, options: Options, config: Config, plan: Plan, folder: Path, run: str, key: str
    ) -> None:
        self._options, self._config, self._folder, self._run, self._key = options, config, folder, run, key
        own = Path(plan.run_folder)
        self._own = own.with_name(f"{own.name}-watch")
        self._keepers = Keepers(plan, self._own)
        self._seen: dict[int, _Seen] = {}
        self._taken: dict[int, _Taken] = {}
        self._anew = set[int]()
        self._stop: signal.Signals | None = None
        self._reported = ""
        self._began = time.monotonic()

    def run(self) -> ExitStatus:
        try:
            self._keepers.plan.save()
        except (OSError, CellFailure) as error:
            raise UserError(f"log/ cannot be written: {one_line(error)}") from error
        if self._options.detach:
            detach(self._own)
        note_launcher(self._own)
        logs.print_without_fear()
        for line in self._keepers.notes:
            say(line)
        self._listen()
        under_way = ExitStatus.COMPLETE
        try:
            while not self._is_stopped():
                if ready := self._look():
                    under_way = self._evaluate(ready)
                    self._listen()  # the run has replaced the signal handlers
                    if under_way in _STOPPED.values():
                        break
                else:
                    self._tell_waiting()
                self._sleep()
        finally:
            self._keepers.close()
        say(f"watch of {self._folder} ended: {self._counts()}")
        status = (
            under_way if under_way in _STOPPED.values() else worst(one.status for one in self._taken.values())
        )
        try:
            RunSummary(status, time.monotonic() - self._began, [], []).save(self._own)
        except (CellFailure, OSError) as error:
            complain(one_line(error))
        return status

    def _listen(self) -> None:
        for number in _STOPPED:
            if signal.getsignal(number) != signal.SIG_IGN or number != signal.SIGHUP:  # nohup
                signal.signal(number, lambda number, _: setattr(self, "_stop", signal.Signals(number)))

    def _is_stopped(self) -> bool:
        return self._stop is not None

    def _sleep(self) -> None:
        until = time.monotonic() + _LOOK_EVERY
        while time.monotonic() < until and not self._is_stopped():
            time.sleep(_TICK)

    # Looking for checkpoints

    def _name(self, step: int) -> str:
        return Checkpoint(self._run, step).name

    def _look(self) -> dict[int, Path]:
        """Returns the paths of complete checkpoints that are not evaluated yet, by step."""
        try:
            there = steps_in(self._folder, self._key == LORA)
        except FileNotFoundError:
            there = {}
        except (UserError, OSError) as error:
            self._tell(f"no checkpoint is evaluated: {one_line(error)}")
            return {}
        for step in [step for step in self._seen if step not in there]:
            say(f"{self._name(step)} was deleted before it was complete: skipped")
            del self._seen[step]
        ready = dict[int, Path]()
        for step, path in there.items():
            with contextlib.suppress(OSError):  # the trainer deletes it just now: the next look decides
                if step in self._taken:
                    if not self._is_another(step, path):
                        continue
                    del self._taken[step]
                    self._anew.add(step)
                    say(
                        f"{self._name(step)} has changed since its evaluation: once complete, it is evaluated again"
                    )
                if why := self._why_not(step, path):
                    self._tell_why(step, why)
                else:
                    ready[step] = path
        return ready

    def _is_another(self, step: int, path: Path) -> bool:
        """Returns True if a file of the checkpoint is new or has changed since its evaluation.

        Deleted files alone do not count: the trainer tidies up, or deletes the whole folder.
        """
        return not files_of(path).items() <= self._taken[step].files.items()

    def _why_not(self, step: int, path: Path) -> str:
        """Returns why the checkpoint is not evaluated now; empty if it is complete."""
        now, files = time.monotonic(), files_of(path)
        if step not in self._seen:
            self._seen[step] = _Seen(files, now)
            return "is new"
        seen = self._seen[step]
        if files != seen.files:
            seen.files, seen.since, seen.lacks = files, now, None
            return "is being written"
        if seen.lacks is None:
            seen.lacks = what_lacks(path)
        if not files:
            return "waits: it is empty"
        if seen.lacks:
            return f"waits: {seen.lacks}"
        # With ``denoiser=PATH``, the weights may be in a subfolder such as transformer/, with a config.json.
        wholes = [path, *path.glob("*/")] if self._key == DENOISER else [path]
        if not any(map(tells_all, wholes)) and now - seen.since < _QUIET:
            return f"waits: no file lists its parts; complete once unchanged for {_QUIET:.0f} s"
        return ""

    # Messages

    def _tell_why(self, step: int, why: str) -> None:
        seen, kind = self._seen[step], re.sub("[0-9]+", "", why)
        if why != "is new" and kind != seen.reported:
            seen.reported = kind
            say(f"{self._name(step)} {why}")

    def _tell_waiting(self) -> None:
        self._tell(f"watching {self._folder}: {self._counts()}; Ctrl-C ends this")

    def _tell(self, text: str) -> None:
        if text != self._reported:
            self._reported = text
            say(text)

    def _counts(self) -> str:
        done = sum(one.status == ExitStatus.COMPLETE for one in self._taken.values())
        parts = [f"{counted(done, 'checkpoint')} evaluated"]
        if failed := len(self._taken) - done:
            parts.append(f"{failed} not complete")
        if waiting := len(self._seen):
            parts.append(f"{waiting} not complete yet")
        return ", ".join(parts)

    # One run

    def _evaluate(self, ready: Mapping[int, Path]) -> ExitStatus:
        """Evaluates the first checkpoint in ``ready``, or all that have complete results of an earlier watch.

        A run over complete results takes no time. Returns the status of the run.
        """
        # A changed checkpoint may have results of its old weights: these do not count.
        done = {
            step: path for step, path in ready.items() if step not in self._anew and self._looks_done(step)
        }
        first = next(iter(ready))
        chosen = done or {first: ready[first]}
        names = ", ".join(map(self._name, chosen))
        say(
            f"{names}: complete{', and evaluated before' * bool(done)}; {len(ready) - len(chosen)} more ready"
        )
        files = {step: self._seen[step].files for step in chosen}
        status = self._run_of(chosen)
        if status not in (ExitStatus.COMPLETE, *_STOPPED.values()) and not self._keepers.all_work:
            say(f"{names}: once more, with the judge started again")
            status = self._run_of(chosen)
        for step, path in chosen.items():
            self._taken[step] = _Taken(status, files[step])
            self._seen.pop(step, None)
            if status != ExitStatus.COMPLETE and not path.exists():
                say(f"{self._name(step)}: {path} was deleted during its evaluation")
        return status

    def _looks_done(self, step: int) -> bool:
        cells = (self._options.cell(self._name(step), benchmark) for benchmark in self._options.benchmarks)
        try:
            return self._options.eval and all(
                (result := read_result(cell.result)).state == "complete"
                and result.limit == self._options.limit
                for cell in cells
            )
        except (OSError, ValueError):
            return False

    def _run_of(self, chosen: Mapping[int, Path]) -> ExitStatus:
        [kwargs] = self._options.models.values()
        models = {
            self._name(step): checkpoint_kwargs(kwargs, self._key, path) for step, path in chosen.items()
        }
        fds = list[int]()
        try:
            self._keepers.start(self._is_stopped)
            if self._stop is not None:
                return _STOPPED[self._stop]
            options = replace(self._options, models=models, bounds=self._own)
            plan = plan_run(self._keepers.with_judges(options), self._config)
            require(_FILES + _FILES_OF_CELL * len(plan.cells))
            locks = dict[str, int]()
            for key in sorted(plan.cells):
                for name in (".lock", LAUNCHERS_LOCK):
                    fds.append(lock_cell(cell_of(key), name=name))
                locks[key] = fds[-2]
            plan.save()
            fds.append(note_launcher(Path(plan.run_folder)))
            summary = run_plan(plan, locks)
            print_report(plan)
            return summary.status
        except (UserError, CellFailure, OSError) as error:
            complain(one_line(error))
            return ExitStatus.FAILED
        finally:
            for fd in fds:
                os.close(fd)
