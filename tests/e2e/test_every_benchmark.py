"""Every benchmark through eval.sh on its real data, or on stand-ins where nobody keeps them.

Judges are real servers that fail now and then; networks have random weights.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

from imageevalkit import registry
from imageevalkit.assets import PROMPTS, FileAsset
from imageevalkit.report.item_parts import with_parts
from imageevalkit.store.results import ItemPart, read_result
from tests.support import (
    corebench_data,
    gedit_data,
    genexam_data,
    krisbench_data,
    omnicontext_data,
    prefer_data,
    rise_data,
    wiseedit_data,
)
from tests.support.checkout import (
    find_no_text,
    make_checkout,
    needs_driver_env,
    run_command,
    run_eval,
    start_eval,
)
from tests.support.image_server import random_faults
from tests.support.jobs import marked
from tests.support.judge_server import JudgeServer
from tests.support.mirror import shared_mirror
from tests.support.schemas import check_files
from tests.support.trig_data import TASKS, write_local
from tests.support.waiting import wait_for

pytestmark = needs_driver_env

REPO = Path(__file__).resolve().parents[2]
PACKAGES = Path(os.environ.get("DREAMSIM_PACKAGES") or Path(sys.prefix) / "dreamsim-packages")
MODEL = "reference-typeset"
LIMIT = 12
# replies of all judges until the first run is killed, and the most replies of a judge that are lost by it
KILLED_AFTER, IN_FLIGHT = 100, 8
ALL = sorted(registry.benchmark_tasks())
NETWORKS = ("geneval", "hpsv2", "prefer", "cvtg2k")
# GenAI-Bench and DPG-Bench in place of a network
ASKED = [name for name in ALL if name not in ("cvtg2k", "geneval", "hpsv2", "quickshapes", "quicktext")]
# what a benchmark needs beside the tests
needs_open_clip = pytest.mark.skipif(
    not (PACKAGES / "open_clip").is_dir(),
    reason=f"no DREAMSIM_PACKAGES, and test.sh has not installed {PACKAGES}",
)
of_all = pytest.mark.parametrize(
    "benchmark", [pytest.param(name, marks=needs_open_clip if name in NETWORKS else ()) for name in ALL]
)

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
    "prefer": ("*/deviation",),
}
# official programs round these; what items give is of the unrounded
ROUNDED = {"genevalpp": 1e-4, "imgedit": 0.01, "t2ireasonbench": 0.005, "tiff": 5e-5}
SETTINGS: dict[str, dict[str, Any]] = {
    "oneig": {"images_per_prompt": 2, "tasks": "alignment,text,style"},
    "oneig-zh": {"images_per_prompt": 2, "tasks": "alignment,text"},
    "prefer": {"models": "imagereward,pickscore,hpsv2.1,hpsv3,clipscore,aesthetic,unifiedreward"},
}


SMALL = """

_load = HPSv2Encoder.load


def _load_small(self, questions):
    import open_clip

    open_clip.add_model_config({!r})  # so small are the checkpoints
    return _load(self, questions)


HPSv2Encoder.load = _load_small
"""


class Seen(NamedTuple):
    """One result after a run: its folder, state and printed message, and the number of its judge's replies by kind."""

    folder: Path
    state: str
    message: str
    replies: Counter[str]


