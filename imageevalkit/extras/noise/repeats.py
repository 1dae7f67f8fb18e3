"""Measures the noise and the drift of a judge: asks some questions of a cell again and compares the answers.

The repeated replies are in ``repeats.jsonl``, separate from the answers that count. They change no score.

The standard error of a metric M from the judge's randomness is estimated as follows. Let x and y be two
independent replies to question j from the same distribution. If y replaces x, M changes by d. To first order
the replies to different questions change M independently, so E[d²] = 2 · (variance of M due to j). Variances
of independent replies add up. With a random sample (by hash) of N of the Q questions, the standard error of M
is √(Q / N · Σ d² / 2). The code replaces a block of questions at once, to compute fewer metrics. The mixed
terms of d² have mean zero, so the sum over blocks has the same mean. If a repeated answer would lead to other
questions, these are not asked, so M changes only by the value of the answer itself. (Two measurements per
subject: J. M. Bland and D. G. Altman, "Measurement error", BMJ 313 (1996) 744; a sample for the whole: W. G.
Cochran, "Sampling Techniques", section 2.3.)
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import PurePath
from typing import Any, NamedTuple

from imageevalkit.benchmark.contract import Benchmark, ScoredItem, Scores, Unparsed, benchmark_code
from imageevalkit.benchmark.question import Answer, JudgeUnusable, Question
from imageevalkit.benchmark.thoughts import without_thoughts
from imageevalkit.common.errors import CellFailure, UserError, say
from imageevalkit.common.machine import garbage_collection
from imageevalkit.common.redaction import one_line, redact
from imageevalkit.common.text import counted, dollars, some
from imageevalkit.evaluate.after_questions import AfterQuestions
from imageevalkit.evaluate.answerers import Answerers
from imageevalkit.evaluate.interview import RECORD, Interview, Place, Reply
from imageevalkit.extras.noise import drift
from imageevalkit.extras.noise.drift import Series, drift_of
from imageevalkit.extras.noise.probes import PROBES, Form, Probing
from imageevalkit.jobs.plan import EvaluateOrder
from imageevalkit.jobs.progress import ProgressWriter, watched
from imageevalkit.judges.choice import Judge, is_judge
from imageevalkit.metrics import mean
from imageevalkit.store.cell import Cell, short_path
from imageevalkit.store.jsonl import JsonlWriter, read_jsonl
from imageevalkit.store.results import DRIFTED, Metric, Noise, Result, Score
from imageevalkit.store.states import ImageState

_BLOCKS = 32  # a variance from this many terms has a relative standard error of about 1/4


class _ParsedReply(NamedTuple):
    """A reply with its parsed value."""

    reply: Reply
    value: drift.Reply


class _Repeated(NamedTuple):
    """A repeated question with its ``places``. ``replies`` are its replies by run: the run of the answer that
    counts, and this run."""

    places: Sequence[Place]
    replies: Mapping[str, Sequence[_ParsedReply]]
    series: Series

    @property
    def pair(self) -> tuple[_ParsedReply, _ParsedReply] | None:
        """Two replies of the same run, if possible of the run whose answer counts; None if no run has two."""
        pairs = ((replies[0], replies[1]) for replies in self.replies.values() if len(replies) >= 2)
        return next(pairs, None)


class Repeats(AfterQuestions):
    """The repeated questions of ``interview`` and the judge's probes; empty if the benchmark asks no judge.

    The costs are added to the interview's costs. Raises CellFailure if a file cannot be read or written.
    """

    def __init__(
        self, cell: Cell, benchmark: Benchmark, interview: Interview, options: EvaluateOrder
    ) -> None:
        super().__init__(cell, benchmark, interview, options)
        judge = interview.answerers.judge
        self._judge = judge if isinstance(judge, Judge) else None
        self._run, self._asked_probes = interview.began, False
        self._paid = 0  # requests of this run for repeats and probes
        self._usd: float | None = None
        self._records: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for record in read_jsonl(cell.repeats, RECORD) if self._judge else ():
            self._records[record["request"]].append(record)

    @staticmethod
    def planned(interview: Interview, options: EvaluateOrder) -> tuple[int, str]:
        asks = options.ask and is_judge(options.judge)
        again = min(options.judge_repeats, interview.requests) if asks else 0
        # the number is without the probes: a run asks these only once for all results of the judge
        words = f"{again} asked again, and {len(PROBES)} probes" if again else ""
        return again, "; ".join(filter(None, [words, from_elsewhere(interview)]))

    @property
    def _asks(self) -> bool:
        options = self.options
        return bool(self._judge and options.ask and options.judge_repeats and options.asks_again)

    @cached_property
    def _probing(self) -> Probing | None:
        """The probes of the judge; None without a judge, or without a question whose form they can copy."""
        if self._judge is None:
            return None
        questions = (places[0].question for places in self.interview.places_of(self._judge).values())
        form = Form.of(questions, self.benchmark.shown_pixels)
        judge = self._judge
        if judge.backend != "transformers":
            # Not in a batch: its replies may come a day later, when the judge may be another. A separate
            # judge object: otherwise a failed probe would change how the questions are asked.
            at_once = replace(self.options.judge_options, sender="", sender_folder="")
            made = Answerers(self.benchmark, at_once).judge
            judge = made if isinstance(made, Judge) else judge
        return Probing(judge, form, self.cell.key) if form else None

    @property
    def _places(self) -> dict[str, list[Place]]:
        """The places of the judge's questions that have an answer, by request."""
        places = self.interview.places_of(self._judge) if self._judge else {}
        return {request: of_request for request, of_request in places.items() if of_request[0].answer}

    def ask(self, progress: ProgressWriter) -> None:
        self.ask_probes(progress)
        self.ask_again(progress)

    def amend(self, result: Result, states: Mapping[str, ImageState], scores: Scores) -> Result:
        notes = [*filter(None, [from_elsewhere(self.interview)]), *result.notes]
        result = replace(result, notes=notes)
        try:
            noise = self.noise(states, scores, result.metrics)
            drifted = notes_of(noise, self.probes_file)
        except (
            CellFailure,
            UserError,
            OSError,
        ) as error:  # the scores are paid for and valid without the noise
            say(f"the judge's noise is unknown: {one_line(error)}")
            return result
        for note in drifted:
            say(note)
        origin = {**result.provenance, **self.interview.spent}  # the probes count as well
        return replace(result, noise=noise, notes=[*drifted, *result.notes], provenance=origin)

    def summary(self, result: Result) -> str:
        text = self._summary(result.noise, result.headline)
        return "; ".join(filter(None, [text, from_elsewhere(self.interview)]))

    def ask_probes(self, progress: ProgressWriter) -> None:
        """Asks the judge's probes once in a run. The caller asks the questions that count first: these have
        priority on the budget. If the judge fails, this prints the reason and returns."""
        if not self._asks or self._asked_probes or self._probing is None:
            return
        self._asked_probes = True
        with self._reporting(progress):
            self.interview.note = "waiting for the judge, to ask its probes"
            self.interview.report(progress, force=True)
            try:
                before = len(self._probing.paid)
                for left in self._probing.ask(self._probe_run, self.interview.answerers.cores):
                    self._report(progress, left, "probes to ask")
            finally:
                self._paid += len(self._probing.paid) - before
                self._spend(self._probing.usd)
        if (found := self._probing.drift(self._probe_run)) and not found.found:
            text = f", another answer to {', '.join(found.changed)}" if found.changed else ""
            say(f"{found.asked} probes: the judge of {found.since[:10]}{text}")

    def ask_again(self, progress: ProgressWriter) -> None:
        """Asks a sample of questions again. If the judge fails, this prints the reason; the replies so far
        are on record."""
        places = self._places
        if not self._asks or not places:
            return
        # sorted by hash, so that every run repeats the same questions
        requests, failed = sorted(places)[: self.options.judge_repeats], set[str]()
        with (
            self._reporting(progress),
            closing(JsonlWriter(self.cell.repeats)) as writer,
            watched(writer.sync),
        ):
            while wanted := self._wanted(places, [one for one in requests if one not in failed]):
                say(f"{len(wanted)} questions to ask again")
                questions = [question for question, _, _ in wanted.values()]
                for left, answer in enumerate(self.interview.answerers.ask(questions), 1):
                    _, request, number = wanted[answer.question.item, answer.question.name]
                    record = self._record(places[request][0], answer, number)
                    if record["status"] == "failed":
                        failed.add(request)
                    writer.append(record)
                    self._records[request].append(record)
                    self.interview.count(record)
                    self._paid += 1
                    self._spend(answer.usd)
                    self._report(progress, len(questions) - left, "to ask again")
                    del wanted[answer.question.item, answer.question.name]
                failed.update(request for _, request, _ in wanted.values())  # or the loop is endless

    @contextmanager
    def _reporting(self, progress: ProgressWriter) -> Iterator[None]:
        try:
            with garbage_collection(True):
                yield
        except (JudgeUnusable, CellFailure, UserError, OSError) as error:
            say(f"not all was asked again: {one_line(error)}")
        finally:
            self.interview.note = ""
            self.interview.report(progress, force=True)

    def _spend(self, usd: float | None) -> None:
        self.interview.spend(usd)
        if usd is not None:
            self._usd = (self._usd or 0.0) + usd

    def _summary(self, noise: Noise | None, headline: Sequence[str]) -> str:
        """Returns a text with the findings and cost of ``--judge_repeats`` in this run, or ""."""
        if not self._asks:
            return ""
        cost = f", {dollars(self._usd)}" if self._usd is not None else ""
        paid = f"{counted(self._paid, 'request')}{cost}"
        if noise is None or not noise.repeated:
            return f"judge noise: no answer was repeated ({paid})"
        errors = [
            f"{name} ± {noise.standard_errors[name]:.2g}"
            for name in headline
            if name in noise.standard_errors
        ]
        share = f"{noise.changed} of {noise.repeated} repeated answers changed"
        return f"judge noise: {', '.join([share, *errors])} ({paid})"

    @property
    def _probe_run(self) -> str:
        return self.options.run or self._run

    def _report(self, progress: ProgressWriter, left: int, what: str) -> None:
        self.interview.note = f"{left} {what}" if left else ""
        self.interview.report(progress)

    def _wanted(
        self, places: Mapping[str, Sequence[Place]], requests: Sequence[str]
    ) -> dict[tuple[str, str], tuple[Question, str, int]]:
        """Returns the questions to repeat next, by item and name: each with its request and repeat number.

        A question is skipped once this run has ``tries`` replies to it without a value.
        """
        wanted = {}
        for request in requests:
            mine = [one for one in self._records[request] if one.get("run") == self._run]
            if sum(one["status"] == "unparsed" for one in mine) >= self.benchmark.tries:
                continue
            question = places[request][0].question
            numbers = {one.get("again") for one in mine if one["status"] != "failed"}
            open_ones = (number for number in itertools.count(1) if number not in numbers)
            for number in itertools.islice(open_ones, self._repeated(places[request]).series.wanted):
                # a batch identifies a question by item and name, so each repeat needs an item id of its own
                item = f"{question.item} again {self._run} {number}"
                wanted[item, question.name] = question.of_item(item), request, number
        return wanted

    def _record(self, place: Place, answer: Answer, number: int) -> dict[str, Any]:
        raw, answer = answer.text, without_thoughts(answer)
        status, value, error = "failed", None, redact(answer.error) or None
        if answer.text is not None:
            reply = Reply(answer.text, answer.probabilities, answer.outside, self._run)
            try:
                status, value = "ok", self.interview.read(place.question, reply).value
            except Unparsed as why:
                status, error = "unparsed", str(why) or None
        assert place.answer and self._judge
        record = {
            "item": place.question.item,
            "question": place.question.name,
            "evaluator": self._judge.evaluator.id,
            "run": self._run,
            "again": number,
            "request": place.request,
            "status": status,
            "raw": raw,
            "parsed": value,
            "first": place.answer.value,
            "error": error,
            "replied": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "seconds": round(answer.seconds, 4),
            "attempts": answer.attempts,
            "tokens": answer.tokens,
        }
        if answer.probabilities is not None:
            record |= {"probabilities": dict(answer.probabilities), "outside": answer.outside}
        if answer.usd is not None:
            record["usd"] = answer.usd
        if answer.batch:
            record["batch"] = answer.batch
        return record

    def _repeated(self, places: Sequence[Place]) -> _Repeated:
        place = places[0]
        question, answer = place.question, place.answer
        assert answer and place.text is not None
        first = Reply(place.text, answer.probabilities, answer.outside, place.run)
        again = (Reply.of(one) for one in self._records[place.request] if one["status"] == "ok")
        replies = defaultdict[str, list[_ParsedReply]](list)
        for reply in (one for one in (first, *again) if one and one.run in (place.run, self._run)):
            with contextlib.suppress(Unparsed):  # the parser may have changed since the reply was recorded
                value = self.interview.read(question, reply).value
                probabilities = reply.probabilities if question.of_first_token else None
                replies[reply.run].append(_ParsedReply(reply, drift.Reply(value, probabilities)))
        before = [] if place.run == self._run else replies[place.run][: drift.BEFORE]
        now = replies.get(self._run, [])
        series = Series(
            f"{question.item} {question.name}",
            [one.value for one in before],
            [one.value for one in now],
            place.run,
        )
        return _Repeated(places, replies, series)

    def noise(
        self, states: Mapping[str, ImageState], scores: Scores, metrics: Mapping[str, Metric]
    ) -> Noise | None:
        """Returns the noise measured by this run, or else by the last run with repeats on record, or None.

        ``metrics`` are the metrics of ``scores``, from the answers that count.
        """
        probing, places = self._probing, self._places
        if probing and self._judge:
            for record in probing.paid:
                self.interview.count({**record, "evaluator": self._judge.evaluator.id})
        probes = probing.drift(self._probe_run if self._asked_probes else "") if probing else None
        known = [request for request in sorted(places) if self._records.get(request)]
        runs = {one.get("run", "") for request in known for one in self._records[request]}
        if not known:
            return Noise(of=len(places), repeated=0, changed=0, probes=probes) if probes else None
        if self._run not in runs:
            self._run = max(runs)
        asked = [self._repeated(places[request]) for request in known]
        pairs = [(one, pair) for one in asked if (pair := one.pair)]
        shares = [
            Score({"changed": not pair[0].value.agrees(pair[1].value)}, item=one.places[0].question.item)
            for one, pair in pairs
        ]
        records = [one for request in known for one in self._records[request]]
        prices = [one["usd"] for one in records if one.get("usd") is not None]
        item_errors, standard_errors = self._errors(pairs, len(places), states, scores, metrics)
        return Noise(
            of=len(places),
            repeated=len(pairs),
            changed=sum(bool(one.values["changed"]) for one in shares),
            interval=mean(shares, "changed").interval,
            unparsed=sum(one["status"] == "unparsed" for one in records),
            item_errors=item_errors,
            standard_errors=standard_errors,
            repeats=drift_of(one.series for one in asked),
            probes=probes,
            usd=round(sum(prices), 6) if prices else None,
        )

    def _errors(
        self,
        pairs: Sequence[tuple[_Repeated, tuple[_ParsedReply, _ParsedReply]]],
        questions: int,
        states: Mapping[str, ImageState],
        scores: Scores,
        metrics: Mapping[str, Metric],
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Returns the standard errors of item values (a quadratic mean over items) and of metrics, by name.

        ``pairs`` are a sample of ``questions`` questions. The docstring of the module has the formula.
        """
        if not pairs:
            return {}, {}
        of_item = dict.fromkeys((name for score in scores for name in score.values), 0.0)
        of_metric = {name: 0.0 for name, metric in metrics.items() if metric.value is not None}
        differing = [(one, *pair) for one, pair in pairs if pair[0].reply[:3] != pair[1].reply[:3]]
        for n in range(min(_BLOCKS, len(differing))):
            block = differing[n::_BLOCKS]
            items = {place.question.item for one, _, _ in block for place in one.places}
            firsts = {one.places[0].request: first.reply for one, first, _ in block}
            seconds = {one.places[0].request: second.reply for one, _, second in block}
            before, after = (self._with(others, items, states, scores) for others in (firsts, seconds))
            for one, other in zip(before.items, after.items, strict=True):
                if one.item.id in items and one.score and other.score:
                    for name in one.score.values.keys() & other.score.values.keys():
                        of_item[name] += (one.score.values[name] - other.score.values[name]) ** 2 / 2
            with benchmark_code(self.benchmark.name, "metrics()"):
                first, second = self.benchmark.metrics(before), self.benchmark.metrics(after)
            for name in of_metric:
                was, became = (found[name].value if name in found else None for found in (first, second))
                if was is not None and became is not None:
                    of_metric[name] += (was - became) ** 2 / 2
        whole = questions / len(pairs)
        return (
            {name: math.sqrt(whole * total / len(scores)) for name, total in of_item.items()},
            {name: math.sqrt(whole * total) for name, total in of_metric.items()},
        )

    def _with(
        self,
        others: Mapping[str, Reply],
        items: Container[str],
        states: Mapping[str, ImageState],
        scores: Scores,
    ) -> Scores:
        """Returns ``scores`` with ``items`` scored again: ``others`` replace recorded replies, by request."""

        def scored(one: ScoredItem) -> ScoredItem:
            if one.item.id not in items or not one.score:
                return one
            try:
                return self.interview.scored_item(states[one.item.id], "", others)
            except (Unparsed, CellFailure):  # the other reply leads to questions that were not asked
                return one

        return Scores([scored(one) for one in scores.items])

    @property
    def probes_file(self) -> str:
        """The file with the replies to the probes, or "" without probes."""
        return short_path(self._probing.path) if self._probing else ""


def from_elsewhere(interview: Interview) -> str:
    """Returns a sentence on reused answers from other hosts than the judge's present host, or ""."""
    judge = interview.answerers.judge
    here = judge.host if isinstance(judge, Judge) else ""
    asked = interview.places_of(judge).values() if judge and here else ()
    hosts = Counter(of[0].host for of in asked if of[0].answer and of[0].host not in ("", here))
    if not hosts:
        return ""
    return (
        f"{counted(hosts.total(), 'answer')} reused from {some(sorted(hosts), ', ')}, and this run asks {here}: "
        "--judge_repeats 100 asks some of them again and compares; to have all asked again, delete "
        f"{short_path(interview.cell.judgements)}"
    )


def notes_of(noise: Noise | None, probes_file: str = "") -> list[str]:
    """Returns a sentence for each drift in ``noise``, to show beside the scores."""
    if noise is None:
        return []
    notes = list[str]()
    end = "older and newer scores are not comparable"
    if (of := noise.repeats) and of.found:
        day = of.since[:10] or "an unknown day"
        notes.append(
            f"{DRIFTED}: {len(of.changed)} of {of.asked} questions that were asked again have another "
            f"answer than in the run of {day}, and keep it; {end}. Delete judgements.jsonl and repeats.jsonl of the "
            "result to have all questions asked again"
        )
    if (of := noise.probes) and of.found:
        shown = ", ".join(of.changed[:3]) + " …" * (len(of.changed) > 3)
        than = f"on {of.since[:10]}"
        if of.host:
            than = f"at {of.host} {than}: two endpoints serve different models under one name"
            probes_file = str(PurePath(probes_file).parent.parent)  # the folder of all hosts
        notes.append(
            f"{DRIFTED}: {len(of.changed)} of {of.asked} probes ({shown}) have another answer than {than}; {end}. "
            f"Delete {probes_file} to accept the judge as it is now"
        )
    return notes
