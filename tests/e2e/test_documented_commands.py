"""The commands in README and docs are commands that the toolkit takes.

A block of bash without a title runs on any machine: it has a plan here without blocked results. The title of
another block says what it needs; its command lines must be well-formed. ``tests/e2e/test_eval_sh.py`` and the tests of
guides run some of them in earnest.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from imageevalkit.cli.command_line import EVAL, PREFETCH, parse
from imageevalkit.plan.config import Config
from imageevalkit.plan.options import options_over, resolve
from imageevalkit.plan.planner import make_plan
from imageevalkit.store.cell import REPO
from tests.support.checkout import run_command
from tests.support.documentation import Block, blocks, name_of, pages

# Runs a block and prints the words of each `bash …` in it. Without PATH, no other program is found.
_RECORDER = r"""
PATH=
bash() { printf '%s\0' "$@"; printf '\1\0'; }
echo() { :; }
command_not_found_handle() { :; }
"""


def commands(block: Block) -> list[list[str]]:
    """Returns the words of each ``bash`` command in ``block``, with bash's own arrays and quotes."""
    run = run_command(["bash", "-c", f"{_RECORDER}\n{block.text}\n:"], cwd=Path("/"), env={})
    assert "syntax error" not in run.stderr and "unexpected" not in run.stderr, run.stderr
    return [words.split("\0")[:-1] for words in run.stdout.split("\1\0") if words]


def documented() -> Iterator[tuple[str, Block]]:
    """Returns each block of bash with the name of its page."""
    for page in pages():
        for number, block in enumerate(blocks(page)):
            if block.language == "bash":
                yield f"{name_of(page)}:{number}", block


BLOCKS = dict(documented())


@pytest.fixture(autouse=True)
def results_of_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are made for an empty output folder, with a key, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("API_KEY", "EMPTY")


@pytest.mark.parametrize("place", BLOCKS)
def test_the_commands_of_a_block_are_well_formed(place: str, tmp_path: Path) -> None:
    block = BLOCKS[place]
    for program, *words in commands(block):
        assert block.title or (REPO / program).is_file(), program
        if program == "utils/prefetch.sh" or (program == "eval.sh" and words[:1] == ["prefetch"]):
            options_over(parse(words[words[:1] == ["prefetch"] :], PREFETCH), Config())
        elif program == "eval.sh" and words[:1] != ["env"] and "--help" not in words:
            given = parse(words, EVAL)
            if given.keys() & {"--model_names", "--quickstart"}:
                options = replace(resolve(given, Config()), needs_keys="--dry_run" not in given)
                if not block.title:
                    if options.images:  # a command before this one writes them
                        (tmp_path / options.images).mkdir(parents=True)
                    assert make_plan(options, Config()).blocked == {}
            else:
                options_over(given, Config())


@pytest.mark.parametrize("script", ["perf.sh", "test.sh"])
def test_help_prints_the_usage_and_starts_nothing(script: str, tmp_path: Path) -> None:
    shutil.copy(REPO / script, tmp_path)  # without the tree beside it, it can start nothing
    shown = run_command(["bash", tmp_path / script, "--help"])
    assert (shown.returncode, shown.stderr) == (0, "")
    assert f"bash {script} " in shown.stdout
