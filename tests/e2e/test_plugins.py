"""Plug-ins: an installed package adds a model, a benchmark, a judge, a rewriter and a launcher."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageevalkit import registry
from imageevalkit.cli.__main__ import _handed_over
from imageevalkit.common.errors import CellFailure, UserError
from imageevalkit.extras.listing.listing import _plugins
from imageevalkit.jobs.plan import Plan
from imageevalkit.plan.config import Config
from imageevalkit.plan.options import resolve
from imageevalkit.store.results import read_result
from tests.support.checkout import make_checkout, needs_driver_env, run_eval
from tests.support.judge_server import ReplyServer

FILES = {
    "__init__.py": """
from pathlib import Path

from imageevalkit.judges.choice import JudgeSetting

MODEL = {"t2i": {"model_path": "", "module": "tiny_plugin.model", "class": "Grey", "gpus": 0}}
JUDGE = JudgeSetting(
    "transformers", str(Path(__file__).parent), {"environment": "", "gpus": 0}, "tiny_plugin.judge:Nodding"
)
""",
    "model.py": """
from PIL import Image

class Grey:
    def __init__(self, model_path):
        self.model_name = "tiny-grey"

    def generate(self, prompt, seed=42):
        image = Image.new("RGB", (32, 32), (90, 90, seed % 256))
        image.putpixel((0, 0), (0, 0, 0))
        return image
""",
    "prompts.json": '[{"prompt": "a grey square"}, {"prompt": "another grey square"}]',
    "bench.py": """
from imageevalkit.benchmark.shapes import YesNo

class Squares(YesNo):
    name, version, judge, prompt_count = "tiny-squares", "1", "tiny-nodding", 2
    question = "Is this {prompt}?"
""",
    "judge.py": """
from imageevalkit.benchmark.question import Answer
from imageevalkit.judges.choice import Judge

class Nodding(Judge):
    identity = {"model": "nodding"}

    def ask(self, questions, workers=1):
        return (Answer(question, "Yes") for question in questions)
""",
    "rewriter.py": """
from imageevalkit.benchmark.question import Message
from imageevalkit.extras.rewrite.contract import Rewriter

class Blue(Rewriter):
    name = "tiny_blue"

    def messages(self, item, text, raw, task):
        return [Message("user", (text,))]
""",
    "launcher.py": """
import json
import subprocess

from imageevalkit.slurm.node_job import write_scripts

def run(plan):
    jobs = json.loads((write_scripts(plan) / "jobs.json").read_text())
    ended = {subprocess.run([job["script"]]).returncode for job in jobs}
    return 0 if ended == {0} else 3 if ended <= {0, 3} else 1

def run_nothing(plan):
    pass
