"""The command line of ``eval.sh`` and ``prefetch.sh``: subcommands, options, their help, and what extras add.

``python -m imageevalkit.cli.command_line WORDS`` prints the help or the mistakes in WORDS. It runs before any
environment exists, so this module imports the standard library only.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from imageevalkit.common.errors import ExitStatus, UserError, run_main, show, suggest
from imageevalkit.plan.config import OTHER, Config, Option
from imageevalkit.plan.options import GROUPS, TABLE, Options, is_set

if TYPE_CHECKING:
    from imageevalkit.jobs.plan import Plan
    from imageevalkit.run.display import RunSummary

EVAL, PREFETCH = "bash eval.sh", "bash eval.sh prefetch"
_DESCRIPTIONS = {
    EVAL: """
Generates with every model, scores with every benchmark, leaves one result per model × benchmark
in output/. Defaults come from config.sh; see docs/index.md.""",
    PREFETCH: """
Downloads and verifies what models and benchmarks need: give it the options of your run, and it gets
weights, authors' code, data and evaluators' weights. Complete files stay; interrupted downloads resume.
Without names: MODEL_NAMES and DS_NAMES of config.sh, else all benchmarks.""",
}
_EPILOGS = {
    EVAL: """
Exit status: 0 every result complete, 3 a result is incomplete, 4 a score fell (--gate), 1 a result failed,
2 nothing was started, 130 interrupted, 143 terminated.""",
    PREFETCH: "",
}
_TAKEN = {EVAL: ("", "taken", "decisive"), PREFETCH: ("taken", "decisive", "own")}
_SHARED = "as for eval.sh; its other options have no effect here"
_TRUTH = "true|false"

OF_OPTIONS: Mapping[str, Option] = {one.command: one for one in TABLE.values() if one.command}
"""The subcommands that stand for an option, by name."""
_RUN = "run"
_OTHERS = {
    _RUN: "evaluate models on benchmarks (the default)",
    "prefetch": "download the files of a run: utils/prefetch.sh",
    "env": "build the environment of a model or benchmark: utils/make_env.sh",
}
_WIDTH = 46


class _Parser(argparse.ArgumentParser):
    """The command-line parser of ``program``. It raises mistakes as a UserError of one line."""

    def __init__(self, program: str, command: str = "") -> None:
        self.command = command
        super().__init__(
            prog=f"{program} {command}" if command in OF_OPTIONS else program,
            usage=f"{program} {command or '[run]'} [options]" if program == EVAL else f"{program} [options]",
            description=_DESCRIPTIONS[program],
            epilog=_EPILOGS[program]
            if command
            else "\n".join(filter(None, [_commands(program), _EPILOGS[program]])),
            add_help=False,
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, 2, _WIDTH, 130),
        )
        self.known = {entry.name: entry for entry in TABLE.values() if entry.prefetch in _TAKEN[program]}
        groups: dict[str, argparse._ActionsContainer] = {}
        in_order = [*GROUPS, OTHER]
        for title in in_order if program == EVAL else ("options", _SHARED):
            groups[title] = self.add_argument_group(title)
        for entry in self.known.values():
            title = entry.group if program == EVAL else "options" if entry.prefetch == "own" else _SHARED
            is_shown = program == EVAL or entry.prefetch != "taken"
            _add(groups[title], entry, entry.help if is_shown else argparse.SUPPRESS)

    def error(self, message: str) -> NoReturn:
        words = message.removeprefix("argument ")
        if option := OF_OPTIONS.get(self.command):
            words = words.replace(f"{option.name}:", f"{self.command}:")
        raise UserError(f"{words}; see {self.prog} --help")


def _add(group: argparse._ActionsContainer, entry: Option, help: str) -> None:
    names = [entry.name] + ["-h"] * (entry.name == "--help")
    flag: dict[str, Any] = {} if entry.metavar else {"nargs": "?", "const": "true"}
    metavar: Any = entry.metavar or _TRUTH
    if entry.metavar.endswith("…"):
        flag, metavar = {"nargs": "*"}, entry.metavar.removesuffix("…")
    elif len(several := shlex.split(entry.metavar)) > 1:
        flag, metavar = {"nargs": len(several)}, tuple(several)
    group.add_argument(*names, dest=entry.name, metavar=metavar, help=help, **flag)


def _commands(program: str) -> str:
    """Returns the list of subcommands for the help of ``program``."""
    if program != EVAL:
        return ""
    lines = {f"{name} {one.metavar}".strip(): one.help for name, one in OF_OPTIONS.items()}
    told = "\n".join(f"  {name:<{_WIDTH - 2}}{help}" for name, help in {**_OTHERS, **lines}.items())
    return f"\nsubcommands ({EVAL} SUBCOMMAND --help):\n{told}"


_NAME = re.compile(r"(?<=^--)[^=]+")


def with_options(argv: Sequence[str]) -> list[str]:
    """Returns ``argv`` with the option in place of a subcommand: ``compare A B`` becomes ``--compare A B``."""
    if not argv or argv[0] not in {*OF_OPTIONS, _RUN}:
        return list(argv)
    if argv[0] == _RUN:
        return list(argv[1:])
    option = OF_OPTIONS[argv[0]]
    rest = list(argv[1:])
    count = next((n for n, word in enumerate(rest) if word.startswith("-")), len(rest))
    values = rest[:count]
    if ";" in option.metavar and values:
        values = [";".join(values)]
    return [option.name, *values, *rest[count:]]


def parse(argv: Sequence[str], program: str = EVAL) -> dict[str, Any]:
    """Returns the options on the command line ``argv``, by name; the last of repeated options wins.

    A value is a text, or a list of texts if the option takes several values. ``--name value``,
    ``--name=value`` and names with dashes (``--dry-run``) are accepted.

    Raises UserError: an option is unknown or lacks its value.
    """
    parser = _Parser(program, argv[0] if program == EVAL and argv and argv[0] in OF_OPTIONS else "")
    # argparse knows the names with underscores only
    words = [_NAME.sub(lambda name: name[0].replace("-", "_"), word) for word in with_options(argv)]
    given, unknown = parser.parse_known_args(words)
    if unknown:
        what = "option" if unknown[0].startswith("-") else "argument"
        names = parser.known if what == "option" else [*OF_OPTIONS, *_OTHERS]
        near = suggest(unknown[0].partition("=")[0], names)
        raise UserError(f"unknown {what} '{unknown[0]}'{near}; see {program} --help")
    return vars(given)


def _help_of(command: str) -> str:
    """Returns the help of a subcommand that stands for an option."""
    option = OF_OPTIONS[command]
    values = re.sub("(.+)…", r"[\1 ...]", option.metavar)
    parser = argparse.ArgumentParser(
        usage=f"{EVAL} {command} {values}".rstrip(),
        description=option.help,
        epilog=f"The same as {EVAL} {option.name}. All options: {EVAL} {_RUN} --help",
        add_help=False,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, 2, _WIDTH, 130),
    )
    for entry in TABLE.values():
        if command in entry.listed_with:
            _add(parser, entry, entry.help)
    return parser.format_help()


@dataclass(frozen=True)
class Command:
    """A command that takes the place of a run if its ``option`` is on the command line.

    ``run`` gets the options by name, the configuration and the user's folder. It returns the exit status and
    may raise UserError and CellFailure. ``uses_results``: the command only reads results, so options that ask
    for a run contradict it.
    """

    option: str
    run: Callable[[Mapping[str, Any], Config, Path], ExitStatus]
    uses_results: bool = True


@dataclass(frozen=True)
class Scheduler:
    """Runs the plan of a run in several steps if its ``option`` is on the command line.

    ``run`` gets the options, the configuration, the plan of the whole run and the descriptors that lock its
    cells. ``describe`` returns the line that a dry run prints below the plan.
    """

    option: str
    run: Callable[[Options, Config, Plan, dict[str, int]], RunSummary]
    describe: Callable[[Options], str]


class ResultsHook:
    """Work on the results in ``output/``, at the end of a run or without one.

    Any option of the extra asks for it. ``wants_report``: without a run, the report is written first.
    """

    wants_report: ClassVar[bool] = False

    def __init__(self, options: Options) -> None:
        self.given = options

    def prepare(self, plan: Plan | None) -> None:
        """Checks whether the work can be done, before a run (``plan``) starts or, without one (None), at once.

        Raises UserError if it cannot.
        """

    def finish(self, failed: Mapping[str, str] | None) -> ExitStatus:
        """Does the work. ``failed`` has the reason of failure ("": none) of each cell of the run; None: no run.

        Raises UserError, CellFailure.
        """
        return ExitStatus.COMPLETE


def main() -> ExitStatus:
    """Prints the help if ``--help`` is given. Raises UserError: an option is unknown or lacks its value."""
    words = sys.argv[1:]
    program = PREFETCH if words[:1] == ["--prefetch"] else EVAL
    words = words[program == PREFETCH :]
    command = words[0] if program == EVAL and words and words[0] in {*OF_OPTIONS, _RUN} else ""
    if command in OF_OPTIONS and {"-h", "--help"} & set(words):
        show(_help_of(command).rstrip())
    elif is_set(parse(words, program), "--help"):
        show(_Parser(program, command).format_help().rstrip())
    return ExitStatus.COMPLETE


if __name__ == "__main__":
    run_main(main)
