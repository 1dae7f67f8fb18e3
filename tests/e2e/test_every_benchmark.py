"""Every benchmark through eval.sh on its real data, of which DPG-Bench lacks questions and TRIG all, twice; then one of
each shape killed in the middle, left alone by its judge, and told nonsense. Judges are real servers; networks have
random weights.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

from imageevalkit import registry
from imageevalkit.assets import FileAsset
from imageevalkit.report.item_parts import with_parts
from imageevalkit.store.results import ItemPart, read_result
from tests.support.checkout import find_no_text, make_checkout, needs_driver_env, run_eval
from tests.support.image_server import Received
from tests.support.judge_replies import MALFORMED
from tests.support.judge_server import JudgeServer
from tests.support.mirror import shared_mirror
from tests.support.schemas import check_files
from tests.support.trig_data import TASKS, write_local

pytestmark = needs_driver_env

REPO = Path(__file__).resolve().parents[2]
PACKAGES = Path(os.environ.get("DREAMSIM_PACKAGES") or Path(sys.prefix) / "dreamsim-packages")
MODEL = "reference-typeset"
LIMIT = 12
ALL = sorted(registry.benchmark_tasks())
NETWORKS = ("geneval", "hpsv2")
# GenAI-Bench and DPG-Bench in place of a network
ASKED = [name for name in ALL if name not in (*NETWORKS, "quicktext")]
# what a benchmark needs beside the tests
needs_open_clip = pytest.mark.skipif(
    not (PACKAGES / "open_clip").is_dir(),
    reason=f"no DREAMSIM_PACKAGES, and test.sh has not installed {PACKAGES}",
)
of_all = pytest.mark.parametrize(
    "benchmark", [pytest.param(name, marks=needs_open_clip if name in NETWORKS else ()) for name in ALL]
)
# one of each shape: a text reader, any words, probabilities, a question after an answer, grades
DISTURBED_ASKED = ["longtext", "genai", "t2ireasonbench", "wise"]
DISTURBED = ["quicktext", *DISTURBED_ASKED]
ANY_WORDS, PROBABILITIES = "longtext", "genai"
of_disturbed = pytest.mark.parametrize("benchmark", DISTURBED)
of_asked = pytest.mark.parametrize("benchmark", DISTURBED_ASKED)

# metrics that are no sums of means over items, and why
NO_MEANS = {
    # functions of other metrics, each a mean of its own
    "oneig": ("oneig_total*", "text", "text_official", "style/traditional", "style/media", "style/anime"),
    "oneig-zh": ("text", "text_official"),
    "tiff": ("mean_accuracy",),
    # of questions, and the largest
    "geneval2": ("outside_mass*",),
    # sums
    "wise": ("*_sum",),
}
# official programs round these; what items give is of the unrounded
ROUNDED = {"imgedit": 0.01, "t2ireasonbench": 0.005, "tiff": 5e-5}
SETTINGS = {
    "oneig": {"images_per_prompt": 2, "tasks": "alignment,text,style"},
    "oneig-zh": {"images_per_prompt": 2, "tasks": "alignment,text"},
}
# so many answers come before something happens, and so many questions are under way at a time
SOME, WORKERS = 2, 2
KILLED = f'''

import os as _os
import signal as _signal
from pathlib import Path as _Path

_ask = Answerers.ask


def _ask_and_die(self, questions):
    """Ends this process after some answers, once, where a file says so."""
    file = _Path(__file__).parents[2] / f"kill-{{self._benchmark.name}}"
    for number, answer in enumerate(_ask(self, questions), 1):
        yield answer
        if number == {SOME} and file.exists():
            file.unlink()
            _os.kill(_os.getpid(), _signal.SIGKILL)


Answerers.ask = _ask_and_die
'''


SMALL = """

_load = HPSv2Encoder.load


def _load_small(self, questions):
    import open_clip

    open_clip.add_model_config({!r})  # so small are the checkpoints
    return _load(self, questions)


