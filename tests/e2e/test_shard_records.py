"""Records of shards that are left do not disturb a run."""

from __future__ import annotations

from imageevalkit.store.cell import output_root
from tests.support.checkout import needs_driver_env
from tests.support.commands import eval_here


@needs_driver_env
def test_the_records_of_shards_are_no_other_models_folder() -> None:
    folder = output_root() / "reference-noise" / "quicktext" / ".shards" / "1of2"
    folder.mkdir(parents=True)
    (folder / "generation.jsonl").write_text("")
    words = ["--model_names", "reference-noise", "--ds_names", "quicktext", "--limit", "2"]
    done = eval_here(*words, "--dry_run")
    assert done.status == 0, done
    assert "reference-noise/quicktext: 2 images to generate" in done.said
