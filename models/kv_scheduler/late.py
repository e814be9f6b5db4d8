"""Slots in limbo without a tier: a batch may stay empty until they come back, but not for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvlockstep.models.requests.adapter import number

if TYPE_CHECKING:
    from kvlockstep.models.kv_scheduler.one_table import OneTable

# Nothing but batches passes time without a tier, so this is how long a copy that nobody sees may take.
MOST_EMPTY = 20


class Late:
    """Looks at the slots in limbo of one scheduler with `late_release`. With tiers its transfers are looked at instead.

    The last batch was `excused` if it was empty, and the slots in `limbo` are why.
    """

    def __init__(self, judge: OneTable) -> None:
        self._judge: Any = judge
        self._declared = judge.traits.late_release and not judge.traits.tiers
        self.limbo = self._empty = 0
        self.excused = False

    def before(self) -> None:
        """A batch is about to be decided."""
        self.limbo = self._count()

    def excuses(self, items: int) -> bool:
        """Returns whether slots in limbo are a reason for a batch of so many items to be empty.

        They are none where all live requests fit beside them up to their ends, nor if they have left too many batches
        empty in a row.
        """
        self.excused = False
        if not items and not self._judge.flights and self._declared:
            # What came back behind the decision was in limbo before it.
            self.limbo = max(self.limbo, self._count())
            self.excused = self._empty < MOST_EMPTY and self._crowds()
        self._empty = self._empty + 1 if self.excused else 0
        return self.excused

    def _count(self) -> int:
        """The slots in limbo; with groups the blocks, of all pools."""
        if not self._declared:
            return 0
        adapter, groups = self._judge.adapter, getattr(self._judge, "groups", None)
        return number(adapter.limbo) if groups is None else sum(groups.counts(adapter.limbo).values())

    def _crowds(self) -> bool:
        judge = self._judge
        if judge.grouped:
            return self.limbo > 0
        traits = judge.traits
        # Behind its end a batch may compute what nobody has heard of yet.
        beyond = traits.overlap * (1 + traits.drafts)
        blocks = [judge.occupancy.blocks_for(job.work + beyond) for job in judge.live.values()]
        wanted = sum(blocks) + len(blocks) * traits.lookahead_blocks
        return self.limbo > 0 and wanted * traits.block_size > traits.total - self.limbo
