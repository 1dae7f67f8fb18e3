"""The benchmarks of a run as the user chose them: settings, judge, and what evaluating them takes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from imageevalkit import registry
from imageevalkit.asset_checks.check import Needed, Needs, why_missing
from imageevalkit.assets import BenchmarkFiles, HubAsset
from imageevalkit.benchmark.contract import JUDGE, Benchmark, Measurer, Settings, benchmark_code
from imageevalkit.cell import REPO
from imageevalkit.cell.items import MODEL_NAME_MARK, entries_of
from imageevalkit.errors import CellFailure, UserError, said_of, suggest
from imageevalkit.guest_code import guest_code
from imageevalkit.launch.config import Config
from imageevalkit.launch.judges import ConfiguredJudge, configured_judge
from imageevalkit.launch.kwargs import parse_kwargs
from imageevalkit.launch.models import DATASETS, check_class

_ENCODERS = "oneig"
"""The environment of image encoders where EVAL_ENV_MAP does not say."""


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
    def files(self) -> BenchmarkFiles:
        """What prefetch gets for it."""
        return self.benchmark.files() if self.benchmark else BenchmarkFiles(self.name)

    @cached_property
    def uses_encoders(self) -> bool:
        """Whether it measures with networks of its own, that take a GPU."""
        return "gpu" in self._places

    @cached_property
    def _places(self) -> set[str]:
        return {registry.measurer_place(measurer.name) for measurer in self._measurers()}

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
            return [self._script.relative_to(REPO).as_posix()]
        backend, _, name = self.asked.partition(":")
        known = registry.judges().get(name)
        asked = name if known and known.backend == backend else self.asked
        # one of the benchmark's own is named by its class
        names = [asked, *(measurer.name.rpartition(":")[2] for measurer in self._measurers())]
        return list(dict.fromkeys(filter(None, names)))

    def evaluation(self, model: str, environment: str) -> list[str]:
        """The command that evaluates images of ``model``."""
        own, ours = self._script, REPO / "utils" / "evaluate.sh"
        # where a checkout has no links, eval/ has files that hold where these would lead
        links = (ours.read_bytes(), b"../utils/evaluate.sh")
        if self.benchmark and not (own.is_file() and own.read_bytes().strip() not in links):
            return ["bash", str(ours), model, environment, self.name]
        return ["bash", str(own), model, environment]

    def check_script(self) -> None:
        """Whether a foreign one has its script. Raises CellFailure."""
        if self.benchmark is None and not self._script.is_file():
            raise CellFailure(
                f"benchmark {self.name} has no evaluation script: eval/{self.name}.sh is missing"
            )

    @property
    def _script(self) -> Path:
        return REPO / "eval" / f"{self.name}.sh"

    def environment(self, config: Config) -> str:
        """That of EVAL_ENV_MAP (several are separated by spaces), else that of image encoders where it has some, else
        one of its own where it measures with what the driver's lacks. Empty: it has no wish.
        """
        environments = config.maps.get("EVAL_ENV_MAP", {})
        shared = environments.get("encoders", _ENCODERS) if self._shares_encoders else ""
        return environments.get(self.name) or shared or (self.name if self._places - {"driver"} else "")

    @property
    def _shares_encoders(self) -> bool:
        """Whether it measures with image encoders, which have one environment for all benchmarks."""
        return any(registry.measurer_kind(measurer.name) == "encoder" for measurer in self._measurers())

    def build(self, config: Config) -> str:
        """What :meth:`environment` is made with: the options of ``make_env.sh``."""
        shares = self._shares_encoders and not config.maps.get("EVAL_ENV_MAP", {}).get(self.name)
        return f"--benchmark {'encoders' if shares else self.name}"

    @property
    def own_assets(self) -> tuple[Needed, ...]:
        """What evaluating it takes besides its data and its judge."""
        measurers = (registry.measurer_assets(*measurer) for measurer in self._measurers())
        return tuple(
            dict.fromkeys([*self.files.placed, *(asset for assets in measurers for asset in assets)])
        )

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
        return "; ".join(dict.fromkeys(lines))

    def missing_weights(self, named: str) -> str:
        """What else of its evaluators' files is missing, with the command that gets it; ``named``: the user's judge."""
        placed = self.files.placed
        assets = (asset for asset in self.needs.assets if isinstance(asset, HubAsset) or asset in placed)
        command = f"bash utils/prefetch.sh --ds_names {self.name}"
        missing = why_missing(assets, command + f' --judges "{self.name}={named}"' * bool(named))
        return missing and f"benchmark {self.name}: {missing}"

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

    ``hint`` ends what is said of a wrong setting.

    Raises:
        UserError: an unknown name, setting or judge, or a malformed configuration.
        CellFailure: its class cannot be read or fails, or is itself wrong about its judge or its measurers.
    """
    cls = registry.benchmark_class(name)
    text = config.maps.get("DS_KWARGS_MAP", {}).get(name, "")
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
    choice = BenchmarkChoice(
        name, cls.task, benchmark, settings, asked, configured_judge(config, asked, judge_kwargs)
    )
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
    if not given or not find_spec("msgspec"):  # --list has none before the driver's environment is made
        return {}
    import msgspec

    from imageevalkit.launch.kwargs import checked

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
        return registry.check_measurer(judge, benchmark.takes)
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


def settings_of_images_elsewhere(choice: BenchmarkChoice) -> list[str]:
    """The settings given that only mean something to images made elsewhere."""
    return _given(choice, "images_elsewhere")


def settings_of_one_model(choice: BenchmarkChoice) -> list[str]:
    """The settings given that are paths of what one model alone has: nothing in them stands for its name."""
    given = _given(choice, "of_one_model")
    return [name for name in given if choice.settings[name] and MODEL_NAME_MARK not in choice.settings[name]]


def _given(choice: BenchmarkChoice, mark: str) -> list[str]:
    """The settings given whose fields have the metadata ``mark``."""
    known = fields(choice.benchmark.settings) if choice.benchmark else ()
    return [one.name for one in known if one.metadata.get(mark) and one.name in choice.settings]
