"""A request of the reference with groups, and the numbers of the blocks that it needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvlockstep.reference.kv.shape import blocks_for
from kvlockstep.reference.kv_manager.groups.contract import Group, needed


@dataclass
class Request:
    """A live request. `tables` has a table for each group, None where no block is held; that of a state is empty.

    `states` has for each group the block with the state behind `computed` tokens, None at position 0. `saves` has the
    blocks that this step saves states to, by position.
    """

    tokens: list[int]
    extra_key: int | None
    computed: int
    tables: list[list[int | None]] = field(default_factory=list)
    states: list[int | None] = field(default_factory=list)
    saves: list[dict[int, int]] = field(default_factory=list)

    def stops(self, n: int) -> range:
        """Returns the positions at which a step of `n` tokens may end: tokens that are not known yet are drafts."""
        end = self.computed + n
        return range(max(self.computed + 1, min(len(self.tokens), end)), end + 1)

    def held(self, group: int) -> list[int]:
        """Returns the blocks of a group that the request holds, each once."""
        blocks: dict[Any, None] = dict.fromkeys((*self.tables[group], self.states[group], *self.saves[group].values()))
        blocks.pop(None, None)
        return list(blocks)


def touched(group: Group, start: int, stop: int) -> range:
    """Returns the places in a table of the blocks that a forward over [start, stop) reads or writes."""
    return range(needed(group, start, stop).start // group.block_size, blocks_for(stop, group.block_size))


def to_hit(group: Group, cached: int) -> range:
    """Returns the places of the blocks that a hit of so many tokens needs; of a state that of its checkpoint."""
    if group.kind == "state":
        last = cached // group.block_size
        return range(last - 1, last) if cached else range(0)
    reads = needed(group, cached, cached)
    return range(reads.start // group.block_size, blocks_for(cached, group.block_size)) if reads else range(0)
