"""The files of OneIG-Bench's two editions, as its repository has them."""

from __future__ import annotations

from functools import partial

from imageevalkit.asset_manifest import github

_REPOSITORY = partial(github, "OneIG-Bench/OneIG-Benchmark", "41b49831e79e6dde5323618c164da1c4cf0f699d")
_DATA = partial(
    _REPOSITORY,
    licence="CC-BY-NC-4.0 (dataset card of OneIG-Bench/OneIG-Bench; the repository states none)",
)
_INFERENCER = "scripts/utils/inference.py::Qwen2_5VLBatchInferencer"
_BOTH = _DATA(
    {
        "CSD_embed.pt": (
            "scripts/style/CSD_embed.pt",
            "cab217036607911e4273003cda5c8dfb69528e4a0421ec6006af8ddc6525e56e",
            275724,
        ),
        "SE_embed.pt": (
            "scripts/style/SE_embed.pt",
            "c53719b72b40ea997547fad1a001150350337bf69039965c6ff731ff2a17dd83",
            231149,
        ),
    }
) + _REPOSITORY(
    prompts={
        f"{_INFERENCER}.infer_semantic": "343786ab3658cc4314408d0cba87e593d1feed7031bcfdc15a45110e7cee9c7c",
        f"{_INFERENCER}.TEXT_PROMPT": "10c070ac876c07e1280492dae0c3dffa453bda1fcb9bb3e03f57e7c573fa3714",
    },
    licence="none stated (OneIG-Bench/OneIG-Benchmark)",
)

ENGLISH_ASSETS = (
    *_DATA(
        {
            "OneIG-Bench.csv": (
                "OneIG-Bench.csv",
                "e06c65b32252d82406fb1a27f13022b38d432c899a2486eb49ab0c100f83b3e1",
                378082,
            ),
            "anime.json": (
                "scripts/alignment/Q_D/anime.json",
                "21ea3d0360e69d72bc5f4cbb93b203d293d16f5c2f626634a52b990119e0a6e3",
                240912,
            ),
            "human.json": (
                "scripts/alignment/Q_D/human.json",
                "0e92b25c6bc4091cac05fa0f4269b3b37465a7cd43ca2768f55f56149cdbf13b",
                233346,
            ),
            "object.json": (
                "scripts/alignment/Q_D/object.json",
                "350dfdf72c2da143c78a7544d4c554faf6698c1ba4fcd27c7a9cc9199d487e0e",
                179650,
            ),
            "text_content.csv": (
                "scripts/text/text_content.csv",
                "ffbf0b588c617b77caf1e9a733496ff5b4704b6534df5fba13201a83f21e0512",
                97314,
            ),
            "gt_answer.json": (
                "scripts/reasoning/gt_answer.json",
                "e46733770fc0b99632e77e54f59316bcc7f170752680dd0c24d43c722bae402b",
                141383,
            ),
        }
    ),
    *_BOTH,
)

CHINESE_ASSETS = (
    *_DATA(
        {
            "OneIG-Bench-ZH.csv": (
                "OneIG-Bench-ZH.csv",
                "8fc4ae1403db32dbb1203cc457361c3215500b34e741194a53f5002c9d824700",
                375669,
            ),
            "anime_zh.json": (
                "scripts/alignment/Q_D/anime_zh.json",
                "171740d2d7158f0da2d907481b5cd97380398e4a45b53f0976ad4d91e01151d4",
                250389,
            ),
            "human_zh.json": (
                "scripts/alignment/Q_D/human_zh.json",
                "819f13b1efab67bdfba9ca633a37e009013350d148323f5d65b2a467f1789c64",
                248770,
            ),
            "object_zh.json": (
                "scripts/alignment/Q_D/object_zh.json",
                "19f69cfdf17119ff5400919341c930468a0de5ee06b9c91d8f16ba2365f51498",
                185005,
            ),
            "multilingualism_zh.json": (
                "scripts/alignment/Q_D/multilingualism_zh.json",
                "63614e72dbd86f1e56ed625a55f73d509323d34b68fb27d8fed0f87a49f69db9",
                148469,
            ),
            "text_content_zh.csv": (
                "scripts/text/text_content_zh.csv",
                "6250b3be96e9c4fd4c9cb858dd36b5b2dc4fc8fccb8e4ed0317f5da392db9a1a",
                89199,
            ),
            "gt_answer_zh.json": (
                "scripts/reasoning/gt_answer_zh.json",
                "faaf0849de1fb62829ed49ec5de7f582562847fb01f390b7a4bb106e48f0c116",
                94881,
            ),
        }
    ),
    *_BOTH,
)
