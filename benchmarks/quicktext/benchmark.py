"""quicktext: LongText-Bench's metric on 24 English and 24 Chinese prompts of our own; it downloads
nothing."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.longtext.benchmark import LongText
from imageevalkit.assets import BenchmarkFiles, PromptsAsset
from imageevalkit.benchmark.contract import Sample


class QuickText(LongText):
    """One image per prompt. English and Chinese alternate."""

    name, title = "quicktext", "QuickText"
    version = "1"
    assets = ()
    prompt_count, images_per_prompt = 48, 1
    # PP-OCR needs no download and no GPU, and no published numbers on these prompts require another judge
    judge = "ppocr"
    official_judges = LongText.official_judges

    def files(self) -> BenchmarkFiles:
        """Returns LongText-Bench's prompt file for a judge, and no files for a text reader."""
        prompts = [asset for asset in LongText.assets if isinstance(asset, PromptsAsset)]
        return BenchmarkFiles(LongText.name, prompts) if self.backend else super().files()

    def samples(self) -> Iterable[Sample]:
        for record in self.read_jsonl("prompts.jsonl", self.prompt_count):
            language = record["language"]
            yield self.sample(record, language, f"{language}/{record['prompt_id']:02d}.jpg", 1)
