"""Which flags of ``vllm serve`` decide what a judge answers, and which only how fast and where it does so."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

# Names without their dashes, and without the "no-" of a switch; what is not here is taken to decide.
_INDIFFERENT = re.compile(
    # memory
    r"gpu-memory-utilization|kv-cache-memory(-bytes)?|swap-space|cpu-offload-gb|num-gpu-blocks-override|block-size|"
    r"mm-processor-cache-(gb|type)|enable-sleep-mode|max-model-len|"
    # devices and processes
    r"tp|pp|dp|dpl|dcp|(tensor|pipeline|data|decode-context)-parallel-.+|enable-expert-parallel|"
    r"distributed-executor-backend|mm-encoder-tp-mode|disable-custom-all-reduce|max-parallel-loading-workers|"
    r"api-server-count|asc|"
    # scheduling and speed
    r"max-num-seqs|max-num-batched-tokens|max-num-partial-prefills|max-long-partial-prefills|"
    r"long-prefill-token-threshold|enable-chunked-prefill|enable-prefix-caching|prefix-caching-hash-algo|"
    r"async-scheduling|scheduling-policy|stream-interval|enforce-eager|max-seq-len-to-capture|"
    r"cuda-graph-sizes|cudagraph-.+|compilation-config|cc|O\d*|"
    # places
    r"download-dir|allowed-local-media-path|allowed-media-domains|safetensors-load-strategy|use-tqdm-on-load|"
    r"root-path|allow-credentials|allowed-(origins|methods|headers)|ssl-.+|"
    # logs and metrics
    r"(disable|enable)-log-.+|disable-uvicorn-access-log|uvicorn-log-level|max-log-len|log-.+|"
    r"show-hidden-metrics-.+|otlp-traces-endpoint|collect-detailed-traces|disable-fastapi-docs|kv-cache-metrics.*"
)


def decisive_flags(flags: Sequence[str]) -> list[str]:
    """Those of ``flags`` that decide what is answered, each with its values."""
    return [word for words in _with_values(flags) if not _is_indifferent(words[0]) for word in words]


def name_of(flag: str) -> str:
    """``"--max_num_seqs=64"`` and ``"--max-num-seqs"`` are ``"max-num-seqs"``; of ``"--a.b"`` it is ``"a"``."""
    return re.split(r"[=.]", flag.lstrip("-"))[0].replace("_", "-")


def _with_values(flags: Sequence[str]) -> Iterator[list[str]]:
    words: list[str] = []
    for word in flags:
        if word.startswith("-") and words:
            yield words
            words = []
        words.append(word)
    if words:
        yield words


def _is_indifferent(flag: str) -> bool:
    return bool(_INDIFFERENT.fullmatch(name_of(flag).removeprefix("no-")))
