"""Images of a folder are adopted by bash eval.sh --images."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

from tests.support.checkout import find_no_text, make_checkout, needs_driver_env, run_eval

pytestmark = needs_driver_env


def test_one_benchmark_may_have_its_folder_too_and_what_is_no_image_costs_only_itself(tmp_path: Path) -> None:
    checkout, theirs = find_no_text(make_checkout(tmp_path / "kit")), tmp_path / "theirs"
    for n, name in enumerate(["en/00", "zh/00", "en/01", "zh/01"]):
        path = theirs / f"quicktext/{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64), (n, n, n)).save(path)
    bad = theirs / "quicktext/en/01.png"
    bad.write_bytes(bad.read_bytes()[:-20])
    words = ("--images", str(theirs), "--model_names", "a", "--ds_names", "quicktext", "--limit", "4")
    run = run_eval(checkout, *words, status=3)
    [log] = (checkout / "log/a").glob("quicktext_adopt_*.log")
    said = f"1 of 4 images are corrupt and not copied: en/01.jpg (the first: {bad} does not decode ("
    assert said in log.read_text()
    assert f"3 of 4 judged; 1 corrupt; corrupt: en/01: {bad} does not decode (" in run.stdout
    result = json.loads((checkout / "output/a/quicktext/result.json").read_text())
    counts = {key: result["coverage"][key] for key in ("expected", "generated", "corrupt", "judged")}
    assert counts == {"expected": 4, "generated": 3, "corrupt": 1, "judged": 3}
    page = (checkout / "output/report.html").read_text()
    assert f"{bad} does not decode" in page
