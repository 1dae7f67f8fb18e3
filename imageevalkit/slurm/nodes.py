"""Finds nodes of a cluster that fail jobs which other nodes complete."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence

from imageevalkit.common.text import counted

# A single failure may be the fault of the job: a large model fails on a node with small GPUs.
_PROOFS = 2


class NodeFaults:
    """The nodes on which jobs of a run failed before they had done anything.

    Each job has one more try, on another node. If that try succeeds, the failure was the first node's. A node with two
    such failures is excluded for all jobs that are submitted later.
    """

    def __init__(self) -> None:
        self._first = dict[str, str]()  # the node that failed a job first, by the job's name
        self._failed = Counter[str]()  # by node: the jobs that another node completed

    def may_try_elsewhere(self, job: str, node: str) -> bool:
        """Notes that ``node`` failed ``job``. Returns True if the job may try another node (once only)."""
        if not node or job in self._first:
            return False
        self._first[job] = node
        return True

    def completed(self, job: str) -> None:
        """Notes that ``job`` succeeded: if it failed before, the first node was at fault."""
        if node := self._first.pop(job, ""):
            self._failed[node] += 1

    def words(self, job: str, words: Sequence[str]) -> list[str]:
        """Returns the options ``words`` of sbatch, with an --exclude of the nodes that must not get ``job``."""
        nodes = {node for node, count in self._failed.items() if count >= _PROOFS}
        if not (excluded := sorted(nodes | {self._first[job]} if job in self._first else nodes)):
            return list(words)
        options = argparse.ArgumentParser(add_help=False)
        options.add_argument("-x", "--exclude", action="append", default=[])
        given, rest = options.parse_known_args(words)
        # sbatch uses the last --exclude only, so it must repeat the nodes of the user's own --exclude.
        return [*rest, f"--exclude={','.join([*given.exclude[-1:], *excluded])}"]

    def summary(self) -> str:
        """Returns one line about the nodes that failed jobs; empty if there are none."""
        told = [f"{node} failed {counted(count, 'job')}" for node, count in sorted(self._failed.items())]
        return f"node {', node '.join(told)} that another node completed: have it checked" if told else ""
