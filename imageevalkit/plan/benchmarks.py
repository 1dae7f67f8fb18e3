"""The benchmarks, judges and the prompt rewriter that the user chose: their settings and requirements."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from imageevalkit import registry
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.assets import BenchmarkFiles, HubAsset, Needed, Needs
from imageevalkit.assets.check import missing_path, weights_at, why_missing
from imageevalkit.benchmark.contract import JUDGE, Benchmark, Measurer, Settings, benchmark_code
from imageevalkit.common.errors import CellFailure, UserError, said_of, suggest
from imageevalkit.common.guest_code import guest_code
from imageevalkit.common.text import some
from imageevalkit.judges.choice import JudgeChoice, is_judge
from imageevalkit.plan.config import Config, parse_kwargs
from imageevalkit.plan.models import DATASETS, check_class
from imageevalkit.store.cell import REPO
from imageevalkit.store.items import entries_of

T = TypeVar("T")

_ENCODERS = "oneig"
"""The environment of image encoders if EVAL_ENV_MAP names none."""


class ConfiguredJudge(NamedTuple):
    """A judge. ``kwargs`` are the user's settings over the settings of its entry in the registry."""

    choice: JudgeChoice
    kwargs: Mapping[str, Any]

    @property
    def backend(self) -> str:
        """The backend that runs the judge: openai, transformers or vllm."""
        return self.choice.setting.backend

    @property
    def model_path(self) -> str:
        """The model id of an API, a hub id, or a local folder."""
        return self.choice.setting.model_path

    @property
    def runs_elsewhere(self) -> bool:
        """True if the judge is behind an API or on a server that already runs."""
        return self.backend == "openai" or bool(self.backend == "vllm" and self.kwargs.get("base_url"))

    def endpoint(self, needs_key: bool = True) -> Endpoint:
        """Returns the endpoint of a judge that runs elsewhere. Raises UserError as :meth:`Endpoint.of`."""
        if self.backend == "vllm" and not self.kwargs.get("api_key_env"):
            return Endpoint.without_key(str(self.kwargs["base_url"]), "base_url")
        return Endpoint.of(self.kwargs, needs_key=needs_key)

    @property
    def weights(self) -> list[Needed]:
        """The weights of the judge on this machine; empty if it runs elsewhere."""
        if self.runs_elsewhere:
            return []
        return [weights_at(self.model_path, self.kwargs.get("revision"))]

    def environment(self, config: Config) -> str:
        """Return the environment of the judge on this machine: its own setting, else its backend's."""
        own = self.kwargs.get("environment")
        named = config.map("EVAL_ENV_MAP").get(self.backend, self.backend)
        return str(named if own is None else own)


