"""The command line over the configuration."""

from __future__ import annotations

import sys

import pytest

from imageevalkit.cli.__main__ import _command
from imageevalkit.cli.command_line import main, parse
from imageevalkit.common.errors import UserError
from imageevalkit.plan.config import Config
from imageevalkit.plan.options import TABLE, Options, resolve
from tests.support.extras import needs_extra


def options(argv: list[str], **scalars: str) -> Options:
    return resolve(parse(argv), Config(scalars=scalars))


def test_names_tolerate_spaces_empties_and_duplicates() -> None:
    got = options(["--model_names", " a ; b;a;", "--ds_names", "x;; x ;y "])
    assert ([*got.models], got.benchmarks) == (["a", "b"], ["x", "y"])


def test_config_names_and_command_line_precedence() -> None:
    config = Config(
        scalars={"ENABLE_EVAL": "false", "NUM_WORKERS": "9", "PARALLEL": "True"},
        arrays={"DS_NAMES": ["genai", "wiseedit"], "MODEL_NAMES": ["a"], "CUSTOM_MODEL_KWARGSES": ["s=1"]},
    )
    from_config = resolve({}, config)
    assert from_config.benchmarks == ["genai", "wiseedit"]
    assert from_config.models == {"a": {"s": 1}}
    assert (from_config.eval, from_config.num_workers, from_config.parallel) == (False, 9, True)
    over = resolve(parse(["--ds_names", "wiseedit;gedit", "--eval=true", "--num_workers", "2"]), config)
    assert over.benchmarks == ["wiseedit", "gedit"]
    assert (over.eval, over.num_workers) == (True, 2)


def test_words_of_truth() -> None:
    words = dict.fromkeys(["true", "1", "YES", "on"], True) | dict.fromkeys(
        ["False", "0", "no", "off"], False
    )
    for word, truth in words.items():
        assert options(["--model_names", "a", "--ds_names", "x", "--infer", word]).infer is truth


def test_duplicate_models_merge_their_kwargs_sets() -> None:
    got = options(["--model_names", "a;b;a", "--ds_names", "x", "--custom_model_kwargses", "k=1;;k=1"])
    assert got.models == {"a": {"k": 1}, "b": {}}


def test_quickstart_ignores_configured_names() -> None:
    config = Config(
        arrays={"MODEL_NAMES": ["mine"], "DS_NAMES": ["theirs"], "CUSTOM_MODEL_KWARGSES": ["a=1"]}
    )
    got = resolve(parse(["--quickstart"]), config)
    assert [*got.models] == ["shapes-tiny", "shapes-tiny-early"]
    assert got.benchmarks == ["quickshapes"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--ds_name", "x"], "unknown option '--ds_name' (did you mean '--ds_names'?)"),
        (["--ds_names"], "--ds_names: expected one argument"),
        (["--model_names", "a", "--ds_names", " ; "], "--ds_names is empty"),
        (["--model_names", "a"], "no benchmarks given"),
        (["--model_names", "a", "--ds_names", "x", "--infer", "ture"], "did you mean 'true'?"),
        (["--model_names", "a", "--ds_names", "x", "--limit", "0"], "whole number of at least 1"),
        (["--model_names", "a", "--ds_names", "x", "--infer", "no", "--eval", "no"], "nothing to do"),
        (["--model_names", "a;a", "--ds_names", "x", "--custom_model_kwargses", "k=1;k=2"], "named twice"),
    ],
)
def test_errors(argv: list[str], says: str) -> None:
    with pytest.raises(UserError) as caught:
        options(argv)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_help_names_every_option_that_a_program_takes_and_no_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = {}
    for words in (["--help"], ["--prefetch", "-h"]):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["options", *words])
            main()
        shown[words[0]] = {line.split()[0] for line in capsys.readouterr().out.splitlines() if "  --" in line}
    of = {
        use: {e.name for e in TABLE.values() if e.prefetch == use} for use in ("", "taken", "decisive", "own")
    }
    assert shown["--help"] == of[""] | of["taken"] | of["decisive"]
    assert shown["--prefetch"] == of["decisive"] | of["own"]


@needs_extra("dry_run")
def test_names_may_be_spelt_with_dashes_and_values_after_an_equals_sign() -> None:
    assert parse(["--model-names=a=b", "--ds_names", "x", "--dry-run"]) == {
        "--model_names": "a=b",
        "--ds_names": "x",
        "--dry_run": "true",
    }
    assert parse(["--limit", "1", "--limit=2"]) == {"--limit": "2"}, "the last one counts"


@needs_extra("adopt")
def test_an_empty_value_takes_back_what_config_sh_says() -> None:
    base = ["--model_names", "a", "--ds_names", "x"]
    assert options(base, REQUESTS_PER_MINUTE="60").requests_per_minute == 60
    assert options([*base, "--requests_per_minute", ""], REQUESTS_PER_MINUTE="60").requests_per_minute is None
    with pytest.raises(UserError, match="--images is empty"):
        options([*base, "--images="])


def test_a_map_that_is_none_is_told() -> None:
    with pytest.raises(UserError, match=r"sets JUDGE_MAP to the wrong kind of value: write JUDGE_MAP=\("):
        options(["--model_names", "a", "--ds_names", "x"], JUDGE_MAP="wise")


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("run --model_names a", "--model_names a"),
        ("report one two --sort_by x", "--report one two --sort_by x"),
        pytest.param("vote a.json b.json", "--votes a.json;b.json", marks=needs_extra("votes")),
    ],
)
def test_a_subcommand_is_its_option(short: str, long: str) -> None:
    assert parse(short.split()) == parse(long.split())


@needs_extra("dry_run", "listing", "watch")
def test_one_command_at_a_time() -> None:
    assert _command({"--list": "false", "--limit": "1"}) is None
    listing = _command({"--list": "true"})
    assert listing is not None and listing.option == "--list"
    with pytest.raises(UserError, match="--dry_run and --watch exclude each other: leave one out"):
        _command({"--dry_run": "true", "--watch": "runs"})
