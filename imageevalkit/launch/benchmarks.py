"""The benchmarks, judges and the prompt rewriter of a run as the user chose them: settings, and what they take."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit import registry
from imageevalkit.assets import BenchmarkFiles, HubAsset, Needed, Needs
from imageevalkit.assets.check import missing_path, weights_at, why_missing
from imageevalkit.benchmark.contract import JUDGE, Benchmark, Measurer, Settings, benchmark_code
from imageevalkit.cell import REPO
from imageevalkit.cell.items import entries_of
from imageevalkit.errors import CellFailure, UserError, said_of, suggest
from imageevalkit.guest_code import guest_code
from imageevalkit.judges.choice import JudgeChoice, is_judge
from imageevalkit.launch.config import Config, checked, parse_kwargs
from imageevalkit.launch.models import DATASETS, check_class
from imageevalkit.requests.endpoint import Endpoint
from imageevalkit.rewriting.rewriter import Rewriter
from imageevalkit.text import some

_ENCODERS = "oneig"
"""The environment of image encoders where EVAL_ENV_MAP does not say."""


class ConfiguredJudge(NamedTuple):
    """A judge with the user's settings of it, ``kwargs``, over those of its entry in the registry."""

    choice: JudgeChoice
    kwargs: Mapping[str, Any]

    @property
    def backend(self) -> str:
        """What runs it: openai, transformers or vllm."""
        return self.choice.setting.backend

    @property
    def model_path(self) -> str:
        """The id an API knows, a hub id, or a local folder."""
        return self.choice.setting.model_path

    @property
    def runs_elsewhere(self) -> bool:
        """Whether it is only asked, at an API or a server that runs already."""
        return self.backend == "openai" or bool(self.backend == "vllm" and self.kwargs.get("base_url"))

    def endpoint(self, needs_key: bool = True) -> Endpoint:
        """Returns the endpoint of a judge that runs elsewhere. Raises UserError as :meth:`Endpoint.of`."""
        if self.backend == "vllm" and not self.kwargs.get("api_key_env"):
            return Endpoint.without_key(str(self.kwargs["base_url"]), "base_url")
        return Endpoint.of(self.kwargs, needs_key=needs_key)

    @property
    def weights(self) -> list[Needed]:
        """Those that it takes on this machine; none where it runs elsewhere."""
        if self.runs_elsewhere:
            return []
        return [weights_at(self.model_path, self.kwargs.get("revision"))]

    def environment(self, config: Config) -> str:
        """The environment in which it runs on this machine: its own setting, else that of its backend."""
        own = self.kwargs.get("environment")
        named = config.map("EVAL_ENV_MAP").get(self.backend, self.backend)
        return str(named if own is None else own)


def chosen_rewriter(config: Config, name: str, given: Mapping[str, Any]) -> Rewriter:
    """The rewriter ``name``: settings ``given`` over REWRITER_KWARGS_MAP.

    Raises UserError: there is none, or the settings are not its own.
    """
    texts = config.map("REWRITER_KWARGS_MAP")
    cls: type[Rewriter] = registry.rewriter_class(name)
    kwargs = {**parse_kwargs(texts.get(name, ""), f"REWRITER_KWARGS_MAP['{name}'] in config.sh"), **given}
    remark = " (request parameters go into extra_body)"
    return cls(checked(cls.settings_class, kwargs, f"prompt rewriter '{name}'", remark))


