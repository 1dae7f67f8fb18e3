"""Rewrites TRIG's prompts with its Dimension Trade-off Map (arXiv 2507.22100, section 6.3).

The rewriter uses the relation that the two dimensions of a prompt's pair have in the model's own run on raw
prompts.

The released code uses one fixed map for all models and confuses its lookups. This rewriter differs:

* The code of a pair comes from ``relations/result.json`` of the model's raw run, and the request has only the
  instruction of that code. Without a relation the prompt stays unchanged.
* The definitions of the dimensions belong to the item's task; the released code always uses text to image.
* The whole reply counts; the released code cuts it at colons. If a request fails, the original prompt stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from imageevalkit.assets import asset_list
from imageevalkit.benchmark.question import Message
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.text import counted
from imageevalkit.extras.relations import files as relation_files
from imageevalkit.extras.rewrite.contract import NotRewritten, Rewriter
from imageevalkit.store.cell import Cell, short_path
from imageevalkit.store.items import Item
from imageevalkit.store.jsonl import read_json

_CONFIG = "trig/config.py"
_T2I = "trig/models/text_to_image_models.py::SD35DTMDimModel"
_CLASSES = {
    "t2i": ("t2i", _T2I),
    "edit": ("p2p", "trig/models/image_editing_models.py::HQEditDTMDimModel"),
    "subject": ("s2p", "trig/models/subject_driven_models.py::XFluxDTMDimModel"),
}
"""By task: TRIG's name of the task, and the class whose texts the request uses."""
_INSTRUCTIONS = {0: 0, 3: 1, 2: 2, -2: 2, 1: 3}
"""The index of the instruction by relation code: synergy, bottleneck, tilt (two codes), dispersion."""
_UNDEFINED = -1


def _evaluate(raw: Cell) -> str:
    return f"bash eval.sh --model_names {raw.model} --ds_names {raw.benchmark}"


class Dtm(Rewriter):
    """The rewriter for items with a ``pair`` of dimensions ("IQ-R_TA-C") in their data."""

    name = "dtm"
    assets = asset_list(Path(__file__).with_name("dtm_texts.txt"))

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self._codes: dict[Cell, Mapping[str, int]] = {}

    def check(self, raw: Cell, limit: int | None) -> None:
        self._codes_of(raw)
        found = relation_files.read(raw.relations)
        if found and found.limit and not limit:
            raise CellFailure(
                f"{short_path(raw.relations)} is of a trial (--limit {found.limit}): evaluate the raw prompts without "
                f"--limit first ({_evaluate(raw)}), or give this run a --limit, too"
            )

    def basis(self, raw: Cell) -> str:
        found = relation_files.read(raw.relations)
        if found is None:
            return f"by relations of an evaluator that {short_path(raw.relations)} does not name"
        trial = f" of a trial (--limit {found.limit})" if found.limit else ""
        return f"by the relations of {counted(found.items, 'item')}{trial} that {found.evaluator} scored"

    def messages(self, item: Item, text: str, raw: Cell, task: str) -> Sequence[Message]:
        pair = item.data.get("pair")
        if not isinstance(pair, str):
            raise CellFailure(
                f"--prompt_rewriter dtm takes prompts of a pair of dimensions, as TRIG's, and "
                f"{raw.benchmark} has none"
            )
        code = self._codes_of(raw).get(pair, _UNDEFINED)
        if code == _UNDEFINED:
            raise NotRewritten(f"no relation is known of {pair}")
        dimensions = pair.split("_")
        if code == -2:  # the second dimension dominates, and the instruction names the dominant one first
            dimensions.reverse()
        name, place = _CLASSES[task]
        names = [self._text(f"DIM_NAME_DICT['{code}']", raw).strip() for code in dimensions]
        defined = [
            self._text(f"gpt_logit_dimension_msg['{name}']['{code}']", raw) for code in pair.split("_")
        ]
        instruction = self.texts[f"{_T2I}.change.instructions[{_INSTRUCTIONS[code]}]"]
        asked = self.texts[f"{place}.change.msg"].format(
            str1=text,
            str0="\n".join(f"{n}. {words}" for n, words in enumerate(defined, 1)),
            str2=instruction.format(dim1=names[0], dim2=names[1]),
        )
        system = self.texts[f"{place}.send_request_with_retry.SYSTEM_MSG"]
        return [Message("system", (system,)), Message("user", (asked,))]

    def _text(self, key: str, raw: Cell) -> str:
        try:
            return self.texts[f"{_CONFIG}::{key}"]
        except KeyError:
            raise CellFailure(
                f"{raw.benchmark} has a pair of a dimension that TRIG does not have: {key}"
            ) from None

    def _codes_of(self, raw: Cell) -> Mapping[str, int]:
        """Returns the relation code of each pair. Raises CellFailure if the raw run has no valid codes."""
        if raw not in self._codes:
            path = raw.relations / "result.json"
            if not path.exists():
                raise CellFailure(
                    f"{short_path(path)} is missing, which has the relations of {raw.model}: evaluate the raw prompts "
                    f"first ({_evaluate(raw)})"
                )
            read = read_json(path)
            codes = read.get("relationship_codes") if isinstance(read, dict) else None
            known = {*_INSTRUCTIONS, _UNDEFINED}
            if not isinstance(codes, dict) or not all(
                type(code) is int and code in known for code in codes.values()
            ):
                raise CellFailure(
                    f"{short_path(path)} holds no relationship_codes of {sorted(known)}: evaluate the raw prompts again"
                )
            self._codes[raw] = codes
        return self._codes[raw]
