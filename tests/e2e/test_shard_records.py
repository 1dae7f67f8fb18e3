"""Records of shards that are left do not disturb a run."""

from __future__ import annotations

from pathlib import Path

from tests.support.checkout import make_checkout, needs_driver_env, run_eval


@needs_driver_env
def test_the_records_of_shards_are_no_other_models_folder(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "kit")
    folder = checkout / "output" / "reference-noise" / "quicktext" / ".shards" / "1of2"
    folder.mkdir(parents=True)
    (folder / "generation.jsonl").write_text("")
    words = ["--model_names", "reference-noise", "--ds_names", "quicktext", "--limit", "2"]
    done = run_eval(checkout, *words, "--dry_run")
    assert done.returncode == 0, done.stderr
    assert "reference-noise/quicktext: 2 images to make" in done.stdout