class Kit:
    """A checkout with the data of all benchmarks and weights for their networks."""

    def __init__(self, folder: Path, mirror: Path) -> None:
        self.folder, self.checkout = folder, find_no_text(make_checkout(folder / "kit"))
        self.names = [name for name in ALL if name not in NETWORKS or (PACKAGES / "open_clip").is_dir()]
        painter = self.checkout / "infer/custom_models/model_utils/reference.py"
        painter.write_text(painter.read_text().replace("int = 1024", "int = 128"))
        settings = SETTINGS | {
            f"trig-{task}": {**write_local(folder / "trig", task, LIMIT), "pairs": "IQ-R_TA-C,TA-R_TA-S"}
            for task in TASKS
        }
        self._make_up_what_is_lacking(mirror)
        self._configure([_ds_kwargs(name, settings[name]) for name in settings])
        words = ["utils/prefetch.sh", "--eval", "false", "--ds_names", ";".join(ALL), "--mirror", str(mirror)]
        hub = {"HF_HUB_CACHE": str(folder / "hub")}
        run_command(["bash", *words], self.checkout, {**os.environ, **hub}, status=0)
        # what torchvision lacks here, and open_clip, for processes with networks
        self._paths = os.pathsep.join(map(str, (REPO / "tests/support/torchvision_ops", PACKAGES)))
        saved = run_command(
            [sys.executable, "-m", "tests.support.tiny_measurers", str(folder / "weights"), *self.names],
            env={**os.environ, "PYTHONPATH": f"{REPO}{os.pathsep}{self._paths}"},
            status=0,
        )
        weights = json.loads(saved.stdout)
        if "hpsv2" in weights:
            encoder = self.checkout / "eval_models/encoders/clip.py"
            encoder.write_text(
                encoder.read_text() + SMALL.format(f"{weights['hpsv2']['hpsv2']}/ViT-H-14.json")
            )
        self._config = [f"EVAL_ENV_MAP['{name}']='{sys.prefix}'" for name in ("encoders", *NETWORKS)]
        self._config.append("JUDGE_MAP['cvtg2k']='ppocr'")
        for name in self.names:
            own = {"weights": weights[name]} if name in weights else {}
            self._config.append(_ds_kwargs(name, settings.get(name, {}) | own))

    def _make_up_what_is_lacking(self, mirror: Path) -> None:
        """Stand-ins of data and texts that nobody keeps."""
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
        prefer_data.write_texts(self.checkout / "benchmarks/prefer")
        self._make_up("prefer", "dataset/pickscore/test.txt", prefer_data.PROMPTS.encode())
        gedit_data.write(self.checkout / "benchmarks/gedit/data")
        omnicontext_data.write(self.checkout / "benchmarks/omnicontext/data")
        self._make_up_texts("genevalpp", lambda key: "Judge the image.")
        self._make_up_texts(
            "bizgeneval", lambda key: "Statements:\n{checklist}" if "USER" in key else "Judge it."
        )
        rise_data.write(self.checkout / "benchmarks/rise")
        genexam_data.write(self.checkout / "benchmarks/genexam")
        corebench_data.write_template(self.checkout / "benchmarks/t2icorebench")
        krisbench_data.write(self.checkout / "benchmarks/krisbench/data")
        wiseedit_data.write(self.folder / "hub")
        self._make_up_texts("wiseedit", lambda key: "{hint}" if "hint" in key else "Grade it 1-10.")

    def _make_up(self, benchmark: str, path: str, data: bytes) -> None:
        """Let ``data`` be the file ``path`` of a benchmark."""
        target = self.checkout / "benchmarks" / benchmark / "data" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        listed = self.checkout / "benchmarks" / benchmark / "assets.txt"
        line = f"{hashlib.sha256(data).hexdigest()} {len(data)} {path}"
        text, count = re.subn(rf"^\w+ \S+ {re.escape(path)}$", line, listed.read_text(), flags=re.MULTILINE)
        assert count == 1
        listed.write_text(text)

    def _make_up_texts(self, benchmark: str, text_of: Callable[[str], str]) -> None:
        """Let the texts of a benchmark's questions be what ``text_of`` says of their keys."""
        folder = self.checkout / "benchmarks" / benchmark
        listed, texts = folder / "assets.txt", {}

        def line(found: re.Match[str]) -> str:
            key = found[1]
            texts[key] = text_of(key)
            return f"{hashlib.sha256(texts[key].encode()).hexdigest()} {key}"

        listed.write_text(re.sub(r"^[0-9a-f]{64} (\S+::.*)$", line, listed.read_text(), flags=re.MULTILINE))
        target = folder / "data" / PROMPTS
        target.parent.mkdir(parents=True)
        target.write_text(json.dumps(texts))

    def _configure(self, lines: Iterable[str]) -> None:
        (self.checkout / "config.local.sh").write_text("".join(f"{line}\n" for line in lines))

    def run(self) -> dict[str, Seen]:
        """Evaluate all benchmarks, each with a judge of its own if it is asked.

        One reply in twenty is malformed. The run is killed in the middle. In the next run each judge dies once,
        and a last run has nothing to ask.
        """
        faults = [(0.03, "garbage"), (0.02, "cut_short")]
        with ExitStack() as stack:
            servers = {
                name: stack.enter_context(JudgeServer(latency=0.02)) for name in self.names if name in ASKED
            }
            config = list(self._config)
            for number, (name, server) in enumerate(servers.items()):
                server.choose = random_faults(faults, [], number)
                config.append(f"JUDGE_MAP['{name}']='openai:judge-{name}'")
                kwargs = f"base_url={server.base_url},backoff=0.2,max_attempts=12,max_outage=60"
                config.append(f"JUDGE_KWARGS_MAP['openai:judge-{name}']='{kwargs}'")
            self._configure(config)
            words = ["--model_names", MODEL, "--ds_names", ";".join(self.names), "--limit", str(LIMIT)]
            words += ["--num_workers", "2", "--parallel", "true"]
            env: dict[str, Any] = {
                "API_KEY": "sk-judge-4711",
                "PYTHONPATH": f"{self.checkout}{os.pathsep}{self._paths}",
                "TEST_MARKER": str(self.checkout),
                "HF_HUB_CACHE": str(self.folder / "hub"),
            }
            process = start_eval(self.checkout, *words, **env)
            wait_for(lambda: sum(one.received for one in servers.values()) >= KILLED_AFTER)
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
            wait_for(lambda: not marked(str(self.checkout)))  # its guards end the rest
            for server in servers.values():
                server.die_after, server.down_for = server.received + 2, 0.5
            run_eval(self.checkout, *words, **env)
            replies = {
                name: Counter(one.fault for one in server.requests) for name, server in servers.items()
            }
            run_eval(self.checkout, *words, **env)
            assert sum(len(server.requests) for server in servers.values()) == sum(
                sum(one.values()) for one in replies.values()
            )
            met = sum(replies.values(), Counter[str]())
            assert met["reset"] and met["garbage"] and met["cut_short"]
        [summary, *_] = sorted(self.checkout.glob("log/runs/*/summary.json"), reverse=True)
        cells = {one["cell"]: one for one in json.loads(summary.read_text())["cells"]}
        return {
            name: Seen(
                self.checkout / "output" / MODEL / name,
                cells[f"{MODEL}/{name}"]["state"],
                cells[f"{MODEL}/{name}"]["message"],
                replies.get(name, Counter()),
            )
            for name in self.names
        }


