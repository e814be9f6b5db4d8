"""The trait `groups` of kv_manager: its values, what a group must be able to read, and the methods that it changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from kvlockstep.reference.kv.shape import blocks_for

KINDS = ("full", "window", "chunked", "rolling", "state")


class Group(NamedTuple):
    """Layers that read alike. A request has one table of blocks in each group.

    `block_size` are the tokens of a block; of a "state" the grid on which a state can be hit. `reach` is, of a
    "window", the number of positions that a token attends to, itself included; of a "chunked" group the length of a
    chunk, whose tokens attend to nothing before it. A "rolling" group is a window in a buffer of `reach` slots, where a
    token takes the slot of the one that it pushes out. Groups of one `pool` share its blocks. `units` are the most
    blocks of a "state" group that one admission takes, a block that it hits included.
    """

    kind: str
    block_size: int
    reach: int = 0
    pool: str = "kv"
    units: int = 2

    def __str__(self) -> str:
        reach = f" of {self.reach}" if self.reach else ""
        return f"{self.kind}{reach}, blocks of {self.block_size}"


class Step(NamedTuple):
    """What a step does with the state of a request: it is read from the block `source`, then saved.

    `source` is None only at position 0. `saves` are (position, block): after the step the block holds the state behind
    so many tokens. With drafts there is one for each position that may turn out to be the last.

    `checkpoints` are (position, block), of a kv_scheduler only: as soon as the device knows which drafts are right, it
    copies a saved state to one more block. It is the state behind the last of these positions that it has come to.

    `commits` are (position, block), of a kv_scheduler only, whose device keeps the states behind drafts to itself: as
    soon as it knows which are right, it writes the state behind exactly so many tokens to the block. `saves` need not
    have these positions, and a checkpoint may be of one of them.
    """

    source: int | None
    saves: Sequence[tuple[int, int]]
    checkpoints: Sequence[tuple[int, int]] = ()
    commits: Sequence[tuple[int, int]] = ()


class Admitted(NamedTuple):
    """The answer of an admission that took only the next `n` tokens behind the `cached` ones."""

    cached: int
    n: int


def needed(group: Group, start: int, stop: int) -> range:
    """Returns the positions that a forward over [start, stop) reads in an attention group, those it writes included.

    With start = stop: those that the next forward will read. Of a "state" group no position is needed. A "rolling"
    group reads those in front of `start` before anything is written, and the others from no slot.
    """
    match group.kind:
        case "full":
            return range(stop)
        case "window" | "rolling":
            return range(max(0, start - group.reach + 1), stop)
        case "chunked":
            return range(start // group.reach * group.reach, stop)
    return range(0)


def stored(group: Group, start: int, stop: int, end: int) -> range:
    """Returns the positions that a forward over [start, stop) must write in an attention group.

    `end` is the first position at which it may turn out to end: stop, or less with drafts. A "rolling" group may leave
    out what no later forward reads.
    """
    first = needed(group, end, stop).start if group.kind == "rolling" else start
    return range(max(start, first), stop)


def places(group: Group, tokens: int) -> int:
    """Returns the number of blocks in the table of so many tokens in an attention group."""
    return blocks_for(min(tokens, group.reach) if group.kind == "rolling" else tokens, group.block_size)


def owed(group: Group, computed: int) -> range:
    """Returns the numbers of the full blocks that a durable kv_scheduler owes of a request that has ended.

    They are those that the next token would read, of a state that behind all `computed` tokens, if it is on the grid.
    """
    full = computed // group.block_size
    if group.kind != "state":
        return range(needed(group, computed, computed).start // group.block_size, full)
    return range(full - 1, full) if full and computed % group.block_size == 0 else range(0)


def one_full(groups: Iterable[Group]) -> bool:
    """Tells whether the groups are none, or one of full attention: what a kv_manager has without the trait."""
    return [group.kind for group in groups] in ([], ["full"])


class GroupedTarget(Protocol):
    """Methods of a kv_manager with groups. Blocks are counted and named, not slots; a pool has its own numbers.

    `pool` is left out if the target declares no `pools`.
    """

    def slots(self, rid: str, group: int) -> Iterable[int | None]:
        """Returns the slots of positions 0, 1, ... in an attention group, None where it has none (any more).
        Slot = block * block_size of the group + offset, from 0 on. Changes nothing.
        """

    def held(self, rid: str, group: int) -> Iterable[int] | None:
        """Returns the blocks of a group that the request keeps from being taken, alone or with others. None if you
        cannot tell: then it may be any from what must be readable to what `slots` names. Changes nothing.
        """

    def copies(self) -> Iterable[tuple[Any, ...]]:
        """Returns the copies of whole blocks that this step needs: (source, target), or (pool, source, target)."""


class PooledTarget(GroupedTarget, Protocol):
    """Methods of a kv_manager whose groups have several pools."""

    def avail(self, pool: str) -> int:
        """Returns the number of free and evictable blocks of a pool. Changes nothing."""

    def free_now(self, pool: str) -> int:
        """Returns the number of free blocks of a pool, without eviction. Changes nothing."""

    def free_slots(self, pool: str) -> Iterable[int] | None:
        """Returns the blocks of a pool that are free and cannot be hit any more, or None."""


class LatePooledTarget(PooledTarget, Protocol):
    """Methods with several pools and `late_release`."""

    def limbo(self, pool: str) -> int:
        """Returns the blocks of a pool that no live request holds and that cannot be taken yet. Changes nothing."""


class StateTarget(Protocol):
    """The method of a kv_manager with a group of kind "state"."""

    def state(self, rid: str, group: int) -> Step:
        """Returns what this step does with the state of a scheduled request. Asked after `launch`."""


def grouped_target(traits: Any) -> type | None:
    """Returns the protocol that the groups of these traits ask for; None without the trait."""
    if one_full(traits.groups):
        return None
    needed: list[type] = [GroupedTarget]
    if traits.pools:
        needed = [LatePooledTarget if traits.late_release else PooledTarget]
    if any(group.kind == "state" for group in traits.groups):
        needed.append(StateTarget)
    return type("Instead", tuple(needed), {})
