"""The toolkit works without the folder of any extra."""

from __future__ import annotations

import shutil
from pathlib import Path

from imageevalkit.extension_points import extras
from tests.support.checkout import find_no_text, make_checkout, needs_driver_env, run_eval


@needs_driver_env
def test_the_quick_start_needs_no_extra(tmp_path: Path) -> None:
    checkout = find_no_text(make_checkout(tmp_path))
    for name in extras():
        shutil.rmtree(checkout / "imageevalkit/extras" / name)
    missing = run_eval(checkout, "prefetch", "--ds_names", "wise")
    assert missing.returncode == 2 and missing.stderr.count("\n") == 1, missing.stderr
    assert missing.stderr.startswith("error: prefetch: this checkout has no imageevalkit/extras/prefetch")
    done = run_eval(checkout, "--quickstart", "--limit", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (checkout / "output/leaderboard.csv").read_text().count("quicktext") >= 2