def _ds_kwargs(benchmark: str, settings: Mapping[str, Any]) -> str:
    text = ",".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
    return f"DS_KWARGS_MAP['{benchmark}']='{text}'"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """By benchmark."""
    return Kit(tmp_path_factory.mktemp("every"), shared_mirror()).run()


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
    seen: dict[str, Seen], benchmark: str
) -> None:
    cell, state, message, replies = seen[benchmark]
    assert state == "complete", message
    raw = json.loads((cell / "result.json").read_text())
    coverage = raw["coverage"]
    assert coverage["judged"] == coverage["generated"] == coverage["expected"] == LIMIT
    values = [raw["metrics"][name]["value"] for name in raw["headline"]]
    # of so few images none is about some of UniGenBench's dimensions
    assert values and (None not in values or benchmark.startswith("unigenbench"))
    records, scores = (
        [json.loads(line) for line in (cell / f"{name}.jsonl").read_text().splitlines()]
        for name in ("judgements", "scores")
    )
    judged = [one for one in records if one["evaluator"].startswith("judge-")]
    assert len(judged) <= replies["ok"] <= len(judged) + IN_FLIGHT
    assert bool(judged) == (benchmark in ASKED)
    assert check_files(cell) >= {"scores.jsonl", "result.json", "judgements.jsonl"}

    result = read_result(cell / "result.json")
    found = with_parts(result, scores, {}).metrics
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

    made = registry.make_benchmark(benchmark, SETTINGS.get(benchmark, {}), "")
    assert {name for one in scores for name in one["values"]} <= {*made.item_values}
    # --until says before the first image what it would else find after a round
    items = {one["item"] for one in scores}
    can_tell = all(
        [part.item for part in found[name].parts if part.weight == 1]
        == [*dict.fromkeys(part.item for part in found[name].parts)]
        and {part.item for part in found[name].parts} == items
        for name in result.headline
    )
    assert can_tell == (not made.needs_all_items)