""",
}
POINTS = """
[imageevalkit.models]
tiny-grey = tiny_plugin:MODEL
tiny-gone = tiny_plugin.absent:MODEL
reference-noise = tiny_plugin:MODEL
[imageevalkit.benchmarks]
tiny-squares = tiny_plugin.bench:Squares
tiny-circles = tiny_plugin.bench:Squares
[imageevalkit.judges]
tiny-nodding = tiny_plugin:JUDGE
tiny-other = tiny_plugin:MODEL
[imageevalkit.rewriters]
tiny_blue = tiny_plugin.rewriter:Blue
[imageevalkit.launchers]
tiny = tiny_plugin.launcher:run
tiny-idle = tiny_plugin.launcher:run_nothing
tiny-twice = tiny_plugin.launcher:run
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder as an installer leaves it, with the package tiny-plugin."""
    folder = tmp_path / "packages"
    (folder / "tiny_plugin").mkdir(parents=True)
    for name, text in FILES.items():
        (folder / "tiny_plugin" / name).write_text(text)
    install(folder, "tiny-plugin", POINTS)
    return folder


def install(folder: Path, package: str, points: str) -> None:
    """Write what an installer writes of the entry points of ``package``."""
    about = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(points)


class Bluer(ReplyServer):
    reply = staticmethod(lambda request: "a blue square")


@needs_driver_env
def test_one_of_each_kind_makes_a_run(packages: Path, tmp_path: Path) -> None:
    tree = make_checkout(tmp_path / "kit")
    paths = os.pathsep.join(map(str, (tree, tree / "infer", packages)))
    words = ["--model_names", "tiny-grey", "--ds_names", "tiny-squares", "--prompt_rewriter", "tiny_blue"]
    words += ["--launcher", "tiny"]
    with Bluer() as server:
        env = {"API_KEY": "sk-none", "BASE_URL": server.base_url, "PYTHONPATH": paths}
        listed = run_eval(tree, "--list", status=0, **env).stdout
        done = run_eval(tree, *words, status=0, **env)
    assert re.search(r"\n  tiny-grey +t2i +yes +- +-\n", listed), listed
    assert re.search(r"\n  tiny-squares +t2i +2 +yes +- +yes +- +tiny-nodding\n", listed), listed
    assert "\n  launcher tiny of tiny-plugin 1.0\n" in listed
    assert "\n  tiny-gone " not in listed and "tiny_plugin.absent" in listed
    [file] = (tree / "output").glob("tiny-grey+tiny_blue-*/tiny-squares/result.json")
    result = read_result(file)
    assert result.metrics["accuracy"].value == 1.0
    assert result.evaluator.id.startswith("tiny-nodding/transformers/")
    assert "tiny-squares" in done.stdout.partition("report:")[0]  # the leaderboard


@pytest.fixture
def installed(packages: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package is installed in the environment of this process, and one with a name of its too."""
    install(packages, "other-plugin", "[imageevalkit.launchers]\ntiny-twice = tiny_plugin.launcher:run\n")
    monkeypatch.syspath_prepend(str(packages))
    caches = (registry._plugins, registry._benchmark_of_plugin)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "tiny_plugin"]:
        del sys.modules[name]


PLACE = "of package tiny-plugin 1.0"
UNUSABLE = {
    "reference-noise": "'reference-noise' is a name of the toolkit, whose own is used: rename the entry point",
    "tiny-gone": f"model 'tiny-gone' {PLACE} (tiny_plugin.absent:MODEL) cannot be imported: ModuleNotFoundError: No "
    "module named 'tiny_plugin.absent'",
    "tiny-circles": f"benchmark 'tiny-circles' {PLACE} (tiny_plugin.bench:Squares): its class has the name "
    "'tiny-squares': the two names must be equal",
    "tiny-other": f"judge 'tiny-other' {PLACE} (tiny_plugin:MODEL) is {{",
    "tiny-twice": "launcher 'tiny-twice' is in packages ",
}


@pytest.mark.usefixtures("installed")
def test_the_list_says_why_a_plug_in_cannot_be_used() -> None:
    told = {name: problem for _, found in _plugins() for name, problem in found.items()}
    assert {name for name, problem in told.items() if problem} == {*UNUSABLE}
    for name, line in UNUSABLE.items():
        assert told[name].startswith(line)
    assert "other-plugin 1.0" in told["tiny-twice"] and told["tiny-twice"].endswith(": uninstall one of them")


@pytest.mark.usefixtures("installed")
def test_only_the_plug_in_of_the_name_is_imported() -> None:
    assert registry.model_entries("tiny-grey").keys() == {"t2i"}
    assert "tiny_plugin.bench" not in sys.modules and "tiny_plugin.model" not in sys.modules
    assert registry.model_entries("reference-noise")["t2i"]["module"].startswith(".model_utils.")


@pytest.mark.usefixtures("installed")
def test_a_wrong_name_is_told() -> None:
    words = {"--model_names": "tiny-grey", "--ds_names": "tiny-squares", "--launcher": "tinny"}
    with pytest.raises(UserError, match="--launcher is 'tinny': use local or slurm or export or tiny or "):
        resolve(words, Config())
    says = re.escape(f"a package that adds it must be installed in {sys.prefix}, too")
    with pytest.raises((UserError, CellFailure), match=says):
        registry.make_benchmark("tiny-absent", {}, "")
    says = "launcher 'tiny-idle' failed: ValueError: None is not a valid ExitStatus"
    with pytest.raises((UserError, CellFailure), match=says):
        _handed_over("tiny-idle", Plan("", None, []))
