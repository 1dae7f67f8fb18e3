"""The table of options of ``eval.sh`` and ``prefetch.sh``, and their values, which override config.sh.

The help works before any environment exists, so this module imports the standard library only.
"""

from __future__ import annotations

# ruff: noqa: RUF009 - each entry of the table is a function call
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from imageevalkit.common.errors import UserError, suggest
from imageevalkit.extension_points import connected
from imageevalkit.plan.config import (
    OTHER,
    Config,
    Option,
    Parse,
    folder,
    parse_amount,
    parse_boolean,
    parse_choice,
    parse_count,
    parse_kwargs,
    parse_kwargses,
)
from imageevalkit.store.cell import REPORT_MB, Cell, check_name, split_names

if TYPE_CHECKING:
    from imageevalkit.api.prices import Price
    from imageevalkit.assets import RewriterFiles
    from imageevalkit.store.results import Until


def option(metavar: str, help: str, parse: Parse, default: Any = None, **more: Any) -> Any:
    """Returns a dataclass field of :class:`Options` that holds its entry of the table."""
    entry = Option(metavar, help, parse, **more)
    if isinstance(default, list | dict):
        return field(default_factory=default.copy, metadata={"option": entry})
    return field(default=default, metadata={"option": entry})


def _text(text: str, where: str) -> str:
    return text.strip()


def _names(text: str, where: str) -> list[str]:
    return [check_name(name) for name in split_names(text)]


def _if_any(parse: Parse) -> Parse:
    """Returns a parser like ``parse``, but with None for an empty text: this unsets a value of config.sh."""
    return lambda text, where: parse(text, where) if text.strip() else None


def _megabytes(text: str, where: str) -> float:
    return 0.0 if text.strip() == "0" else parse_amount(text, where)


def _launcher(text: str, where: str) -> str:
    if (name := text.strip()) and name not in LAUNCHERS:
        from imageevalkit import registry  # here, because --help works without an environment

        parse_choice(text, where, (*LAUNCHERS, *registry.plugin_names("launchers")))
        registry.launcher(name)
    return name or LOCAL


def _folders(texts: Sequence[str], where: str) -> list[Path]:
    return [folder(text, where) for text in texts]


def parse_judges(text: str, where: str = "--judges") -> dict[str, str]:
    """Returns judges by benchmark, from ``"longtext=ppocr;wise=openai:gpt-4o"``. Raises UserError."""
    judges: dict[str, str] = {}
    for pair in split_names(text):
        benchmark, equals, judge = (word.strip() for word in pair.partition("="))
        if not (benchmark and equals and judge):
            wrong = "has an empty side" if equals else "has no '='"
            raise UserError(f"{where}: '{pair}' {wrong}: write benchmark=judge")
        if judges.setdefault(benchmark, judge) != judge:
            raise UserError(
                f"{where} names two judges for {benchmark}: run the command once for each, both results are kept"
            )
    return judges


_TRUTH = "true|false"
LAUNCHERS = LOCAL, SLURM, EXPORT = "local", "slurm", "export"
"""The launchers of the toolkit, values of ``--launcher``; a plug-in adds its name."""
_decisive = partial(option, prefetch="decisive")
_switch = partial(_decisive, _TRUTH, parse=parse_boolean)
_flag = partial(option, "", parse=parse_boolean, default=False)
_in_config = partial(option, "", "", prefetch="config")
"""Declares a setting that only config.sh can set."""


class Rewriter(Protocol):
    """The prompt rewriter of a run, as the planner sees it (``Rewriter`` of the extra ``rewrite``)."""

    name: ClassVar[str]

    @property
    def id(self) -> str: ...
    @property
    def model_id(self) -> str: ...
    def files(self) -> RewriterFiles: ...
    def check(self, raw: Cell, limit: int | None) -> None: ...


