"""The rules of the folders: allowed imports, and no way around them."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

from tests.support.documentation import pages

REPO = Path(__file__).resolve().parents[2]
ROOMS = ("imageevalkit", "eval_models", "benchmarks", "infer")
# what each may import of the others; beside it itself, and what is no part of the project
ALLOWED = {
    "imageevalkit": set[str](),
    "eval_models": {"imageevalkit"},
    "benchmarks": {"imageevalkit", "eval_models"},
    "infer": {"imageevalkit"},
}
# the training of shapes-tiny draws the scenes of quickshapes; no run imports it
TRAINING_MAY = {"infer/training": {"benchmarks"}}
# the packages of infer/ are found there by the scripts beside them
IN_INFER = ("custom_models", "custom_datasets", "custom_rewriters")
BY_NAME = {"imageevalkit/registry.py", "imageevalkit/extension_points.py"}

# files that have a reason to ask what an object may lack
MAY_LACK = {
    "infer/custom_models/model_utils/image_routes.py": "Pillow: only an image that was opened has a file",
    "imageevalkit/benchmark/contract.py": "Pillow: only an image that was opened has a file",
    "imageevalkit/store/items.py": "a dataset of the user's, and Pillow",
    "imageevalkit/common/images.py": "Pillow: a format of one frame counts none",
    "imageevalkit/common/machine.py": "Python: a group of errors before 3.11, an event loop before asyncio is there",
    "eval_models/vlm/judge.py": "transformers: attributes differ by model",
}


@functools.cache
def sources_in(room: str) -> dict[str, ast.Module]:
    return {
        path.relative_to(REPO).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted((REPO / room).rglob("*.py"))
        # what prefetch brings
        if not {"code", "data", "checkpoints", "weights"} & set(path.relative_to(REPO).parts)
    }


def sources(*rooms: str) -> dict[str, ast.Module]:
    """The parsed files of ``rooms`` by path."""
    return {path: tree for room in rooms for path, tree in sources_in(room).items()}


@functools.cache
def nodes_of(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes: each test of a promise looks at all files."""
    return tuple(ast.walk(tree))


def module_of(path: str) -> str:
    name = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    return name.removeprefix("infer.") if name.startswith(tuple(f"infer.{p}" for p in IN_INFER)) else name


def imports_of(path: str, tree: ast.Module, modules: Collection[str] = ()) -> Iterator[str]:
    """Yields the modules that the file imports, also within functions and for types only.

    Of ``from a import b`` it is a.b if that is one of ``modules``.
    """
    package = module_of(path) if path.endswith("/__init__.py") else module_of(path).rpartition(".")[0]
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = (
                resolve_name("." * node.level + (node.module or ""), package)
                if node.level
                else str(node.module)
            )
            names = [f"{base}.{alias.name}" for alias in node.names]
            yield from (name if name in modules else base for name in names)


@functools.cache
def import_graph() -> dict[str, set[str]]:
    """The modules of the project that each imports."""
    files = sources(*ROOMS)
    modules = {module_of(path) for path in files}
    return {
        module_of(path): set(imports_of(path, tree, modules)) & modules - {module_of(path)}
        for path, tree in files.items()
    }


