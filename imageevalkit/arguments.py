"""Command-line parsing whose mistakes are one line and status 2, like every other user error."""

from __future__ import annotations

import argparse
from typing import NoReturn

from imageevalkit.errors import UserError


class Arguments(argparse.ArgumentParser):
    """An ``ArgumentParser`` that raises :class:`UserError`; options cannot be abbreviated."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")