HPSv2Encoder.load = _load_small
"""


class Seen(NamedTuple):
    """The traces of a run for one cell: state, printed line, log of the evaluation, counts of the judge's replies by
    kind, and contents of the files.
    """

    state: str
    message: str
    log: str
    replies: Counter[str]
    records: list[dict[str, Any]]
    result: dict[str, Any]
    scores: list[dict[str, Any]]


Run = Mapping[str, Seen]
"""By benchmark."""


class Kit:
    """A checkout with the data of all benchmarks and weights for their networks."""

    def __init__(self, folder: Path, mirror: Path) -> None:
        self.folder, self.checkout = folder, find_no_text(make_checkout(folder / "kit"))
        self.names = [name for name in ALL if name not in NETWORKS or (PACKAGES / "open_clip").is_dir()]
        answerers = self.checkout / "imageevalkit/evaluate/answerers.py"
        answerers.write_text(answerers.read_text() + KILLED)
        painter = self.checkout / "infer/custom_models/model_utils/reference.py"
        painter.write_text(painter.read_text().replace("int = 1024", "int = 128"))
        settings = SETTINGS | {
            f"trig-{task}": {**write_local(folder / "trig", task, LIMIT), "pairs": "IQ-R_TA-C,TA-R_TA-S"}
            for task in TASKS
        }
        self._make_up_what_is_lacking(mirror)
        self._configure([_ds_kwargs(name, settings[name]) for name in settings])
        words = ["utils/prefetch.sh", "--eval", "false", "--ds_names", ";".join(ALL), "--mirror", str(mirror)]
        subprocess.run(["bash", *words], cwd=self.checkout, check=True, capture_output=True)
        # what torchvision lacks here, and open_clip, for processes with networks
        self._paths = os.pathsep.join(map(str, (REPO / "tests/support/torchvision_ops", PACKAGES)))
        saved = subprocess.run(
            [sys.executable, "-m", "tests.support.tiny_measurers", str(folder / "weights"), *self.names],
            env={**os.environ, "PYTHONPATH": f"{REPO}{os.pathsep}{self._paths}"},
            check=True,
            capture_output=True,
            text=True,
        )
        weights = json.loads(saved.stdout)
        if "hpsv2" in weights:
            encoder = self.checkout / "eval_models/encoders/clip.py"
            encoder.write_text(
                encoder.read_text() + SMALL.format(f"{weights['hpsv2']['hpsv2']}/ViT-H-14.json")
            )
        self._config = [f"EVAL_ENV_MAP['{name}']='{sys.prefix}'" for name in ("encoders", *NETWORKS)]
        for name in self.names:
            own = {"weights": weights[name]} if name in weights else {}
            self._config.append(_ds_kwargs(name, settings.get(name, {}) | own))

    def _make_up_what_is_lacking(self, mirror: Path) -> None:
        """The questions of DPG-Bench, and an image of ImgEdit."""
        [prompts] = [
            one
            for one in registry.benchmark_files("dpgbench").local
            if isinstance(one, FileAsset) and one.path.endswith(".json")
        ]
        table = io.StringIO()
        lines = csv.writer(table)
        lines.writerow(("item_id", "proposition_id", "dependency", "tuple", "question_natural_language"))
        lines.writerow(("first", 1, "0", "entity - whole (skipped)", "Is it?"))
        for file in json.loads((mirror / prompts.source).read_text()):
            name = file.removesuffix(".txt")
            lines.writerow((name, 1, "0", "entity - whole (thing)", f"Is there what {name} names?"))
            lines.writerow((name, 2, "1", "attribute - color (thing)", f"Is it of the colour of {name}?"))
            lines.writerow((name, 3, "0", "global - (photo)", f"Is it like a photo of {name}?"))
        self._make_up("dpgbench", "dpgbench.csv", table.getvalue().encode())
        picture = io.BytesIO()
        Image.new("RGB", (64, 64), "grey").save(picture, "JPEG")
        path = "imgedit_asset/Benchmark/singleturn/compose/animal/5.jpg"
        self._make_up("imgedit", path, picture.getvalue())

    def _make_up(self, benchmark: str, path: str, data: bytes) -> None:
        """Let ``data`` be the file ``path`` of a benchmark."""
        target = self.checkout / "benchmarks" / benchmark / "data" / path
        target.parent.mkdir(parents=True)
        target.write_bytes(data)
        listed = self.checkout / "benchmarks" / benchmark / "assets.txt"
        line = f"{hashlib.sha256(data).hexdigest()} {len(data)} {path}"
        text, count = re.subn(rf"^\w+ \S+ {re.escape(path)}$", line, listed.read_text(), flags=re.MULTILINE)
        assert count == 1
        listed.write_text(text)

    def _configure(self, lines: Iterable[str]) -> None:
        (self.checkout / "config.local.sh").write_text("".join(f"{line}\n" for line in lines))

    def cell(self, output: str, benchmark: str) -> Path:
        return self.folder / output / MODEL / benchmark

    def to_kill(self, benchmark: str) -> Path:
        """While it is there, the next process that evaluates the benchmark is killed."""
        return self.checkout / f"kill-{benchmark}"

    def run(
        self,
        output: str,
        names: Iterable[str],
        *words: str,
        judge: Callable[[str], JudgeServer] = lambda name: JudgeServer(),
    ) -> Run:
        """Evaluate those benchmarks, each with a judge of its own if it is asked; results go to ``output``."""
        logs = Path(tempfile.mkdtemp(dir=self.folder, prefix="log-"))
        with ExitStack() as stack:
            servers = {name: stack.enter_context(judge(name)) for name in names if name in ASKED}
            config = list(self._config)
            for name, server in servers.items():
                kwargs = f"base_url={server.base_url},backoff=0.05,max_attempts=3,max_outage=0.5"
                config.append(f"JUDGE_MAP['{name}']='openai:judge-{name}'")
                config.append(f"JUDGE_KWARGS_MAP['openai:judge-{name}']='{kwargs}'")
            self._configure(config)
            run_eval(
                self.checkout,
                *("--model_names", MODEL, "--ds_names", ";".join(names), "--limit", str(LIMIT)),
                *("--num_workers", str(WORKERS), "--parallel", "true", *words),
                API_KEY="sk-judge-4711",
                PYTHONPATH=f"{self.checkout}{os.pathsep}{self._paths}",
                IMAGEEVALKIT_OUTPUT=str(self.folder / output),
                IMAGEEVALKIT_LOG=str(logs),
            )
        [summary] = logs.glob("runs/*/summary.json")
        cells = {one["cell"]: one for one in json.loads(summary.read_text())["cells"]}
        return {
            name: self._seen(cells[f"{MODEL}/{name}"], self.cell(output, name), logs, servers.get(name))
            for name in names
        }

    def _seen(self, cell: Mapping[str, Any], folder: Path, logs: Path, server: JudgeServer | None) -> Seen:
        result = folder / "result.json"
        return Seen(
            cell["state"],
            cell["message"],
            "".join(path.read_text() for path in (logs / MODEL).glob(f"{folder.name}_evaluate_*.log")),
            Counter(one.fault for one in server.requests) if server else Counter(),
            lines_of(folder / "judgements.jsonl"),
            json.loads(result.read_text()) if result.exists() else {},
            lines_of(folder / "scores.jsonl"),
        )


def _ds_kwargs(benchmark: str, settings: Mapping[str, Any]) -> str:
    text = ",".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
    return f"DS_KWARGS_MAP['{benchmark}']='{text}'"


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def answered(records: Iterable[Mapping[str, Any]]) -> Counter[tuple[str, str]]:
    """How often each question, by item and name, has got an answer that holds a value."""
    return Counter((one["item"], one["question"]) for one in records if one["status"] == "ok")


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    return Kit(tmp_path_factory.mktemp("every"), shared_mirror())


@pytest.fixture(scope="module")
def undisturbed(kit: Kit) -> Run:
    return kit.run("undisturbed", kit.names)


def value_of(parts: Sequence[ItemPart], shares: Mapping[str, float] | None) -> float | None:
    """Returns Σ share · (Σ total / Σ weight) over groups, or None if a group has no weight."""
    sums: dict[str | None, list[tuple[float, float]]] = {group: [] for group in shares or [None]}
    for part in parts:
        sums[part.group].append((part.total, part.weight))
    value = 0.0
    for group, known in sums.items():
        weight = math.fsum(one for _, one in known)
        if not weight:
            return None
        value += (shares[group] if shares and group else 1.0) * math.fsum(one for one, _ in known) / weight
    return value


@of_all
def test_its_headline_is_there_and_what_items_give_makes_each_metric(
    kit: Kit, undisturbed: Run, benchmark: str
) -> None:
    seen, cell = undisturbed[benchmark], kit.cell("undisturbed", benchmark)
    assert seen.state == "complete", seen.message
    coverage = seen.result["coverage"]
    assert coverage["judged"] == coverage["generated"] == coverage["expected"] == LIMIT
    values = [seen.result["metrics"][name]["value"] for name in seen.result["headline"]]
    # of so few images none is about some of UniGenBench's dimensions
    assert values and (None not in values or benchmark == "unigenbench")
    judged = [one for one in seen.records if one["evaluator"].startswith("judge-")]
    assert seen.replies == Counter(ok=len(judged))
    assert bool(judged) == (benchmark in ASKED)
    assert check_files(cell) >= {"scores.jsonl", "result.json", "judgements.jsonl"}

    result = read_result(cell / "result.json")
    found = with_parts(result, seen.scores, {}).metrics
    known = {name: metric for name, metric in found.items() if metric.value is not None}
    silent = {name for name, metric in known.items() if not metric.parts}
    assert silent == {
        name for name in known if any(fnmatch(name, one) for one in NO_MEANS.get(benchmark, ()))
    }
    tolerance = ROUNDED.get(benchmark, 0.0)
    for name, metric in known.items():
        if metric.parts:
            value = value_of(metric.parts, metric.shares)
            assert value == pytest.approx(metric.value, rel=0, abs=1e-9 * metric.scale + tolerance), name
            assert len({part.item for part in metric.parts}) == metric.n

    made = registry.make_benchmark(benchmark, {}, "")
    assert {name for one in seen.scores for name in one["values"]} <= {*made.item_values}
    # --until says before the first image what it would else find after a round
    items = {one["item"] for one in seen.scores}
    can_tell = all(
        [part.item for part in found[name].parts if part.weight == 1]
        == [*dict.fromkeys(part.item for part in found[name].parts)]
        and {part.item for part in found[name].parts} == items
        for name in result.headline
    )
    assert can_tell == (not made.needs_all_items)


@pytest.fixture(scope="module")
def second(kit: Kit, undisturbed: Run) -> Run:
    return kit.run("undisturbed", kit.names, "--infer", "false")


@of_all
def test_a_second_run_asks_nothing(undisturbed: Run, second: Run, benchmark: str) -> None:
    first, seen = undisturbed[benchmark], second[benchmark]
    assert ", 0 to ask" in seen.log
    assert seen.replies == Counter()
    assert seen.state == "complete"
    # what differs is told by its line: pytest takes minutes to compare the whole
    for ours, theirs in ((seen.records, first.records), (seen.scores, first.scores)):
        assert len(ours) == len(theirs)
        assert [n for n, line in enumerate(ours) if line != theirs[n]] == []
    assert seen.result["metrics"] == first.result["metrics"]


@pytest.fixture(scope="module")
def cut_off(kit: Kit, undisturbed: Run) -> Run:
    """A run of the same images whose evaluations are killed, and go on; then the judges die."""
    kept = shutil.ignore_patterns("judgements*", ".judgements*", "result*", "scores*", "official")
    for name in DISTURBED:
        shutil.copytree(kit.cell("undisturbed", name), kit.cell("disturbed", name), ignore=kept)
        kit.to_kill(name).touch()

    def dying(name: str) -> JudgeServer:
        """Every second one goes away, the others answer nothing but errors, when about half of 12 is answered."""
        last = SOME + WORKERS + LIMIT // 3
        server = JudgeServer(die_after=last if DISTURBED.index(name) % 2 else 0, down_for=3600.0)
        server.hold = lambda request: request.number > SOME and kit.to_kill(name).exists()
        server.choose = lambda request, attempt: "ok" if server.received < last else "500"
        return server

    return kit.run("disturbed", DISTURBED, "--infer", "false", judge=dying)


@of_disturbed
def test_a_killed_evaluation_goes_on_where_it_was(cut_off: Run, benchmark: str) -> None:
    seen = cut_off[benchmark]
    before, after = (int(known) for known in re.findall(r"(\d+) of \d+ questions are answered", seen.log))
    assert after - before == SOME
    assert set(answered(seen.records).values()) == {1}
    assert (seen.state == "complete") == (benchmark not in ASKED)


@of_asked
def test_a_judge_that_dies_ends_its_run(cut_off: Run, benchmark: str) -> None:
    seen = cut_off[benchmark]
    # with few questions left, each of them has failed before it is clear that none will be answered
    assert seen.state in ("failed", "incomplete")
    assert (
        re.search("run again to ask again|the next run continues", seen.message) and "\n" not in seen.message
    )
    if seen.result:  # there is none where no item has all answers
        coverage = seen.result["coverage"]
        assert seen.result["headline"] == []
        assert 0 < coverage["judged"] < LIMIT == coverage["judged"] + coverage["judge_failed"]


@pytest.fixture(scope="module")
def malformed(kit: Kit, cut_off: Run) -> Run:
    """The next run, whose judges give some malformed replies."""

    def spoiling(name: str) -> JudgeServer:
        """To one in twenty questions the first reply is malformed, and all about the image of another one."""
        server, seen, spoiled = JudgeServer(), itertools.count(1), set[str]()

        def choose(request: Received, attempt: int) -> str:
            if name == "t2ireasonbench" and len(request.fields["messages"]) == 1:
                return "ok"  # any words describe
            number = next(seen) % 20 if attempt == 1 and request.images not in spoiled else 0
            if number == 2:
                spoiled.add(request.images)
            return "malformed" if number == 3 or request.images in spoiled else "ok"

        server.choose = choose
        return server

    return kit.run("disturbed", DISTURBED_ASKED, "--infer", "false", judge=spoiling)


@of_asked
def test_malformed_replies_are_no_scores(cut_off: Run, malformed: Run, benchmark: str) -> None:
    seen, coverage = malformed[benchmark], malformed[benchmark].result["coverage"]
    assert seen.replies["malformed"] >= 0.05 * seen.replies.total() > 0
    new = seen.records[len(cut_off[benchmark].records) :]
    assert sum(one["attempts"] for one in new) == seen.replies.total()
    if benchmark == ANY_WORDS:
        assert (seen.state, coverage["judged"]) == ("complete", LIMIT)
        return
    assert seen.state == "incomplete"
    tries = Counter((one["item"], one["question"]) for one in new)
    lost = tries.keys() - answered(new)
    of_network = benchmark == PROBABILITIES
    assert {tries[question] for question in lost} == {
        1 if of_network else registry.make_benchmark(benchmark, {}, "").tries
    }
    assert not [one for one in new if one["raw"] == MALFORMED and one["status"] == "ok"]
    items = {item for item, _ in lost}
    assert {one["item"] for one in seen.scores if not one["values"]} == items
    assert coverage["judge_failed" if of_network else "unparsed"] == len(items) == LIMIT - coverage["judged"]
    assert seen.result["headline"] == [] and seen.result["withheld"]
    assert ("run again to ask" if of_network else "--retry_unparsed asks again") in seen.message


@pytest.fixture(scope="module")
def mended(kit: Kit, malformed: Run) -> Run:
    """The last run, with judges that work."""
    return kit.run("disturbed", DISTURBED_ASKED, "--infer", "false", "--retry_unparsed")


@of_asked
def test_what_is_lacking_is_asked_and_nothing_else(malformed: Run, mended: Run, benchmark: str) -> None:
    seen, before = mended[benchmark], malformed[benchmark].records
    assert seen.state == "complete", seen.message
    questions = answered(seen.records)
    assert set(questions.values()) == {1}
    assert seen.replies == Counter(ok=len(questions.keys() - answered(before)))
    assert [n for n, one in enumerate(before) if seen.records[n] != one] == []


@of_disturbed
def test_what_was_disturbed_ends_as_what_was_not(
    undisturbed: Run, cut_off: Run, mended: Run, benchmark: str
) -> None:
    ours, theirs = {**cut_off, **mended}[benchmark], undisturbed[benchmark]
    assert ours.result["coverage"] == theirs.result["coverage"]
    scores, expected = ({one["item"]: one["values"] for one in each.scores} for each in (ours, theirs))
    assert scores.keys() == expected.keys()
    nonsense = {one["item"] for one in ours.records if one["raw"] == MALFORMED and one["status"] == "ok"}
    assert bool(nonsense) == (benchmark == ANY_WORDS)
    assert [item for item in scores if item not in nonsense and scores[item] != expected[item]] == []
    assert nonsense or ours.result["metrics"] == theirs.result["metrics"]
