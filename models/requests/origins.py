"""Origins of the content of slots: copies and resets, for messages on slots with wrong content."""

from __future__ import annotations

from typing import NamedTuple

# Stands as the owner of a slot that a reset gave back, until somebody writes there.
RESET = "(reset)"
HIT_AFTER_RESET = "it counts as cached, but was written before the reset"


class Copy(NamedTuple):
    """A copy from a slot: its content and its forward; `when` names the fork, if one made the copy."""

    source: int
    content: object
    forward: int
    when: str


class Copies:
    """The last copy into each slot."""

    def __init__(self) -> None:
        self._into: dict[int, Copy] = {}
        self._forward = 0

    def end_forward(self) -> None:
        self._forward += 1

    def note(self, source: int, target: int, content: object, when: str) -> None:
        """Records that `content` was copied."""
        self._into[target] = Copy(source, content, self._forward, when)

    def origin(self, slot: int, content: object, freed: bool) -> str:
        """Says where the content of the slot was copied from; "" if it was not copied.

        Noting writes would slow down every write, so a slot whose content equals its last copy counts as that copy.
        All `freed` memory looks the same, so for it only a copy in this forward counts.
        """
        copy = self._into.get(slot)
        if copy is None or copy.content != content or (freed and copy.forward != self._forward):
            return ""
        when = copy.when or ("in this forward" if copy.forward == self._forward else "in an earlier forward")
        return f"copied from slot {copy.source} {when}"