@dataclass(frozen=True)
class BenchmarkChoice:
    """A benchmark with the settings and the judge of a run.

    ``benchmark`` is None for a foreign one, of which nothing else is known. ``settings`` are those that the user gave,
    checked, as JSON values. ``asked`` is the full name of the judge or the name of the reader of text; empty where
    neither is asked. ``judge`` is that judge.
    """

    name: str
    task: str
    benchmark: Benchmark | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    asked: str = ""
    judge: ConfiguredJudge | None = None

    @property
    def script(self) -> Path:
        """That which evaluates it, if it is foreign or a user has put one there."""
        return REPO / "eval" / f"{self.name}.sh"

    @property
    def needs_all_items(self) -> str:
        """Why ``--until`` cannot stop it early; empty if it may."""
        if self.benchmark is None:
            return f"{self.script.relative_to(REPO).as_posix()} evaluates all of its images together"
        return self.benchmark.needs_all_items

    @property
    def files(self) -> BenchmarkFiles:
        """What prefetch gets for it."""
        return self.benchmark.files() if self.benchmark else BenchmarkFiles(self.name)

    @cached_property
    def uses_encoders(self) -> bool:
        """Whether it measures with networks of its own, that take a GPU."""
        return "gpu" in self._places

    @property
    def only_asks(self) -> bool:
        """Whether nobody measures but a judge behind an endpoint."""
        return self.judge is not None and self.judge.backend != "transformers" and not self._places

    @cached_property
    def _places(self) -> set[str]:
        return {registry.measurer_setting(measurer.name).place for measurer in self._measurers()}

    def _measurers(self) -> Iterator[Measurer]:
        for measurer in self.benchmark.measurers.values() if self.benchmark else ():
            if measurer != JUDGE:
                yield measurer
        if self.asked and ":" not in self.asked:  # one in the place of a judge
            yield Measurer(self.asked, {"weights": self.settings.get("weights", {})})

    @property
    def evaluators(self) -> list[str]:
        """Who measures, as a user would name them: the judge first; of a foreign one its script. Empty: nobody."""
        if self.benchmark is None:
            return [self.script.relative_to(REPO).as_posix()]
        backend, _, name = self.asked.partition(":")
        known = registry.judges().get(name)
        asked = name if known and known.backend == backend else self.asked
        # one of the benchmark's own is named by its class
        names = [asked, *(measurer.name.rpartition(":")[2] for measurer in self._measurers())]
        return list(dict.fromkeys(filter(None, names)))

    @cached_property
    def own_script(self) -> Path | None:
        """The script that a user has put in the place of ours; None where that is the one there is."""
        own, ours = self.script, REPO / "utils" / "evaluate.sh"
        # where a checkout has no links, eval/ has files that hold where these would lead
        links = (ours.read_bytes().strip(), b"../utils/evaluate.sh")
        return own if own.is_file() and own.read_bytes().strip() not in links else None

    def check_script(self) -> None:
        """Whether a foreign one has its script. Raises CellFailure."""
        if self.benchmark is None and not self.script.is_file():
            raise CellFailure(
                f"benchmark {self.name} has no evaluation script: eval/{self.name}.sh is missing"
            )

    def environment(self, config: Config) -> str:
        """That of EVAL_ENV_MAP (several are separated by spaces), else that of image encoders where it has some, else
        one of its own where it measures with what the driver's lacks. Empty: it has no wish.
        """
        environments = config.map("EVAL_ENV_MAP")
        shared = environments.get("encoders", _ENCODERS) if self._shares_encoders else ""
        return environments.get(self.name) or shared or (self.name if self._places - {"driver"} else "")

    def build(self, config: Config) -> str:
        """What :meth:`environment` is made with: the options of ``make_env.sh``."""
        shares = self._shares_encoders and not config.map("EVAL_ENV_MAP").get(self.name)
        return f"--benchmark {'encoders' if shares else self.name}"

    @cached_property
    def _shares_encoders(self) -> bool:
        """Whether it measures with image encoders, which have one environment for all benchmarks."""
        return any(
            registry.measurer_setting(measurer.name).kind == "encoder" for measurer in self._measurers()
        )

    @cached_property
    def own_assets(self) -> tuple[Needed, ...]:
        """What evaluating it takes besides its data and its judge."""
        found: list[Needed] = [*self.files.placed]
        for measurer in self._measurers():
            found += registry.measurer_assets(*measurer)
        return tuple(dict.fromkeys(found))

    @property
    def needs(self) -> Needs:
        """What evaluating it takes besides its data."""
        if self.judge is None:
            return Needs(self.own_assets)
        name = self.judge.choice.name
        remark = f"its judge {name} is asked over the network" if self.judge.runs_elsewhere else ""
        return Needs((*self.own_assets, *self.judge.weights), remark)

    def lacks(self) -> str:
        """What of its measurers' weights only prefetch gets, and is not here; empty: nothing is known."""
        lines = (line for one in self._measurers() for line in registry.measurer_missing(*one))
        return some(list(dict.fromkeys(lines)))

    def missing_weights(self, named: str, has_paths_here: bool = True) -> str:
        """Returns one line on the files that its evaluators lack, with the command that gets them; empty if none.

        Args:
            named: The judge that the user chose.
            has_paths_here: False if local paths are those of another machine.
        """
        placed = self.files.placed
        if has_paths_here and (problem := missing_path(self.needs.assets)):
            return f"benchmark {self.name}: judge: {problem}"
        assets = (asset for asset in self.needs.assets if isinstance(asset, HubAsset) or asset in placed)
        options = f"--ds_names {self.name}" + f' --judges "{self.name}={named}"' * bool(named)
        missing = why_missing(assets, options)
        return missing and f"benchmark {self.name}: {missing}"

    def given(self, mark: str) -> list[str]:
        """The settings that the user gave whose fields have the metadata ``mark``."""
        known = fields(self.benchmark.settings) if self.benchmark else ()
        return [one.name for one in known if one.metadata.get(mark) and one.name in self.settings]

    def check_dataset_class(self) -> None:
        """Whether the class of a foreign dataset is there, as far as that can be seen. Raises CellFailure."""
        if setting := None if self.benchmark else registry.foreign_dataset(self.name):
            where = f"benchmark '{self.name}': DATASET_SETTINGS['{self.name}']"
            check_class(setting.module, setting.class_name, where, DATASETS)

    def check_dataset(self) -> int:
        """Whether the dataset can be read, with all its entries: how many. Raises CellFailure: one line."""
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
    """The benchmark ``name`` asked of ``judge`` (empty: its own), with ``ds_kwargs`` over DS_KWARGS_MAP.

    ``judge_kwargs`` go over JUDGE_KWARGS_MAP, and that over the judge's entry. ``hint`` ends what is said of a wrong
    setting.

    Raises:
        UserError: an unknown name, setting or judge, or a malformed configuration.
        CellFailure: its class cannot be read or fails, or is itself wrong about its judge or its measurers.
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
        asked = ""  # one may be configured for other settings than these
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
    """A block about what only the class says, nobody who chose it: what is wrong with that is a failure of its cells.

    Raises CellFailure.
    """
    try:
        yield
    except UserError as error:
        raise CellFailure(f"benchmark {cls.name} ({registry.file_of(cls)}): {error}") from None


def _foreign(name: str, given: Mapping[str, Any], judge: str) -> BenchmarkChoice:
    foreign = registry.foreign_dataset(name)
    if foreign is None:
        broken = dict.fromkeys(registry.broken_benchmarks().values())
        near = suggest(name, [*registry.benchmark_tasks(), *registry.broken_benchmarks()])
        unread = (
            "; ".join(["", "it may be in a file that cannot be read", *broken]) if broken and not near else ""
        )
        raise UserError(f"unknown benchmark '{name}'{near}; bash eval.sh --list shows the names{unread}")
    if given:
        raise UserError(f"benchmark {name} takes no settings, but '{next(iter(given))}' is given")
    return BenchmarkChoice(name, foreign.task, asked=_no_judge(name, judge))


def _checked(cls: type[Benchmark], given: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` as JSON values that are settings of ``cls``. Raises UserError: they are not."""
    if not given:
        return {}
    import msgspec  # the options of prefetch and --list do without

    where = f"benchmark {cls.name}"
    if cls.settings_class is Settings and not cls.has_corrected_rules:
        raise UserError(f"{where} takes no settings, but '{next(iter(given))}' is given")
    settings = checked(cls.settings_class, given, where)
    if settings.rules != "official" and not cls.has_corrected_rules:
        raise UserError(f"{where}: it has official rules only, not {settings.rules}")
    with benchmark_code(cls.name, "a setting that is no JSON value"):
        return {name: msgspec.to_builtins(getattr(settings, name)) for name in given}


def _judge(benchmark: Benchmark, judge: str) -> str:
    """The full name of the judge, or the name of the reader, to ask; empty: nothing goes to one. Raises UserError."""
    if not benchmark.judge:
        return _no_judge(benchmark.name, judge)
    judge = judge or benchmark.judge
    if benchmark.takes and ":" not in judge and judge not in registry.judges():
        registry.measurer_setting(judge, benchmark.takes)
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
