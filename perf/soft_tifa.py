"""What Soft-TIFA's questions cost: ``python perf/soft_tifa.py``; with a GPU also ``--real``.

The plain way (one ``generate`` call for each question, as the official script) against the judge of the toolkit,
turn by turn over the same images, on a random Qwen3-VL: a tiny one on the CPU in float32, or with ``--real`` one of
the shape of Qwen3-VL-8B in bfloat16 on the GPU (17 GB of disk and twice that of GPU memory; nothing is downloaded).
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from imageevalkit import registry
from imageevalkit.benchmark.question import Question
from imageevalkit.judges.choice import JudgeOptions
from tests.support.image_questions import atom_questions, read_prompts, save_image
from tests.support.plain_judge import PlainJudge
from tests.support.tiny_vlm import save_qwen3_vl
from tests.support.vision_passes import VisionPasses

_TURNS = 5
_CPU_LIMIT, _WALL_LIMIT_REAL = 6.0, 4.0
_LARGEST_DIFFERENCE = 5e-6  # float32; half precision is reported only

# Large enough for vision and text to dominate, as they do at real size, and small enough for two cores.
_TINY: dict[str, Any] = {
    "text": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4},
    "vision": {"hidden_size": 64, "intermediate_size": 192, "depth": 4},
}
_REAL: dict[str, Any] = {
    "text": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 262144,
        "initializer_range": 0.02,
        "rope_parameters": {"rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True},
    },
    "vision": {
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [8, 16, 24],
    },
    "dtype": "bfloat16",
    "device": "cuda",
}


class Cost(NamedTuple):
    """Seconds; ``peak`` memory in bytes: of the process, or of the GPU."""

    wall: float
    cpu: float
    vision: int
    peak: int


class Way:
    """One way to answer, with what it has cost so far and the probabilities it gave."""

    def __init__(self, name: str, answer: Callable[[Sequence[Question]], Iterator[dict[str, float]]]) -> None:
        self.name = name
        self.cost = Cost(0.0, 0.0, 0, 0)
        self.probabilities: list[dict[str, float]] = []
        self._answer = answer

    def take_turn(self, questions: Sequence[Question], memory: Memory) -> None:
        """Answer ``questions`` and add up what it costs."""
        memory.reset()
        with VisionPasses() as vision:
            wall, cpu = time.perf_counter(), time.process_time()
            self.probabilities += self._answer(questions)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        so_far = self.cost
        self.cost = Cost(
            so_far.wall + wall,
            so_far.cpu + cpu,
            so_far.vision + vision.images,
            max(so_far.peak, memory.peak()),
        )


class Memory:
    """The peak since the last reset: what the GPU has allocated, or what of this process is resident (Linux)."""

    def __init__(self, cuda: bool) -> None:
        self._cuda = cuda

    def reset(self) -> None:
        if self._cuda:
            import torch

            torch.cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5")

    def peak(self) -> int:
        """Bytes."""
        if self._cuda:
            import torch

            return int(torch.cuda.max_memory_allocated())
        status = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


def make_questions(count: int, folder: Path) -> tuple[str, list[list[Question]]]:
    """Where the prompts come from, and the questions about each of ``count`` images of 512 to 1024 pixels a side."""
    rng = random.Random(0)
    source, prompts = read_prompts(count)
    questions = []
    for n, prompt in enumerate(prompts):
        size = (rng.randrange(512, 1025, 64), rng.randrange(512, 1025, 64))
        questions.append(atom_questions(prompt, save_image(folder / f"{n:04d}.png", size, seed=n)))
    return source, questions


def measure(folder: Path, count: int, real: bool) -> list[str]:
    """Run both ways and print what they cost; the limits that are broken, in words."""
    source, questions = make_questions(count, folder)
    total = sum(map(len, questions))
    save_qwen3_vl(folder / "judge", **(_REAL if real else _TINY))
    device = "cuda" if real else "cpu"
    plain = PlainJudge(folder / "judge", device)
    judge = registry.judge(
        f"transformers:{folder / 'judge'}", {}, options=JudgeOptions({"device_map": device})
    )

    def ask_judge(asked: Sequence[Question]) -> Iterator[dict[str, float]]:
        answers = {(a.question.item, a.question.name): a for a in judge.ask(asked)}
        for question in asked:
            answer = answers[question.item, question.name]
            if answer.probabilities is None:
                raise SystemExit(f"no reply: {answer.error}")
            yield dict(answer.probabilities)

    def ask_plain(asked: Sequence[Question]) -> Iterator[dict[str, float]]:
        for question in asked:
            yield plain.ask(question).probabilities

    ways = Way("plain", ask_plain), Way("judge", ask_judge)
    memory = Memory(real)
    # the first call loads the weights and warms up
    list(ask_plain(questions[0][:1]))
    list(ask_judge(questions[0][:2]))
    for turn in range(_TURNS):
        asked = [question for about in questions[turn::_TURNS] for question in about]
        for way in ways:
            way.take_turn(asked, memory)

    print(f"{total} questions about {count} images ({source}), {'8B, GPU' if real else 'tiny, CPU'}")
    for way in ways:
        cost = way.cost
        print(
            f"{way.name}: {cost.wall / count:.3f} s and {cost.cpu / count:.3f} CPU s per image, "
            f"{cost.vision} vision passes, peak {cost.peak / 1e6:.0f} MB"
        )
    wall, cpu = (getattr(ways[0].cost, kind) / getattr(ways[1].cost, kind) for kind in ("wall", "cpu"))
    apart = max(
        abs(a[wanted] - b[wanted])
        for a, b in zip(ways[0].probabilities, ways[1].probabilities, strict=True)
        for wanted in a
    )
    print(
        f"judge against plain: {wall:.1f} x faster, {cpu:.1f} x less CPU; probabilities differ by {apart:.1g}"
    )
    checks = {
        f"{cost.vision} vision passes for {count} images": ways[1].cost.vision != count,
        f"{wall:.1f} x faster < {_WALL_LIMIT_REAL:g}": real and wall < _WALL_LIMIT_REAL,
        f"{cpu:.1f} x less CPU < {_CPU_LIMIT:g}": not real and cpu < _CPU_LIMIT,
        f"probabilities differ by {apart:.1g}": not real and apart > _LARGEST_DIFFERENCE,
    }
    return [words for words, broken in checks.items() if broken]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=50, help="one image each (default: 50)")
    parser.add_argument("--real", action="store_true", help="the shape of Qwen3-VL-8B, on the GPU")
    options = parser.parse_args()
    if options.real:
        import torch

        if not torch.cuda.is_available():
            raise SystemExit("--real needs a CUDA GPU")
    with tempfile.TemporaryDirectory() as name:
        broken = measure(Path(name), options.prompts, options.real)
    for words in broken:
        print(f"LIMIT BROKEN: {words}")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
