"""Workers that are killed, run out of memory, or hang: all other items are generated, and the log has the reasons."""

from __future__ import annotations

import torch

from perf.toolkit import BENCHMARK
from tests.gpu.kit import Kit
from tests.gpu.models import FAULTY_ITEMS, TOO_LARGE
from tests.gpu.part import GIB, Part

_ITEM_TIMEOUT = "5"
_SAID = {
    "a worker that is killed: the log reports SIGKILL": "SIGKILL",
    "a batch that does not fit: halved": "out of memory with a batch of 4: continuing with 2",
    "a worker that hangs: ended after ITEM_TIMEOUT": "(ITEM_TIMEOUT)",
}


def examine(part: Part) -> None:
    """Generate the images of a model with all these faults in one run."""
    kit = Kit(part, part.folder, FAULTY_ITEMS)
    kit.add("faulty", "tests.gpu.models", "Faulty", gpus=1)
    marks = part.folder / "marks"
    marks.mkdir()
    kit.generate("faulty", f"marks={marks}", ITEM_TIMEOUT=_ITEM_TIMEOUT)
    records = kit.records("generation.jsonl", BENCHMARK, "faulty")
    log = "\n".join(path.read_text(errors="replace") for path in kit.log.rglob("*.log"))
    print(log, flush=True)
    for label, words in _SAID.items():
        part.check(label, [] if words in log else [f"'{words}' is not in the log: {log[-600:]}"])
    last = {record["prompt"]: record for record in records}
    too_large = last.get(kit.prompts[TOO_LARGE], {})
    why = str(too_large.get("error"))
    reported = too_large.get("status") == "failed" and "out of memory" in why
    part.check(
        "an item for which no memory is enough: failed, with the reason",
        [] if reported else [f"{too_large.get('status')}: {why}"],
    )
    made = [prompt for prompt, record in last.items() if record["status"] == "ok"]
    problems = [] if len(made) == FAULTY_ITEMS - 1 else [f"{len(made)} of {FAULTY_ITEMS - 1}: {log[-600:]}"]
    part.check("all other items are generated", problems)
    free, total = torch.cuda.mem_get_info()
    gone = [f"{(total - free) / GIB:.1f} GiB are in use"] if free < 0.9 * total else []
    part.check("the GPU's memory is free again after the run", gone)
