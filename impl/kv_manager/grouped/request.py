"""A request of the manager with groups, and the copies that wait for its forward."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from kvlockstep.impl.kv_manager.grouped.prefixes import Prefix


class DueCopy(NamedTuple):
    """A copy-on-write that waits for the forward: at this place in the table of `rid` comes `target` from `source`."""

    rid: str
    g: int
    place: int
    source: int
    target: int


class Request:
    """A live request. `prefix` is its longest known prefix, of `steps` steps. `tables`, `states` and `saves` are by
    group: a table of blocks, of which the first `slid` are gone; the block of a state; those that a step saves to.
    `kept` are the lengths of the tables before this step's reservation, None in the step that admits the request.
    """

    __slots__ = ("computed", "kept", "prefix", "saves", "slid", "states", "steps", "tables", "tokens")

    def __init__(self, tokens: array[int], prefix: Prefix, steps: int, computed: int, groups: int) -> None:
        self.tokens = tokens
        self.prefix = prefix
        self.steps = steps
        self.computed = computed
        self.kept: list[int] | None = None
        self.tables: list[list[int | None]] = [[] for _ in range(groups)]
        self.slid = [0] * groups
        self.states: list[int | None] = [None] * groups
        self.saves: list[dict[int, int]] = [{} for _ in range(groups)]

    def stops(self, n: int) -> range:
        """Where a step of `n` tokens may end: drafts, which are not known yet, may be rejected."""
        end = self.computed + n
        return range(max(self.computed + 1, min(len(self.tokens), end)), end + 1)
