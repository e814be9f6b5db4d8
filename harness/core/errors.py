"""Usage errors: bad input, with a way out."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from kvlockstep.models.core.safe_text import safe_text

# A message lists so many known names at most; it has those that are alike in any case.
MOST_LISTED = 24
MOST_ALIKE = 3


class UsageError(Exception):
    """Bad input: the message names the argument and the way out. The command line exits with 2.

    `found` is the page of a finding that could not be saved, which nobody has seen yet.
    """

    found = ""

    def __init__(self, message: str) -> None:
        super().__init__(safe_text(message))

    def __str__(self) -> str:
        return f"{self.found}\n\n{self.message}" if self.found else self.message

    @property
    def message(self) -> str:
        """What is wrong, without a finding."""
        return super().__str__()


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message on an unknown name: `; did you mean A or B?`, empty if no known name is like it."""
    by_lower = {one.lower(): one for one in known}
    near = [by_lower[one] for one in get_close_matches(name.lower(), by_lower, MOST_ALIKE)]
    return f"; did you mean {' or '.join(filter(None, (', '.join(near[:-1]), near[-1])))}?" if near else ""


def known_names(name: str, known: Iterable[str]) -> str:
    """The end of a message on an unknown name: those like it, and what is known, at least the first of it."""
    names = list(known)
    hint = did_you_mean(name, names)
    if len(names) > MOST_LISTED:
        return hint or f"; known: {', '.join(names[:MOST_LISTED])}, ...; `kvlockstep list` shows all {len(names)}"
    return f"{hint or ';'} known: {', '.join(names) or 'none'}"
