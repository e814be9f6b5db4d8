"""Parameters whose tests are left to `make slow`."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*values: Any) -> list[Any]:
    """The values as parameters that `make tests` leaves out."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]
