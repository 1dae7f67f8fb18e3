"""The command line over the configuration."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from imageevalkit.errors import UserError
from imageevalkit.launch import __main__ as launch
from imageevalkit.launch.config import Config
from imageevalkit.launch.options import Options, help_text, parse_words, resolve


def options(argv: list[str], **scalars: str) -> Options:
    return resolve(parse_words(argv), Config(scalars=scalars))


def test_names_tolerate_spaces_empties_and_duplicates() -> None:
    got = options(["--model_names", " a ; b;a;", "--ds_names", "x;; x ;y "])
    assert (got.models, got.benchmarks) == (["a", "b"], ["x", "y"])


def test_config_names_and_command_line_precedence() -> None:
    config = Config(
        scalars={"ENABLE_EVAL": "false", "NUM_WORKERS": "9", "PARALLEL": "True"},
        arrays={"DS_NAMES": ["genai", "wiseedit"], "MODEL_NAMES": ["a"], "CUSTOM_MODEL_KWARGSES": ["s=1"]},
    )
    from_config = resolve({}, config)
    assert from_config.benchmarks == ["genai", "wiseedit"]
    assert from_config.model_kwargs == [{"s": 1}]
    assert (from_config.evaluate, from_config.num_workers, from_config.parallel) == (False, 9, True)
    over = resolve(parse_words(["--ds_names", "wiseedit;gedit", "--eval=true", "--num_workers", "2"]), config)
    assert over.benchmarks == ["wiseedit", "gedit"]
    assert (over.evaluate, over.num_workers) == (True, 2)


@pytest.mark.parametrize("word", ["true", "True", "1", "yes", "YES", "on"])
def test_true_words(word: str) -> None:
    assert options(["--model_names", "a", "--ds_names", "x", "--parallel", word]).parallel


@pytest.mark.parametrize("word", ["false", "False", "0", "no", "off"])
def test_false_words(word: str) -> None:
    assert not options(["--model_names", "a", "--ds_names", "x", "--infer", word]).infer


def test_duplicate_models_merge_their_kwargs_sets() -> None:
    got = options(["--model_names", "a;b;a", "--ds_names", "x", "--custom_model_kwargses", "k=1;;k=1"])
    assert dict(zip(got.models, got.model_kwargs, strict=True)) == {"a": {"k": 1}, "b": {}}


def test_quickstart_ignores_configured_names() -> None:
    config = Config(
        arrays={"MODEL_NAMES": ["mine"], "DS_NAMES": ["theirs"], "CUSTOM_MODEL_KWARGSES": ["a=1"]}
    )
    got = resolve(parse_words(["--quickstart"]), config)
    assert got.models == ["reference-typeset", "reference-noise"]
    assert got.benchmarks == ["quicktext"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--ds_name", "x"], "unknown option '--ds_name' (did you mean '--ds_names'?)"),
        (["longtext"], "unknown argument 'longtext'"),
        (["--ds_names"], "--ds_names needs a value"),
        (["--ds_names", "--infer", "true"], "--ds_names needs a value"),
        (["--model_names", "a", "--ds_names", " ; "], "--ds_names is empty"),
        (["--model_names", "a"], "no benchmarks given"),
        (["--model_names", "a", "--ds_names", "x", "--infer", "ture"], "did you mean 'true'?"),
        (["--model_names", "a", "--ds_names", "x", "--limit", "0"], "whole number of at least 1"),
        (["--model_names", "a", "--ds_names", "x", "--num_workers", "four"], "whole number"),
        (["--model_names", "a", "--ds_names", "x", "--infer", "no", "--eval", "no"], "nothing to do"),
        (["--model_names", "a;a", "--ds_names", "x", "--custom_model_kwargses", "k=1;k=2"], "named twice"),
        (["--model_names", "a", "--ds_names", "x", "--missing_items", "zero"], "withhold or official"),
        (["--model_names", "a", "--ds_names", "x", "--judges", "longtext"], "no benchmark=judge"),
    ],
)
def test_errors(argv: list[str], says: str) -> None:
    with pytest.raises(UserError) as caught:
        options(argv)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_flags_take_an_optional_truth_value() -> None:
    base: list[Any] = ["--model_names", "a", "--ds_names", "x"]
    assert options([*base, "--overwrite"]).overwrite
    assert not options([*base, "--overwrite", "false"]).overwrite
    assert options(["--overwrite", *base]).models == ["a"]


def test_help_names_every_option() -> None:
    for name in parse_words.__globals__["OPTIONS"]:
        assert name in help_text()


def test_a_relative_folder_of_images_stays_that_of_the_user_when_the_environment_is_made_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Started(Exception):
        """The launcher has become another process."""

    def start(program: str, words: list[str]) -> None:
        raise Started(words)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "ensure_driver_env", lambda: True)
    monkeypatch.setattr(os, "execv", start)
    monkeypatch.setattr(
        sys, "argv", ["launch", "--config-fd", "3", "--images", "mine", "--dry_run", "--ds-names", "x"]
    )
    with pytest.raises(Started) as started:
        launch.main()
    words = started.value.args[0]
    assert words[words.index("--config-fd") + 1] == "3"
    again = parse_words(words[words.index("--config-fd") + 2 :])
    assert again == {"--images": str(tmp_path / "mine"), "--dry_run": "true", "--ds_names": "x"}
