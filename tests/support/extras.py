"""Tests that need an extra, in a tree that may lack it."""

from __future__ import annotations

import pytest

from imageevalkit.extension_points import extras


def needs_extra(*names: str) -> pytest.MarkDecorator:
    """Skips a test if the tree lacks one of the extras ``names``."""
    missing = ", ".join(name for name in names if name not in extras())
    return pytest.mark.skipif(bool(missing), reason=f"no imageevalkit/extras/{missing}")
