"""Official prompts as assets: out of a mirror's list or the official program, and never another text."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from imageevalkit import assets, registry
from imageevalkit.assets import BenchmarkFiles, PromptsAsset, github
from imageevalkit.assets.data import fetch, pinned_texts, texts_in_program
from imageevalkit.common.errors import CellFailure
from imageevalkit.extras.prefetch.__main__ import report
from tests.support.manifest import COMMIT
from tests.support.mirror import official_source
from tests.support.web import web_server

# in the shape of an official evaluator; running it would end the tests
PROGRAM = '''
import package_that_nobody_has
raise SystemExit("this program must never run")

def build(data, image):
    return [
        {"role": "system", "text": "You are a strict judge."},
        {"role": "user", "text": f"""Prompt: "{data['Prompt']}"
Why: "{data['Why']}"
{{"score": 0}} – 只答一个数"""},
        {"image": f"data:image/png;base64,{image}"},
    ]

def ask(question):
    return '{} Answer in one word.'.format(question)
'''
TEXTS = {
    "judge/official.py::build#system": "You are a strict judge.",
    "judge/official.py::build#user": 'Prompt: "{Prompt}"\nWhy: "{Why}"\n{{"score": 0}} – 只答一个数',
    "judge/official.py::ask": "{} Answer in one word.",
}
FILE = "prompts/judge_prompts.json"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


PROMPTS = {key: sha256(text) for key, text in TEXTS.items()}
TINY = BenchmarkFiles("tiny-judge", github("owner/name", COMMIT, prompts=PROMPTS, licence="MIT"))


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The still absent data folder of the benchmark ``tiny-judge``, which needs :data:`TEXTS`."""
    monkeypatch.setattr(assets, "BENCHMARKS", tmp_path)
    return tmp_path / "tiny_judge" / "data"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The folder of the pinned commit below ``tmp_path/mirror``."""
    folder = tmp_path / "mirror" / "owner" / "name" / COMMIT
    (folder / "judge").mkdir(parents=True)
    return folder


def write_lists(source: Path, texts: dict[str, str]) -> None:
    """The texts in two lists, as larger repositories have them."""
    for n, (key, text) in enumerate(texts.items()):
        path = source / f"judge_prompts_{n % 2}.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**known, key: {"text": text, "sha256": sha256(text)}}))


def write_program(source: Path, text: str = PROGRAM) -> None:
    # upstream files come with either kind of line ends
    (source / "judge" / "official.py").write_bytes(text.replace("\n", "\r\n").encode())


def test_from_the_lists_of_a_mirror(data: Path, source: Path, tmp_path: Path) -> None:
    write_lists(source, {**TEXTS, "another.py::prompt": "not asked for"})
    assert fetch(TINY, tmp_path / "mirror") == []
    assert TINY.prompts() == TEXTS
    assert [path for path in data.rglob("*") if path.is_file()] == [data / FILE]
    assert TINY.sha256() == PROMPTS
    assert report(TINY) == []


def test_from_the_program_in_a_mirror_without_lists(data: Path, source: Path, tmp_path: Path) -> None:
    write_program(source)
    assert fetch(TINY, tmp_path / "mirror") == []
    assert TINY.prompts() == TEXTS


def test_from_the_program_on_a_server(
    data: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(source)
    with web_server(tmp_path / "mirror") as url:
        monkeypatch.setattr("imageevalkit.assets.data.GITHUB", url)
        assert fetch(TINY, None) == []
    assert TINY.prompts() == TEXTS
    assert [path for path in data.rglob("*") if path.is_file()] == [data / FILE], (
        "the program itself is not kept"
    )


@pytest.mark.parametrize("listed", [True, False])
def test_tampered_text_is_refused_and_replaces_nothing(
    data: Path, source: Path, tmp_path: Path, listed: bool
) -> None:
    if listed:
        write_lists(source, {**TEXTS, "judge/official.py::build#system": "You are a kind judge."})
    else:
        write_program(source, PROGRAM.replace("strict", "kind"))
    (data / FILE).parent.mkdir(parents=True)
    (data / FILE).write_text("{}")
    (problem,) = fetch(TINY, tmp_path / "mirror")
    assert "does not hold the pinned text of judge/official.py::build#system" in problem
    assert (data / FILE).read_text() == "{}"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "judge_prompts.json is missing"),
        ("{", "judge_prompts.json is no JSON"),
        (json.dumps(dict(list(TEXTS.items())[:2])), "(judge/official.py::ask)"),
    ],
)
def test_what_is_wrong_is_found_before_anything_is_asked(data: Path, content: str | None, says: str) -> None:
    if content is not None:
        (data / FILE).parent.mkdir(parents=True)
        (data / FILE).write_text(content)
    (problem,) = TINY.problems()
    assert says in problem
    with pytest.raises(CellFailure) as caught:
        TINY.prompts()
    message = str(caught.value)
    assert says in message and "\n" not in message
    assert "--ds_names tiny-judge" in message and "copy benchmarks/tiny_judge/data" in message


def test_the_file_of_an_earlier_version_counts_and_prefetch_moves_it(data: Path, tmp_path: Path) -> None:
    """WISE's class of upstream's toolkit reads every JSON file in the data folder as prompts."""
    data.mkdir(parents=True)
    (data / "judge_prompts.json").write_text(json.dumps(TEXTS))
    assert (TINY.problems(), TINY.prompts()) == ([], TEXTS), "on a machine without internet"
    assert fetch(TINY, tmp_path / "no mirror") == []
    assert list(data.glob("*.json")) == []
    assert (TINY.problems(), TINY.prompts()) == ([], TEXTS)


def test_a_sum_is_the_template_that_it_stands_for() -> None:
    program = b"'Made of: ' + data['prompt'] + ' {x}' + f' in {a.b}'; count = n + 1"
    assert "Made of: {prompt} {{x}} in {b}" in set(texts_in_program(program))


OFFICIAL = {
    name: asset
    for name in registry.benchmark_tasks()
    for asset in registry.benchmark_files(name).local
    if isinstance(asset, PromptsAsset)
}


@pytest.mark.parametrize("benchmark", OFFICIAL)
def test_pinned_texts_are_in_the_official_programs(benchmark: str) -> None:
    """Without a mirror and its lists, that is where prefetch finds them."""
    asset = OFFICIAL[benchmark]
    texts = pinned_texts(asset, {}, lambda path: official_source(asset.repo, asset.commit, path).encode())
    assert texts.keys() == asset.texts.keys()
