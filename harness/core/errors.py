"""Usage errors: bad input, with a way out."""

from __future__ import annotations

from kvlockstep.models.core.safe_text import safe_text


class UsageError(Exception):
    """Bad input: the message names the argument and the way out. The command line exits with 2."""

    def __init__(self, message: str) -> None:
        super().__init__(safe_text(message))
