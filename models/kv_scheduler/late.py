"""Slots in limbo without a tier: batches may stay empty until the slots come back, but not for ever."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from kvlockstep.models.requests.adapter import number
from kvlockstep.reference.kv_manager.groups.contract import places

if TYPE_CHECKING:
    from kvlockstep.models.kv_scheduler.one_table import OneTable

# Nothing but batches passes time without a tier, so this is how long a copy that nobody sees may take.
MOST_EMPTY = 20


class Late:
    """Follows the slots in limbo of one scheduler with `late_release`; with tiers, its transfers tell instead.

    The last batch is `excused` if it was empty because of the slots in `limbo`.
    """

    def __init__(self, judge: OneTable) -> None:
        self._judge: Any = judge
        self._declared = judge.traits.late_release and not judge.traits.tiers
        self._in_limbo = Counter[str]()
        self._empty = 0
        self.excused = False

    @property
    def limbo(self) -> int:
        """The slots in limbo; with groups the blocks, of all pools."""
        return self._in_limbo.total()

    def before(self) -> None:
        """A batch is about to be decided."""
        self._in_limbo = self._count()

    def excuses(self, items: int) -> bool:
        """Returns whether slots in limbo are a reason for a batch of so many items to be empty.

        They are no reason if all live requests fit beside them up to their ends, or if too many batches in a row were
        empty for that reason.
        """
        self.excused = False
        if not items and not self._judge.flights and self._declared:
            # Slots that came back after the decision were in limbo when it was made.
            self._in_limbo |= self._count()
            self.excused = self._empty < MOST_EMPTY and self._crowds()
        if items or not self._judge.flights:
            self._empty = self._empty + 1 if self.excused else 0
        return self.excused

    def _count(self) -> Counter[str]:
        """The slots in limbo; with groups the blocks of each pool."""
        if not self._declared:
            return Counter()
        adapter, groups = self._judge.adapter, getattr(self._judge, "groups", None)
        return Counter({"": number(adapter.limbo)} if groups is None else groups.counts(adapter.limbo))

    def _crowds(self) -> bool:
        judge, traits = self._judge, self._judge.traits
        # Behind its end a batch may compute what nobody has heard of yet.
        beyond = traits.overlap * (1 + traits.drafts)
        if judge.grouped:
            wanted = Counter[str]()
            for job in judge.live.values():
                for group in judge.groups.groups:
                    states = group.units + beyond
                    wanted[group.pool] += states if group.kind == "state" else places(group, job.work + beyond)
            pools = judge.groups.pools
            return any(wanted[pool] > pools[pool] - limbo for pool, limbo in self._in_limbo.items() if limbo > 0)
        blocks = [judge.occupancy.blocks_for(job.work + beyond) for job in judge.live.values()]
        needed = sum(blocks) + len(blocks) * traits.lookahead_blocks
        return self.limbo > 0 and needed * traits.block_size > traits.total - self.limbo
