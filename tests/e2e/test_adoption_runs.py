"""Images of a folder are adopted by bash eval.sh --images."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from PIL import Image

from tests.support.checkout import find_no_text, make_checkout, needs_driver_env, run_eval

pytestmark = needs_driver_env


def test_through_eval_sh_from_another_folder(tmp_path: Path) -> None:
    checkout = find_no_text(make_checkout(tmp_path / "kit"))
    theirs = tmp_path / "theirs"
    for blue, language in enumerate(("en", "zh")):
        (theirs / language).mkdir(parents=True)
        for n in range(2):
            Image.new("RGB", (64, 64), (n, n, blue)).save(theirs / f"{language}/{n:02d}.png")
    words = ("--ds_names", "quicktext", "--limit", "4")
    whose = run_eval(checkout, "--images", str(theirs), "--model_names", "a;b", *words)
    assert whose.returncode == 1
    assert "en/00.png is in no folder of its model: with several models in --model_names" in whose.stdout
    assert not list((checkout / "output").glob("[ab]/*/images")), "one model's images are not the other's"
    shutil.rmtree(checkout / "output")
    absent = run_eval(checkout, "--images", str(tmp_path / "no"), "--model_names", "a", *words)
    assert absent.returncode == 2
    assert f"--images: there is no {tmp_path / 'no'}" in absent.stderr
    for model in ("b", "org/c"):
        shutil.copytree(theirs, tmp_path / "several" / model)
    both = run_eval(checkout, "--images", str(tmp_path / "several"), "--model_names", "b;org/c", *words)
    assert both.returncode == 0, both.stderr
    records = (checkout / "output/org/c/quicktext/generation.jsonl").read_text().splitlines()
    assert {json.loads(line)["source"] for line in records} == {
        str(path) for path in (tmp_path / "several/org/c").rglob("*.png")
    }

    def planned() -> str:
        return run_eval(checkout, "--images", str(theirs), "--model_names", "a", *words, "--dry_run").stdout

    before = planned()
    assert f"a/quicktext: 4 of 4 images are in {theirs}" in before
    assert "a/quicktext: 4 of 4 questions to ask of ppocr-v4" in before
    assert not (checkout / "output/a").exists()
    run = run_eval(checkout, "--images", str(theirs), "--model_names", "a", *words)
    assert run.returncode == 0, run.stderr
    result = json.loads((checkout / "output/a/quicktext/result.json").read_text())
    assert result["coverage"]["judged"] == 4
    assert "4 images come from elsewhere: their settings are unknown" in result["notes"]
    assert result["provenance"]["model_settings"] == [{"images": "made elsewhere", "source": str(theirs)}]
    Image.new("RGB", (64, 64), "red").save(theirs / "en/00.png")
    assert "a/quicktext: 1 of 4 questions to ask of ppocr-v4" in planned(), "an image is another one now"


def test_one_benchmark_may_have_its_folder_too_and_what_is_no_image_costs_only_itself(tmp_path: Path) -> None:
    checkout, theirs = find_no_text(make_checkout(tmp_path / "kit")), tmp_path / "theirs"
    for n, name in enumerate(["en/00", "zh/00", "en/01", "zh/01"]):
        path = theirs / f"quicktext/{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64), (n, n, n)).save(path)
    bad = theirs / "quicktext/en/01.png"
    bad.write_bytes(bad.read_bytes()[:-20])
    words = ("--images", str(theirs), "--model_names", "a", "--ds_names", "quicktext", "--limit", "4")
    run = run_eval(checkout, *words)
    assert run.returncode == 3, run.stdout + run.stderr
    [log] = (checkout / "log/a").glob("quicktext_adopt_*.log")
    said = f"1 of 4 images are corrupt and not copied: en/01.jpg (the first: {bad} does not decode ("
    assert said in log.read_text()
    assert f"3 of 4 judged; 1 corrupt; corrupt: en/01: {bad} does not decode (" in run.stdout
    result = json.loads((checkout / "output/a/quicktext/result.json").read_text())
    counts = {key: result["coverage"][key] for key in ("expected", "generated", "corrupt", "judged")}
    assert counts == {"expected": 4, "generated": 3, "corrupt": 1, "judged": 3}
    page = (checkout / "output/report.html").read_text()
    assert f"{bad} does not decode" in page
