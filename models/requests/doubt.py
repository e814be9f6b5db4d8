"""Names the blocks in which slots may be that the manager's count has lost, or counts twice."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.requests.occupancy import Occupancy

MOST_NAMED = 4


def with_blocks(
    wrong: Divergence,
    occupancy: Occupancy,
    held_before: Collection[int],
    free_before: Iterable[int] | None,
    free: Iterable[int] | None,
    slots: int,
) -> Divergence:
    """The violation, its message ending with the blocks in doubt.

    `slots` is the number of slots that are lost, or, if negative, counted twice. The count was right before this step,
    so the blocks are among those that the step freed or took. The free lists have entries of tables; they are None
    where the manager does not tell.
    """
    blocks = set(occupancy.freed)
    if slots < 0:
        blocks = occupancy.held.difference(held_before)
    elif free_before is not None and free is not None:
        blocks = (blocks | occupancy.blocks_of(free_before)) - occupancy.held - occupancy.blocks_of(free)
    where = _where(sorted(blocks), -(-abs(slots) // occupancy.block_size))
    if not occupancy.seen and occupancy.counts_blocks(slots):
        where += "; do both count slots, not blocks?"
    return Divergence(wrong.law, wrong.message + where, wrong.details)


def _where(blocks: Sequence[int], wanted: int) -> str:
    """The end of a message that names the blocks. Empty if fewer than `wanted` blocks are in doubt."""
    if not wanted or len(blocks) < wanted:
        return ""
    named = [
        *map(str, blocks[:MOST_NAMED]),
        *([f"{len(blocks) - MOST_NAMED} more"] if len(blocks) > MOST_NAMED else []),
    ]
    listed = " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))
    among = "in" if len(blocks) == wanted else "in some of"
    return f", {among} block{'s' if len(blocks) > 1 else ''} {listed}"
