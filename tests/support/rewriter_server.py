"""A real HTTP server that rewrites puzzles and judges their images."""

from __future__ import annotations

from tests.support.image_server import Received
from tests.support.judge_server import ReplyServer

_MARKS = ("Prompt: ", "Original input: ", "Original prompt: ", "Plainer: ")


class RewriterServer(ReplyServer):
    """Rewrites ``puzzle 0`` to ``plain: puzzle 0``, with a colon. As a judge it says Yes."""

    reply = staticmethod(lambda request: f" plain: {puzzle_in(request)}\n" if is_rewrite(request) else "Yes")

    def fail(self, puzzle: str, *faults: str) -> None:
        """Answer the first, second, … request to rewrite ``puzzle`` with these faults; the last one repeats."""
        usual, told = self.choose, list(faults)

        def choose(request: Received, attempt: int) -> str:
            if is_rewrite(request) and puzzle_in(request) == puzzle:
                return told.pop(0) if len(told) > 1 else told[0]
            return usual(request, attempt)

        self.choose = choose

    @property
    def rewrites(self) -> list[str]:
        """The texts of all requests to rewrite, in order; also of those that failed."""
        return [puzzle_in(one) for one in self.requests if is_rewrite(one)]


def is_rewrite(request: Received) -> bool:
    """Whether a rewriter asks, and not a judge."""
    return len(request.fields["messages"]) == 2


def puzzle_in(request: Received) -> str:
    """The text to rewrite."""
    lines = request.prompt.splitlines()
    return next(line.partition(": ")[2] for line in lines if line.strip().startswith(_MARKS))