@dataclass
class Options:
    """The options of a run or of prefetch. Each field with an entry of the table is an option.

    The planner checks whether the names of models and benchmarks exist.
    """

    model_names: list[str] = _decisive('"a;b"', "models to evaluate", _names, [], config="MODEL_NAMES")
    ds_names: list[str] = _decisive('"x;y"', "benchmarks to evaluate them on", _names, [], config="DS_NAMES")
    custom_model_kwargses: str = _decisive(
        '"p=1,q=[2];"', "settings per model; a set may be empty", _text, "", config="CUSTOM_MODEL_KWARGSES"
    )
    use_api: bool = _switch(
        "generate through an OpenAI-compatible API (API_KEY, BASE_URL)", default=False, config="USE_API"
    )
    num_workers: int = option(
        "N", "most API requests in flight for each endpoint and key", parse_count, 4, config="NUM_WORKERS"
    )
    requests_per_minute: float | None = option(
        "N",
        "most API requests started per minute for each endpoint and key",
        _if_any(parse_amount),
        config="REQUESTS_PER_MINUTE",
    )
    max_cost: float | None = option(
        "USD", "stop before the API requests of this run cost more", _if_any(parse_amount), config="MAX_COST"
    )
    retry_refused: bool = _flag("retry images that an API refused")
    parallel: bool | None = option(
        _TRUTH,
        "run jobs side by side within GPUs and cores; false: one after another",
        _if_any(parse_boolean),
        config="PARALLEL",
    )
    launcher: str = option(
        "local|slurm|export",
        "run jobs on this machine, on a cluster through sbatch, or write them as scripts",
        _launcher,
        LOCAL,
        config="LAUNCHER",
    )
    detach: bool = _flag("continue in the background, also after the login session", prefetch="")
    replicas: int | None = option(
        "N", "most copies of a local model side by side", parse_count, config="REPLICAS"
    )
    infer: bool = _switch("generate images", default=True, config="ENABLE_INFER")
    eval: bool = _switch("compute scores", default=True, config="ENABLE_EVAL")
    judges: dict[str, str] = _decisive(
        '"x=ppocr"', "evaluator of each benchmark; overrides JUDGE_MAP", parse_judges, {}
    )
    judge_kwargs: dict[str, Any] = _decisive(
        '"p=1,q=2"', "settings of the judges of this run; override JUDGE_KWARGS_MAP", parse_kwargs, {}
    )
    ds_kwargs: dict[str, Any] = _decisive(
        '"p=1,q=2"', "settings of the benchmarks of this run; override DS_KWARGS_MAP", parse_kwargs, {}
    )
    rescore: bool = _flag("score the recorded answers; ask no judge, generate no image")
    retry_unparsed: bool = _flag("ask again if a judge's reply had no score")
    missing_items: str = option(
        "withhold|official",
        "headline score of an incomplete result: none, or as the official evaluator computes it",
        partial(parse_choice, choices=("withhold", "official")),
        "withhold",
        config="MISSING_ITEMS",
    )
    limit: int | None = option("N", "use only the first N items of each benchmark, for a trial", parse_count)
    overwrite: bool = _flag("replace images that were generated with other settings")
    report: list[Path] | None = option(
        "DIR…",
        "write the report of all results, or of the results in folders; run nothing",
        _folders,
        prefetch="",
        command="report",
    )
    report_mb: float = option(
        "MB",
        "write report.html, one file with everything, unless it is larger (0: never)",
        _megabytes,
        REPORT_MB,
        config="REPORT_MB",
        listed_with=("report",),
    )
    sort_by: list[str] = option(
        '"a;b"',
        "order the models of the report by the mean of these benchmarks or columns",
        lambda text, where: split_names(text),
        [],
        prefetch="",
        listed_with=("report",),
    )
    quickstart: bool = _flag(
        "two checkpoints of shapes-tiny on quickshapes: no GPU, no key, no download beyond PyPI", prefetch=""
    )
    help: bool = _flag("this text")
    blank_on_error: bool = _in_config(parse_boolean, False, config="GENERATE_BLANK_IMAGE_ON_ERROR")
    item_timeout: float | None = _in_config(_if_any(parse_amount), config="ITEM_TIMEOUT")
    gpu_min_free_memory: str = _in_config(_text, "90%", config="GPU_MIN_FREE_MEMORY")
    overlap: bool = _in_config(parse_boolean, True, config="OVERLAP")
    share_gpus: bool = _in_config(parse_boolean, False, config="SHARE_GPUS")
    slurm_max_jobs: int | None = _in_config(_if_any(parse_count), config="SLURM_MAX_JOBS")
    slurm_max_gpus: int | None = _in_config(_if_any(parse_count), config="SLURM_MAX_GPUS")
    slurm_grace: int = _in_config(parse_count, 120, config="SLURM_GRACE")

    rewriter: Rewriter | None = None
    images: Path | None = None
    """The images of the run if they are made elsewhere."""
    sender: str = ""
    """The extra that sends the requests to APIs; empty: they are sent one by one."""
    judge_repeats: int = 0
    """The number of questions of each cell that are asked again."""
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The models of the run, by name, with the user's settings for each."""
    benchmarks: list[str] = field(default_factory=list)
    """The benchmarks of the run, with aliases replaced by names."""
    asked: dict[str, int] = field(default_factory=dict)
    """The number of items to generate, in random order, by benchmark (no number: all items)."""
    until: dict[str, Until] = field(default_factory=dict)
    """Why a run asks for a part of the items, by benchmark."""
    kept_servers: dict[str, str] = field(default_factory=dict)
    """The files with the addresses of servers that other processes keep, by the full name of their judge."""
    kept_programs: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """The arguments of Python that hand an evaluate job to a process with its judge, by the judge and the Python."""
    needs_keys: bool = True
    """False if the plan is only shown: a key that is not set becomes a note."""
    weights_are_here: bool = True
    """False if the weights of the models need not exist yet."""
    gpus_per_node: int | None = None
    """The number of GPUs of a node of the cluster; None: the run does not use Slurm."""
    bounds: Path | None = None
    """The folder of several runs that share their request limits and budget; None: this run shares with no
    other.
    """
    extra: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The values of the options of extras, by extra and name."""

    def cell(self, model: str, benchmark: str) -> Cell:
        """Returns the cell of ``model``; with a prompt rewriter, its model is called ``model+rewriter``."""
        return Cell(f"{model}+{self.rewriter.id}" if self.rewriter else model, benchmark)

    @property
    def active_extras(self) -> list[str]:
        """The extras of which the user gives an option."""
        return [extra for extra, values in self.extra.items() if any(values.values())]

    @property
    def hands_over(self) -> bool:
        """True if the jobs go to another engine: as scripts, or through the launcher of a plug-in."""
        return self.launcher not in (LOCAL, SLURM)

    @property
    def makes_images(self) -> bool:
        """True if this run generates images, instead of adopting the images of ``--images``."""
        return self.infer and self.images is None

    @property
    def rewrites(self) -> bool:
        """True if this run rewrites prompts: before generating images, or with --infer and --eval false."""
        return self.rewriter is not None and (self.infer or not self.eval)

    def check_price(self, who: str, price: Price | None, option: str) -> None:
        """Raises UserError: ``--max_cost`` is given, but the price of the replies of ``who`` is unknown."""
        if self.max_cost is not None and price is None:
            raise UserError(
                f"--max_cost needs the price of every reply, which is unknown for {who}: give it, USD per 1M "
                f'tokens ({option} \'price={{"text_input":5,"text_output":15}}\')'
            )


def _named(entries: Mapping[str, Option]) -> dict[str, Option]:
    return {name: entry._replace(name=entry.name or f"--{name}") for name, entry in entries.items()}


GROUPS = {
    "what to evaluate": (
        "model_names",
        "ds_names",
        "custom_model_kwargses",
        "ds_kwargs",
        "limit",
        "quickstart",
    ),
    "images": ("use_api", "infer", "overwrite", "retry_refused", "replicas"),
    "scores": ("eval", "judges", "judge_kwargs", "rescore", "retry_unparsed", "missing_items"),
    "requests and money": ("num_workers", "requests_per_minute", "max_cost"),
    "jobs": ("launcher", "parallel", "detach"),
    "results": ("report_mb", "sort_by"),
}
"""The options of the core by their headings in the help, in order."""
_GROUP_OF = {name: group for group, names in GROUPS.items() for name in names}
CORE = _named(
    {
        each.name: each.metadata["option"]._replace(group=_GROUP_OF.get(each.name, OTHER))
        for each in fields(Options)
        if each.metadata
    }
)
"""The entries of the core, by the field of :class:`Options`."""
OF_EXTRAS = {extra: _named(entries) for extra, entries in connected("options").items()}
"""The entries of extras, by extra and name."""
TABLE: dict[str, Option] = {**CORE, **{n: e for of_extra in OF_EXTRAS.values() for n, e in of_extra.items()}}
"""All entries by name."""


def is_set(given: Mapping[str, Any], name: str) -> bool:
    """Returns True if the flag is given, unless as false. Raises UserError: its value is no boolean."""
    return name in given and parse_boolean(given[name], name)


QUICKSTART = {
    "--model_names": "shapes-tiny;shapes-tiny-early",
    "--ds_names": "quickshapes",
    "--custom_model_kwargses": "",
}
_QUICKSTART_DEFAULTS = {
    "--infer": "true",
    "--eval": "true",
    "--use_api": "false",
    "--prompt_rewriter": "",
    "--parallel": "true",
}


def _values(entries: Mapping[str, Option], given: Mapping[str, Any], config: Config) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, entry in entries.items():
        if entry.name in given:
            values[name] = entry.parse(given[entry.name], entry.name)
        elif entry.config and (text := config.text(entry.config)).strip():
            values[name] = entry.parse(text, f"{entry.config} in config.sh")
    return values


def with_absolute_paths(given: Mapping[str, Any], here: Path) -> dict[str, Any]:
    """Returns ``given`` with absolute paths in place of paths that are relative to the folder ``here``."""
    absolute = {entry.name: entry.absolute for entry in TABLE.values() if entry.absolute}
    return {
        name: absolute[name](value, here) if name in absolute and value else value
        for name, value in given.items()
    }


def options_over(given: Mapping[str, Any], config: Config) -> Options:
    """Returns the options: from the command line (``given``), else from config.sh, else the default.

    Raises UserError: a value is malformed, or options contradict each other.
    """
    # Imported here because --help works without an environment.
    from imageevalkit.registry import without_alias

    if is_set(given, "--quickstart"):
        for name in QUICKSTART:
            if name in given:
                raise UserError(f"--quickstart chooses models and benchmarks itself: leave out {name}")
        given = {**_QUICKSTART_DEFAULTS, **given, **QUICKSTART}
    options = Options(**_values(CORE, given, config))
    for extra, entries in OF_EXTRAS.items():
        defaults = {name: entry.default for name, entry in entries.items()}
        options.extra[extra] = defaults | _values(entries, given, config)
    own = "--custom_model_kwargses" in given
    models, kwargses = options.model_names, options.custom_model_kwargses
    sets = parse_kwargses(kwargses, len(models), "" if own else " in config.sh") if models else []
    for model, kwargs in zip(models, sets, strict=True):
        if options.models.setdefault(model, kwargs) != kwargs:
            raise UserError(
                f"model '{model}' is named twice with different custom_model_kwargses: their images would "
                "overwrite each other; register the second under its own name"
            )
    options.benchmarks = list(dict.fromkeys(map(without_alias, options.ds_names)))
    judges = {**config.map("JUDGE_MAP"), **options.judges}
    options.judges = {without_alias(name): judge for name, judge in judges.items()}
    for resolve_extra in connected("resolve", options.active_extras).values():
        resolve_extra(options, given, config)
    return options


def resolve(given: Mapping[str, Any], config: Config) -> Options:
    """Returns the options of a run. Raises UserError as :func:`options_over`, or if nothing would run."""
    from imageevalkit.plan.gpus import MinFreeMemory
    from imageevalkit.registry import benchmark_tasks

    options = options_over(given, config)
    for field_name in ("model_names", "ds_names"):
        entry = TABLE[field_name]
        if not getattr(options, field_name):
            where = f"{entry.name} is empty" if entry.name in given else f"no {entry.help.split()[0]} given"
            raise UserError(
                f"{where}: use {entry.name} {entry.metavar} or {entry.config} in config.sh "
                "(bash eval.sh --list shows the names; bash eval.sh --quickstart needs none)"
            )
    benchmarks = [*options.benchmarks, *benchmark_tasks()] if options.sort_by else []
    for word in options.sort_by:
        # A name of a column begins with the name of its benchmark. Results may be of benchmarks that are
        # unknown here.
        near = suggest(word.partition("/")[0], benchmarks)
        if near and not word.startswith(tuple(benchmarks)):
            raise UserError(f"--sort_by: no benchmark or column is called '{word}'{near}")
    MinFreeMemory.parse(options.gpu_min_free_memory, "GPU_MIN_FREE_MEMORY in config.sh")
    if options.retry_unparsed and options.rescore:
        raise UserError("--rescore asks the judges nothing, --retry_unparsed asks them again: leave one out")
    if options.rescore and not options.eval:
        raise UserError("--rescore computes scores, but --eval is false: leave one out")
    # Recorded answers belong to the existing images, so --rescore generates none.
    options.infer &= not options.rescore
    if not options.infer and not options.eval and options.rewriter is None:
        raise UserError("nothing to do: both --infer and --eval are false")
    return options
