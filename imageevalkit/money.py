"""How sums of money look."""

from __future__ import annotations

import math


def dollars(usd: float) -> str:
    """``usd`` with two decimals, or as many as two significant digits take: ``$1,234.50``, ``$0.004``."""
    if 0 < usd < 0.0001:
        return "<$0.0001"
    if usd == 0 or usd >= 0.1:
        return f"${usd:,.2f}"
    decimals = 1 - math.floor(math.log10(usd))
    whole, _, fraction = f"{usd:.{decimals}f}".rstrip("0").partition(".")
    return f"${whole}.{fraction.ljust(2, '0')}"
