"""The hash of an environment: what it counts, what it costs, and where a result shows it."""

from __future__ import annotations

import json
import subprocess
import sys

from imageevalkit.common.hashes import environment_hash, hash_of
from imageevalkit.evaluate.scoring import provenance
from imageevalkit.generate.model import installed_packages
from imageevalkit.store import fingerprint as fp
from imageevalkit.store.cell import REPO, Cell
from imageevalkit.store.results import Metric
from imageevalkit.store.states import survey
from tests.support.cells import Made, write_cell
from tests.support.site import reported


def test_the_hash_covers_every_distribution_that_the_library_lists() -> None:
    """In a process of its own: the hash is cached, and another test may have read it with other folders on the path."""
    program = """
import importlib.metadata, platform, re
from imageevalkit.common.hashes import environment_hash, hash_of, installed
listed = {
    f"{re.sub('[-_.]+', '-', found.name).lower()}=={found.version}"
    for found in importlib.metadata.distributions()
}
assert set(installed()) == listed, set(installed()) ^ listed
assert len(listed) > 20, listed
assert environment_hash() == hash_of(listed, platform.python_version())
"""
    subprocess.run([sys.executable, "-c", program], cwd=REPO, check=True)


def test_order_and_repetition_do_not_count_but_every_version_and_the_python_do() -> None:
    same = hash_of(["torch==2.13.0", "pillow==13.0.0"], "3.12.1")
    # fixed: a result of last year must be comparable
    assert same == "fd75bd90af44cf55f9690c585f75b0858358b00e743516c6dcdddc9bf47fff43"
    assert hash_of(["pillow==13.0.0", "torch==2.13.0", "torch==2.13.0"], "3.12.1") == same
    assert hash_of(["torch==2.13.0+cpu", "pillow==13.0.0"], "3.12.1") != same
    assert hash_of(["torch==2.13.0", "pillow==13.0.0"], "3.12.2") != same


def test_the_hash_is_in_the_provenance_of_image_and_score_and_in_the_report() -> None:
    cell = Cell("m", "longtext")
    cell.folder.mkdir(parents=True)
    fp.remember(cell.fingerprints, {"model_path": "x"}, installed_packages())
    origin = provenance(cell, survey(cell, []), {})
    assert origin["environment"] == origin["model_packages"][0]["environment"] == environment_hash()

    write_cell(*cell, [Made("images/p/0001_1", "a red cat", value=0.5)], {"accuracy": Metric(0.5, 1)})
    raw = json.loads(cell.result.read_text())
    raw["provenance"] = origin
    cell.result.write_text(json.dumps(raw))
    page = reported().page.read_text()
    assert page.count(environment_hash()) == 2
