"""bash eval.sh --compare A B runs nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from imageevalkit.store.cell import Cell
from tests.support.cells import write_scored
from tests.support.checkout import make_checkout, needs_driver_env, run_eval

OLD = {f"p/{n:04}": float(n % 2) for n in range(100)}


@needs_driver_env
def test_eval_sh_compares_and_runs_nothing(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "checkout")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IMAGEEVALKIT_OUTPUT", str(checkout / "output"))
        write_scored(Cell("old", "quicktext"), OLD)
        write_scored(Cell("new", "quicktext"), OLD | {f"p/{n:04}": 1.0 for n in range(0, 24, 2)})
    run = run_eval(checkout, "--compare", "old", "new")
    assert run.returncode == 0, run.stderr
    assert "quicktext/accuracy  0.5000  0.6200  +0.1200" in run.stdout
    assert "better" in run.stdout
    names = sorted(path.name for path in (checkout / "output/comparisons").glob("old-vs-new-*/*"))
    assert names == ["comparison.csv", "comparison.html", "items.csv"]
    assert not (checkout / "log").exists()
