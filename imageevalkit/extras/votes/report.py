"""Read the vote files that the report's voting page saves: ratings of models, and agreement with judges."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.errors import CellFailure, UserError
from imageevalkit.common.redaction import one_line
from imageevalkit.common.text import counted, some
from imageevalkit.extras.votes.ratings import FEWEST_VOTERS, TIE, Table, Vote, rate
from imageevalkit.metrics import Stratum, grouped, interval_of_sum
from imageevalkit.report.collect import STALE, CellReport
from imageevalkit.report.leaderboard import boards, headline_of
from imageevalkit.store.cell import VOTES, output_root, short_path
from imageevalkit.store.jsonl import Number, Reader, Tell, Time, read_json
from imageevalkit.store.results import ItemPart, folder_name

FORMAT = "imageevalkit-votes/1"


class _Vote(TypedDict):
    benchmark: str
    item: str
    left: str
    right: str
    winner: Literal["left", "right", "tie"]
    time: NotRequired[Time]
    seconds: NotRequired[Number]


class _File(TypedDict):
    format: str
    votes: list[Any]
    voter: NotRequired[str]


_VOTE, _FILE = Reader(_Vote), Reader(_File)


def read_votes(path: Path) -> list[Vote]:
    """Read the votes in a file. Raises CellFailure if the file cannot be read or any vote is invalid."""
    where = short_path(path)
    value = read_json(path)
    try:
        if isinstance(value, dict) and value.get("format") != FORMAT:
            raise ValueError(f"its format is {value.get('format')!r}, expected {FORMAT!r}")
        file = _FILE.read(value)
    except ValueError as error:
        raise CellFailure(f"{where} is no file of votes: {one_line(error, 200)}") from None
    votes = []
    for number, record in enumerate(file["votes"], 1):
        try:
            given = _VOTE.read(record)
            if given["left"] == given["right"]:
                raise ValueError(f"'{given['left']}' is on both sides")
        except ValueError as error:
            raise CellFailure(f"{where}: vote {number} is none: {one_line(error, 200)}") from None
        names = {name: given[name] for name in ("benchmark", "item", "left", "right", "winner")}
        votes.append(Vote(voter=file.get("voter", ""), time=given.get("time", ""), **names))
    return votes


def take_votes(paths: Iterable[Path]) -> list[Path]:
    """Copy vote files into output/votes, equal files once, and return the paths of the copies.

    Raises:
        UserError: A file cannot be read. Then none is copied.
        OSError: A copy cannot be written.
    """
    copies = {}
    for path in paths:
        try:
            votes, content = read_votes(path), path.read_bytes()
        except CellFailure as error:
            raise UserError(f"--votes: {error}") from None
        voter = votes[0].voter if votes else ""
        name = folder_name(f"{voter or 'votes'} {hashlib.sha256(content).hexdigest()[:8]}")
        copies[output_root() / VOTES / f"{name}.json"] = content
    for copy, content in copies.items():
        write_atomic(copy, content)
    return list(copies)


def vote_report(cells: Sequence[CellReport], tell: Tell) -> dict[str, Any] | None:
    """Return the ratings from ``output/votes/*.json`` and the agreement of judges; None without votes.

    The result is a ``VoteReport`` of ``page/src/data.ts``. Invalid files are reported to ``tell`` and left
    out. If a voter voted twice on the same two images, the later vote counts.
    """
    files, votes = list[str](), list[Vote]()
    for path in sorted((output_root() / VOTES).glob("*.json")):
        try:
            votes += read_votes(path)
            files.append(path.name)
        except CellFailure as error:
            tell(f"votes are left out: {error}")
    votes = _last_words(votes)
    if not votes:
        return None
    by_benchmark = dict(sorted(grouped(votes, lambda vote: vote.benchmark).items()))
    asked = {"": votes, **by_benchmark} if len(by_benchmark) > 1 else by_benchmark
    tables, notes = list[dict[str, Any]](), list[str]()
    for benchmark, own in asked.items():
        found = rate(own)
        tables += [{"benchmark": benchmark, "rows": [row._asdict() for row in one.rows]} for one in found]
        notes += _notes(benchmark or "all benchmarks", found)
    return {
        "votes": len(votes),
        "files": files,
        "tables": tables,
        "judges": list(_judges(cells, by_benchmark)),
        "notes": notes,
    }


def _last_words(votes: Iterable[Vote]) -> list[Vote]:
    """Return the last vote of each voter on each pair of images. The time identifies unnamed voters.

    A file that was saved again contains the votes of the earlier file, so votes may occur twice."""
    last = dict[tuple[Any, ...], Vote]()
    for number, vote in enumerate(votes):
        who = (vote.voter,) if vote.voter else (vote.time or number, vote.winner)
        key = (*who, vote.benchmark, vote.item, frozenset((vote.left, vote.right)))
        if key not in last or last[key].time <= vote.time:
            last[key] = vote
    return list(last.values())


def _notes(where: str, tables: Sequence[Table]) -> Iterator[str]:
    if len(tables) > 1:
        groups = "; ".join(some([row.model for row in one.rows], ", ") for one in tables)
        yield (
            f"{where}: no vote connects a model of one group with one of another ({groups}): "
            "ratings of two groups do not compare"
        )
    for held in filter(None, (one.held for one in tables)):
        has = "have" if len(held) > 1 else "has"
        yield (
            f"{where}: {some(held, ', ')} {has} won or lost all votes against the others: "
            "only a prior of one tie keeps such ratings finite"
        )
    if few := min((one.voters for one in tables if one.voters < FEWEST_VOTERS), default=0):
        yield (
            f"{where}: the intervals hold for the {counted(few, 'voter')} alone: "
            f"how voters differ shows with {FEWEST_VOTERS} or more"
        )


# ---- judges


def _judges(cells: Iterable[CellReport], votes: Mapping[str, Sequence[Vote]]) -> Iterator[dict[str, Any]]:
    """Yield how often the scores of each headline metric prefer the same model as the voter.

    Ties of voters are ignored. Equal scores count as half an agreement."""
    results = [one.result for one in cells if one.result and not one.result.withheld.startswith(STALE)]
    for board, members in boards(results).items():
        # rewritten prompts have boards of their own, so a pair never has images of different prompts
        for name in filter(None, headline_of(members)):
            scores = {one.model: _scores(one.metrics[name].parts) for one in members if name in one.metrics}
            agreed = dict[str, list[float]]()
            for vote in votes.get(board.benchmark, ()):
                pair = [scores.get(model, {}).get(vote.item) for model in (vote.left, vote.right)]
                if vote.winner != TIE and pair[0] and pair[1]:
                    (left, prompt), (right, _) = pair[0], pair[1]
                    prefers = 0.5 if left == right else float((left > right) == (vote.winner == "left"))
                    agreed.setdefault(prompt, []).append(prefers)
            if agreed:
                yield {
                    "evaluator": board.evaluator,
                    "benchmark": board.benchmark,
                    "metric": name,
                    **_agreement(agreed),
                }


def _scores(parts: Iterable[ItemPart]) -> dict[str, tuple[float, str]]:
    """Return the score and the cluster (its prompt) of each item."""
    by_item = grouped(parts, lambda part: part.item)
    weights = {item: sum(part.weight for part in own) for item, own in by_item.items()}
    return {
        item: (sum(part.total for part in own) / weights[item], own[0].unit)
        for item, own in by_item.items()
        if weights[item]
    }


def _agreement(agreed: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return the agreement with its interval. Votes on one prompt are dependent, so prompts are the units.

    With fewer than ten prompts the interval is from 0 to 1."""
    parts = [(sum(own), float(len(own))) for own in agreed.values()]
    n = sum(len(own) for own in agreed.values())
    low, high = interval_of_sum([Stratum(1.0, parts, [*agreed])]) or (0.0, 1.0)
    return {"agreement": sum(total for total, _ in parts) / n, "low": low, "high": high, "n": n}