@dataclass(frozen=True)
class BenchmarkChoice:
    """A benchmark with its settings and its judge in this run.

    ``benchmark`` is None for a foreign benchmark, which has no class here. ``settings`` are the user's
    settings, checked, as JSON values. ``asked`` is the full name of the judge or the name of the text reader;
    empty if neither is asked. ``judge`` is None unless ``asked`` is a judge.
    """

    name: str
    task: str
    benchmark: Benchmark | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    asked: str = ""
    judge: ConfiguredJudge | None = None

    @property
    def script(self) -> Path:
        """The path of the script that evaluates the benchmark, if it is foreign or a user has added one."""
        return REPO / "eval" / f"{self.name}.sh"

    @property
    def needs_all_items(self) -> str:
        """Why ``--until`` cannot stop the benchmark early; empty if it can."""
        if self.benchmark is None:
            return f"{self.script.relative_to(REPO).as_posix()} evaluates all of its images together"
        return self.benchmark.needs_all_items

    @property
    def files(self) -> BenchmarkFiles:
        """The files that prefetch downloads for the benchmark."""
        return self.benchmark.files() if self.benchmark else BenchmarkFiles(self.name)

    @cached_property
    def uses_encoders(self) -> bool:
        """True if the benchmark uses metric models on a GPU."""
        return "gpu" in self._places

    @property
    def only_asks(self) -> bool:
        """True if the only evaluator is a judge behind an endpoint."""
        return self.judge is not None and self.judge.backend != "transformers" and not self._places

    @property
    def measurers(self) -> list[str]:
        """The metric models and text readers of the benchmark, with their options."""
        return list(dict.fromkeys(map(repr, self._measurers())))

    @cached_property
    def _places(self) -> set[str]:
        return {registry.measurer_setting(measurer.name).place for measurer in self._measurers()}

    def _measurers(self) -> Iterator[Measurer]:
        for measurer in self.benchmark.measurers.values() if self.benchmark else ():
            if measurer != JUDGE:
                yield measurer
        if self.asked and ":" not in self.asked:  # a reader in the place of a judge
            yield Measurer(self.asked, {"weights": self.settings.get("weights", {})})

    @property
    def evaluators(self) -> list[str]:
        """The names of the evaluators, the judge first; for a foreign benchmark its script. May be empty."""
        if self.benchmark is None:
            return [self.script.relative_to(REPO).as_posix()]
        backend, _, name = self.asked.partition(":")
        known = registry.judge_setting(name)
        asked = name if known and known.backend == backend else self.asked
        # a metric model of the benchmark itself is called by its class
        names = [asked, *(measurer.name.rpartition(":")[2] for measurer in self._measurers())]
        return list(dict.fromkeys(filter(None, names)))

    @cached_property
    def own_script(self) -> Path | None:
        """The user's own script; None if there is none beside this toolkit's."""
        own, ours = self.script, REPO / "utils" / "evaluate.sh"
        # git without symbolic links checks out files that hold the target of the link
        links = (ours.read_bytes().strip(), b"../utils/evaluate.sh")
        return own if own.is_file() and own.read_bytes().strip() not in links else None

    def check_script(self) -> None:
        """Raise CellFailure if the benchmark is foreign and its script is missing."""
        if self.benchmark is None and not self.script.is_file():
            raise CellFailure(
                f"benchmark {self.name} has no evaluation script: eval/{self.name}.sh is missing"
            )

    def environment(self, config: Config) -> str:
        """Return the environment of the evaluation, or several separated by spaces; empty if any will do.

        EVAL_ENV_MAP comes first. Then follows the environment of image encoders if the benchmark uses some.
        The last is one called like the benchmark, if its metric models do not run in the driver's
        environment.
        """
        environments = config.map("EVAL_ENV_MAP")
        shared = environments.get("encoders", _ENCODERS) if self._shares_encoders else ""
        return environments.get(self.name) or shared or (self.name if self._places - {"driver"} else "")

    def build(self, config: Config) -> str:
        """Return the options of ``make_env.sh`` that build the :meth:`environment`."""
        shares = self._shares_encoders and not config.map("EVAL_ENV_MAP").get(self.name)
        return f"--benchmark {'encoders' if shares else self.name}"

    @cached_property
    def _shares_encoders(self) -> bool:
        """True if the benchmark uses image encoders, which share one environment across benchmarks."""
        return any(
            registry.measurer_setting(measurer.name).kind == "encoder" for measurer in self._measurers()
        )

    @cached_property
    def own_assets(self) -> tuple[Needed, ...]:
        """The files that the evaluation needs besides the data and the judge."""
        found: list[Needed] = [*self.files.placed]
        for measurer in self._measurers():
            found += registry.measurer_assets(*measurer)
        return tuple(dict.fromkeys(found))

    @property
    def needs(self) -> Needs:
        """The files that the evaluation needs besides the data."""
        if self.judge is None:
            return Needs(self.own_assets)
        name = self.judge.choice.name
        remark = f"its judge {name} is asked over the network" if self.judge.runs_elsewhere else ""
        return Needs((*self.own_assets, *self.judge.weights), remark)

    def lacks(self) -> str:
        """Return the weights of metric models that are missing and that only prefetch downloads, or ""."""
        lines = (line for one in self._measurers() for line in registry.measurer_missing(*one))
        return some(list(dict.fromkeys(lines)))

    def missing_weights(self, named: str, has_paths_here: bool = True) -> str:
        """Return one line on missing files of the evaluators, with the command that gets them; "" if none.

        Args:
            named: The judge that the user chose.
            has_paths_here: False if local paths belong to another machine.
        """
        placed = self.files.placed
        if has_paths_here and (problem := missing_path(self.needs.assets)):
            return f"benchmark {self.name}: judge: {problem}"
        assets = (asset for asset in self.needs.assets if isinstance(asset, HubAsset) or asset in placed)
        options = f"--ds_names {self.name}" + f' --judges "{self.name}={named}"' * bool(named)
        missing = why_missing(assets, options)
        return missing and f"benchmark {self.name}: {missing}"

    def given(self, mark: str) -> list[str]:
        """Return the names of the user's settings whose fields have the metadata ``mark``."""
        known = fields(self.benchmark.settings) if self.benchmark else ()
        return [one.name for one in known if one.metadata.get(mark) and one.name in self.settings]

    def check_dataset_class(self) -> None:
        """Raise CellFailure if the file of a foreign dataset below infer/ is missing or lacks its class."""
        if setting := None if self.benchmark else registry.foreign_dataset(self.name):
            where = f"benchmark '{self.name}': DATASET_SETTINGS['{self.name}']"
            check_class(setting.module, setting.class_name, where, DATASETS)

    def check_dataset(self) -> int:
        """Read the whole dataset and return the number of its entries. Raises CellFailure if that fails."""
        try:
            # a dataset class may print
            with guest_code(), contextlib.redirect_stdout(sys.stderr):
                return len(entries_of(registry.load_dataset(self.name, self.settings), self.name))
        except CellFailure:
            raise
        except Exception as error:
            raise CellFailure(
                f"benchmark {self.name}: its dataset cannot be read: {said_of(error)}"
            ) from error


