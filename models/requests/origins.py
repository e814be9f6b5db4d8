"""How content came into a slot other than by a write: for the messages on slots that hold the wrong one."""

from __future__ import annotations

from typing import NamedTuple

# Stands as the owner of a slot that a reset gave back, until somebody writes there.
RESET = "(reset)"
HIT_AFTER_RESET = "hit after reset: the cache still has a key from before the reset"


class Copy(NamedTuple):
    """What was copied from a slot, and in which forward; `when` names the fork, if one made the copy."""

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
        """`content` was copied."""
        self._into[target] = Copy(source, content, self._forward, when)

    def origin(self, slot: int, content: object, freed: bool) -> str:
        """Where the content of the slot was copied from; nothing if it came otherwise.

        Writes are not noted, which would slow down all of them: a slot that holds what was copied holds the copy.
        `freed` memory looks the same however it came there, so of it only a copy in this forward is believed.
        """
        copy = self._into.get(slot)
        if copy is None or copy.content != content or (freed and copy.forward != self._forward):
            return ""
        when = copy.when or ("in this forward" if copy.forward == self._forward else "in an earlier forward")
        return f"copied from slot {copy.source} {when}"
