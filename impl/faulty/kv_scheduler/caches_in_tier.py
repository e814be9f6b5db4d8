"""A scheduler whose hits come from its tier, for faults of transfers."""

from __future__ import annotations

from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler


class CachesInTier(TieredScheduler):
    """The pool keeps nothing that no request holds, so that what is hit comes from the tier."""

    def add(self, rid: str, tokens: list[int], extra_key: int | None, max_tokens: int, priority: int) -> None:
        self._kv.evict_all()
        super().add(rid, tokens, extra_key, max_tokens, priority)

    def poll(self) -> None:
        self._kv.evict_all()
        super().poll()