def choose_benchmark(
    config: Config,
    name: str,
    judge: str = "",
    judge_kwargs: Mapping[str, Any] | None = None,
    ds_kwargs: Mapping[str, Any] | None = None,
    hint: str = "",
) -> BenchmarkChoice:
    """Return the benchmark ``name`` with its checked settings and its judge.

    ``judge`` is empty for the benchmark's own judge. ``ds_kwargs`` override DS_KWARGS_MAP. ``judge_kwargs``
    override JUDGE_KWARGS_MAP, which overrides the judge's entry. ``hint`` ends the message about a wrong
    setting.

    Raises:
        UserError: A name, setting or judge is unknown, or the configuration is malformed.
        CellFailure: The class cannot be read or fails, or names a wrong judge or metric model itself.
    """
    cls = registry.benchmark_class(name)
    text = config.map("DS_KWARGS_MAP").get(name, "")
    given = {**parse_kwargs(text, f"DS_KWARGS_MAP['{name}'] in config.sh"), **(ds_kwargs or {})}
    if cls is None:
        return _foreign(name, given, judge)
    try:
        settings = _checked(cls, given)
    except UserError as error:
        raise UserError(f"{error}{hint}") from None
    benchmark = registry.make_benchmark(name, settings, "")
    if benchmark.measurers and JUDGE not in benchmark.measurers.values():
        asked = ""  # a configured judge may be meant for other settings
    else:
        with contextlib.nullcontext() if judge else _own_words(cls):
            asked = _judge(benchmark, judge)
        benchmark = registry.make_benchmark(name, settings, asked)
    with contextlib.nullcontext() if judge or given else _own_words(cls), benchmark_code(name, "check()"):
        benchmark.check()
    configured = None
    if is_judge(asked):
        found = registry.choose_judge(asked)
        texts = config.map("JUDGE_KWARGS_MAP")
        text = texts.get(found.full_name) or texts.get(found.name) or ""
        kwargs = {**found.setting.kwargs, **parse_kwargs(text, "JUDGE_KWARGS_MAP in config.sh")}
        configured = ConfiguredJudge(found, {**kwargs, **(judge_kwargs or {})})
    choice = BenchmarkChoice(name, cls.task, benchmark, settings, asked, configured)
    with _own_words(cls):
        _ = choice.uses_encoders
    return choice


@contextlib.contextmanager
def _own_words(cls: type[Benchmark]) -> Iterator[None]:
    """Turn a UserError in the block into a CellFailure: the class is wrong, not the user.

    Raises CellFailure: the block raised UserError.
    """
    try:
        yield
    except UserError as error:
        raise CellFailure(f"benchmark {cls.name} ({registry.file_of(cls)}): {error}") from None


