"""WISE for the evaluate engine: the prompts and the protocol of the paper (arXiv 2503.07265)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from benchmarks.wise.metric import OFFICIAL, OVERALL, Scored, metrics
from benchmarks.wise.official import official_files
from benchmarks.wise.protocol import LEGACY, Protocol, Scores
from eval_models.judge.benchmark import JudgedBenchmark
from eval_models.judge.registry import choose
from imageevalkit import judge_prompts
from imageevalkit.cell.items import Item
from imageevalkit.cell.results import Evaluator, Metric
from imageevalkit.errors import UserError, suggest
from imageevalkit.evaluation.benchmark import Judged, Rules, Score, Unparsed, read_rules
from imageevalkit.evaluation.question import Message, Picture, Question, Reply
from imageevalkit.secrets import one_line

VERSION = "wise-eb51174"  # data, prompts and rules are those of PKU-YuanGroup/WISE at this commit
_QUESTION = "score"


def configured(given: Mapping[str, Any]) -> Configured:
    """The benchmark with the settings ``given``. Raises UserError for a wrong one."""
    return Configured.of("wise", given)


class Configured(NamedTuple):
    """See :func:`imageevalkit.evaluation.benchmark.rules_of`; ``name`` is the benchmark's."""

    name: str
    rules: Rules

    @classmethod
    def of(cls, name: str, given: Mapping[str, Any]) -> Configured:
        """With the only setting that there is, ``rules``. Raises UserError for a wrong one."""
        for setting in given:
            if setting != "rules":
                raise UserError(
                    f"{name} has no setting '{setting}'{suggest(setting, ['rules'])}; it takes rules"
                )
        return cls(name, read_rules(name, given.get("rules", "official")))

    def check_judge(self, judge: str) -> str:
        """The full name of the judge to use; ``""`` is the official one. Raises UserError for one that there is not."""
        return choose(judge or LEGACY.judge).full_name

    def make(self, judge: str) -> WiseBenchmark:
        """The benchmark with ``judge``. Raises CellFailure when the official prompts are not there."""
        return WiseBenchmark(self.name, LEGACY, judge, self.rules)


class WiseBenchmark(JudgedBenchmark):
    """One question about each image, asked and scored by ``protocol`` and ``rules``."""

    version = VERSION
    headline = (OVERALL,)
    tries = 3  # the official evaluators send the same request again when a reply holds no score

    def __init__(self, name: str, protocol: Protocol, judge: str, rules: Rules = "official") -> None:
        self.name = name
        self.rules = rules
        self.judge_scale = protocol.scale
        if rules == "official":
            self.official_headline = (OFFICIAL,)
        self.official = (protocol.judge,)
        self._protocol = protocol
        super().__init__(judge, judge_prompts.load(name))

    @cached_property
    def evaluator(self) -> Evaluator:
        """The judge; named by the rules too where they are not the official ones."""
        judge = self._judge.evaluator
        if self.rules == "official":
            return judge
        label, _, digest = judge.id.rpartition("/")
        return Evaluator(f"{label}/{self.rules}/{digest}", False, {**judge.details, "rules": self.rules})

    def answerer(self, question: Question) -> Evaluator:
        return self._judge.evaluator

    @property
    def judge_id(self) -> str:
        return self._judge.evaluator.id

    def questions(self, item: Item, image: Picture) -> Sequence[Question]:
        system, user = (
            self.prompts[f"{self._protocol.program}::build_evaluation_messages#{role}"]
            for role in ("system", "user")
        )
        asked = user.format(Prompt=item.data["prompt"], Explanation=item.data["explanation"])
        messages = (
            Message("system", (system,)),
            # the official evaluators declare every file a PNG
            Message("user", (asked, image._replace(media_type="image/png"))),
        )
        return [Question(item.id, _QUESTION, messages, self._protocol.sampling)]

    def parse(self, question: Question, reply: Reply) -> Scores:
        """The scores by the names they have in the official records."""
        text = self._protocol.clean(reply.text)
        scores = self._protocol.parse(text)
        if missing := [name for name in self._protocol.required if name not in scores]:
            raise Unparsed(f"no {', '.join(missing)} in '{one_line(text, 100)}'")
        return {name: scores[name] for name in self._protocol.required}

    def stated(self, question: Question, reply: Reply) -> Scores:
        """The scores as the reply has them, of which the official parsers may read one digit."""
        return self._protocol.stated(self._protocol.clean(reply.text))

    def score(self, item: Item, parsed: Mapping[str, Scores], replies: Mapping[str, Reply]) -> Score:
        """WiScore and the parts it is made of."""
        scores, data = parsed[_QUESTION], item.data
        return Score(
            item=item.id,
            values={
                "wiscore": self._protocol.wiscore(scores),
                **{part: scores[part] for part in self._protocol.parts},
            },
            keys={key: data[key] for key in ("category", "subcategory", "prompt_id")},
            detail={"explanation": data["explanation"], "judge": replies[_QUESTION].text},
        )

    def aggregate(self, judged: Sequence[Judged]) -> dict[str, Metric]:
        """The metrics of :func:`benchmarks.wise.metric.metrics`; that of the official program by its rules only."""
        expected = Counter(one.item.data["category"] for one in judged)
        scored = [
            Scored(**score.keys, wiscore=score.values["wiscore"], parts=score.values)
            for score in (one.score for one in judged)
            if score
        ]
        found = metrics(scored, expected, self._protocol.categories, self._protocol.parts)
        return {
            name: metric for name, metric in found.items() if name != OFFICIAL or self.rules == "official"
        }

    def official_files(self, judged: Sequence[Judged]) -> dict[str, str]:
        """See :func:`benchmarks.wise.official.official_files`."""
        return official_files(judged, self._protocol)