def cycle_in(graph: Mapping[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def calls_of(tree: ast.Module, name: str) -> list[ast.Call]:
    return [
        node
        for node in nodes_of(tree)
        if isinstance(node, ast.Call)
        and name == (getattr(node.func, "attr", "") or getattr(node.func, "id", ""))
    ]


def test_no_two_modules_import_each_other() -> None:
    graph = import_graph()
    assert graph["imageevalkit.jobs.plan"] >= {"imageevalkit.store.cell", "imageevalkit.common.errors"}
    assert cycle_in(graph) == []


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_one_way(room: str) -> None:
    ours = {*ROOMS, *IN_INFER}
    may = {room, *ALLOWED[room], *(IN_INFER if room == "infer" else ())}
    wrong = [
        f"{path}: {name}"
        for path, tree in sources(room).items()
        for name in imports_of(path, tree)
        if name.split(".")[0] in ours - may - TRAINING_MAY.get(path.rpartition("/")[0], set())
    ]
    assert wrong == []


def test_only_the_registry_and_the_extension_points_import_by_name() -> None:
    by_name = {
        path
        for path, tree in sources("imageevalkit", "eval_models", "benchmarks").items()
        if calls_of(tree, "import_module") or calls_of(tree, "__import__") or calls_of(tree, "run_module")
    }
    assert by_name == BY_NAME


def test_only_the_authors_code_changes_where_modules_are_found() -> None:
    changing = {
        path
        for path, tree in sources(*ROOMS).items()
        for node in nodes_of(tree)
        if isinstance(node, ast.Attribute) and node.attr == "path" and ast.unparse(node) == "sys.path"
    }
    # repositories that are no packages: their modules import each other by bare names
    assert changing == {"infer/custom_models/authors.py"}


def test_attributes_are_asked_for_only_of_what_others_made() -> None:
    asking = {
        path
        for path, tree in sources(*ROOMS).items()
        if calls_of(tree, "hasattr")
        or any(len(c.args) > 2 and isinstance(c.args[1], ast.Constant) for c in calls_of(tree, "getattr"))
    }
    assert asking == set(MAY_LACK)
    assert not any(calls_of(tree, "hasattr") for tree in sources(*ROOMS).values())


MAP = REPO / "docs/architecture.md"


def folders() -> list[set[str]]:
    """Returns the folders and modules of ``imageevalkit`` in the rows of the map's table, from top to bottom."""
    [rows] = re.findall(r"## Folders\n(.*?)\nBeside the library", MAP.read_text(encoding="utf-8"), re.DOTALL)
    cells = re.findall(r"^\| (`.*?) \|", rows, re.MULTILINE)
    return [set(re.findall(r"`(\w+)/?`", cell)) for cell in cells]


def test_a_folder_imports_only_from_folders_below_it() -> None:
    level = {name: n for n, names in enumerate(folders()) for name in names}
    wrong = []
    for module, imported in import_graph().items():
        if not module.startswith("imageevalkit."):
            continue
        own = module.split(".")
        for other in (name.split(".") for name in imported if name.startswith("imageevalkit.")):
            is_sideways = own[1] != other[1] and level[own[1]] == level[other[1]]
            if level[own[1]] > level[other[1]] or (is_sideways and "registry" not in (own[1], other[1])):
                wrong.append(f"{module} imports {'.'.join(other)}")
    assert wrong == []


def test_no_extra_imports_another() -> None:
    wrong = [
        f"{module} imports {other}"
        for module, imported in import_graph().items()
        for other in imported
        if module.startswith("imageevalkit.") and other.startswith("imageevalkit.extras.")
        if module.split(".")[:3] != other.split(".")[:3]
    ]
    assert wrong == []


def test_one_file_starts_the_processes_of_jobs() -> None:
    starting = {module for module, imported in import_graph().items() if "imageevalkit.run.guard" in imported}
    assert starting == {"imageevalkit.run.runner"}


def test_only_the_planner_changes_a_plan_or_a_job() -> None:
    changing = {
        path
        for path, tree in sources("imageevalkit").items()
        for call in calls_of(tree, "replace")
        if isinstance(call.func, ast.Name)
        and re.search(r"(?:^|[._])(?:plan|job|part)$", ast.unparse(call.args[0]))
    }
    # the jobs that repeat questions are those of the evaluation: while a plan is made, they are copied
    noise = "imageevalkit/extras/noise/planning.py"
    assert changing == {"imageevalkit/plan/planner.py", "imageevalkit/plan/stage_jobs.py", noise}


def test_documents_name_files_that_there_are() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages())
    folders = "imageevalkit|benchmarks|eval_models|infer|utils|docs|perf"
    named = set(re.findall(rf"(?<![\w/.])((?:{folders})/[\w/]*\w\.(?:py|sh|md))\b", text))
    there = {path for path in named if not Path(path).name.startswith("my_") and "/my_" not in path}
    assert there
    assert [path for path in sorted(there) if not (REPO / path).is_file()] == []


def test_the_chinese_map_names_the_same_paths() -> None:
    english, chinese = (
        {re.sub("<.*?>", "<>", path) for path in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))}
        for page in (MAP, MAP.with_suffix(".zh.md"))
    )
    assert english == chinese


def test_the_map_has_every_folder() -> None:
    there = {path.parent.name for path in (REPO / "imageevalkit").glob("*/__init__.py")}
    modules = {path.stem for path in (REPO / "imageevalkit").glob("*.py")} - {"__init__"}
    assert set().union(*folders()) == there | modules


def test_docstrings_name_their_subject() -> None:
    """A docstring does not begin with What, Who, Whose, Those, That or Of; the tests may have ten that do."""
    program = ("imageevalkit", "infer", "benchmarks", "eval_models", "utils", "perf")
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for rooms, most in ((program, 0), (("tests",), 10)):
        found = [
            f"{path}: {text}"
            for path, tree in sources(*rooms).items()
            for node in nodes_of(tree)
            if isinstance(node, documented) and (text := ast.get_docstring(node) or "")
            if re.match(r"(What|Who|Whose|Those|That|Of)\b", text)
        ]
        assert len(found) <= most, found
