"""``--compare A B`` runs nothing else."""

from __future__ import annotations

from imageevalkit.store.cell import Cell, log_root, output_root
from tests.support.cells import HUNDRED, changed, write_scored
from tests.support.commands import eval_here


def test_the_command_compares_and_runs_nothing() -> None:
    write_scored(Cell("old", "quicktext"), HUNDRED)
    write_scored(Cell("new", "quicktext"), changed(HUNDRED, up=12))
    done = eval_here("--compare", "old", "new")
    assert (done.status, done.error) == (0, "")
    assert "quicktext/accuracy  0.5000  0.6200  +0.1200" in done.said and "better" in done.said
    names = sorted(path.name for path in (output_root() / "comparisons").glob("old-vs-new-*/*"))
    assert names == ["comparison.csv", "comparison.html", "items.csv"]
    assert not log_root().exists()