def _foreign(name: str, given: Mapping[str, Any], judge: str) -> BenchmarkChoice:
    foreign = registry.foreign_dataset(name)
    if foreign is None:
        broken = dict.fromkeys(registry.broken_benchmarks().values())
        plugins = registry.plugin_names("benchmarks")
        near = suggest(name, [*registry.benchmark_tasks(), *registry.broken_benchmarks(), *plugins])
        unread = (
            "; ".join(["", "it may be in a file that cannot be read", *broken]) if broken and not near else ""
        )
        raise UserError(f"unknown benchmark '{name}'{near}; bash eval.sh --list shows the names{unread}")
    if given:
        raise UserError(f"benchmark {name} takes no settings, but '{next(iter(given))}' is given")
    return BenchmarkChoice(name, foreign.task, asked=_no_judge(name, judge))


def _checked(cls: type[Benchmark], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings ``given`` as JSON values. Raises UserError: ``cls`` does not have such settings."""
    if not given:
        return {}
    where = f"benchmark {cls.name}"
    if cls.settings_class is Settings and not cls.has_corrected_rules:
        raise UserError(f"{where} takes no settings, but '{next(iter(given))}' is given")
    settings = checked(cls.settings_class, given, where)
    if settings.rules != "official" and not cls.has_corrected_rules:
        raise UserError(f"{where}: it has official rules only, not {settings.rules}")
    with benchmark_code(cls.name, "a setting that is no JSON value"):
        return {name: msgspec.to_builtins(getattr(settings, name)) for name in given}


def _judge(benchmark: Benchmark, judge: str) -> str:
    """Return the full name of the judge, or the name of the reader; "" for neither. Raises UserError."""
    if not benchmark.judge:
        return _no_judge(benchmark.name, judge)
    where = "--judges or JUDGE_MAP: " * bool(judge)
    judge = judge or benchmark.judge
    if benchmark.takes and ":" not in judge and registry.judge_setting(judge) is None:
        try:
            registry.measurer_setting(judge, benchmark.takes)
        except UserError as error:
            raise UserError(f"{where}{error}") from None
        return judge
    if judge in registry.measurer_names():
        raise UserError(
            f"benchmark {benchmark.name} does not take '{judge}' (takes in benchmark.py): "
            f"name a judge, one of {', '.join(registry.judges())} or any model as backend:model"
        )
    return registry.choose_judge(judge).full_name


def _no_judge(name: str, judge: str) -> str:
    if judge:
        raise UserError(f"benchmark {name} does not let you choose a judge (asked for '{judge}')")
    return ""


_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}


def checked(cls: type[T], given: Mapping[str, Any], where: str, remark: str = "") -> T:
    """Return the dataclass ``cls`` with the settings ``given`` and the defaults of all others.

    ``where`` begins a message ("judge 'x' of wise"), ``remark`` follows the list of known names.

    Raises UserError: a setting is unknown, or its value is invalid.
    """
    hints = get_type_hints(cls)
    known = [each.name for each in fields(cls)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise UserError(
                f"{where}: there is no setting '{name}'{suggest(name, known)}; known: {', '.join(known)}{remark}"
            )
    try:
        return msgspec.convert(dict(given), cls)
    except UserError as error:  # raised by the class itself
        raise UserError(f"{where}: {error}") from None
    except msgspec.ValidationError as error:
        raise UserError(f"{where}: {_in_words(str(error), given, hints)}") from None


def _in_words(problem: str, given: Mapping[str, Any], hints: Mapping[str, Any]) -> str:
    """Return the ``problem`` of msgspec ("Expected `int | null`, got `str` - at `$.size`") in plain words."""
    place = re.search(r" - at `\$\.(\w+)", problem)
    if place is None:
        return problem
    name = place[1]
    value, hint = given[name], hints[name]
    if get_origin(hint) is Literal:
        choices = [str(choice) for choice in get_args(hint)]
        return f"{name} must be {' or '.join(choices)}, not {value!r}{suggest(str(value), choices)}"
    if expected := re.match(r"Expected `([\w |]+)`", problem):
        kinds = [_WORDS.get(kind, kind) for kind in expected[1].split(" | ")]
        return f"{name} must be {' or '.join(kinds)}, not {value!r}"
    return f"{name}: {problem}"
