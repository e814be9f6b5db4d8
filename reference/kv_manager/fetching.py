"""kv_manager with two tiers: what is in the host tier is copied to a disk behind it, and fetched from there.

A request whose prefix is on the disk only is told to ask again, and holds nothing until the fetch has ended. It is
fetched for once, and then admitted with what is there: loaded from the host tier, or computed.
"""

from __future__ import annotations

from kvlockstep.reference.kv.transfers import Fetching, Loading
from kvlockstep.reference.kv_manager.moving import DISK, Moving
from kvlockstep.reference.kv_manager.tiered import TieredManager


class FetchingManager(Moving, TieredManager):
    """Meets reference.contracts.KVManagerTarget with moves. The host tier is half as large as the pool."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self._blocks = blocks
        super().__init__(blocks, block_size)
        self.tiers[DISK] = 2 * blocks

    def reset(self) -> None:
        super().reset()
        self._disk = self.disk_type(2 * self._blocks)
        self._moves = {}
        self._fetched = set()

    def admit(  # type: ignore[override]
        self, rid: str, tokens: list[int], extra_key: int | None, n: int
    ) -> int | Loading | Fetching | None:
        if self._fetches(rid) or (rid not in self._fetched and self._fetch(rid, self._behind(tokens, extra_key))):
            return Fetching()
        answer = super().admit(rid, tokens, extra_key, n)
        if answer is not None:
            self._fetched.discard(rid)
        return answer

    def abort(self, rid: str) -> None:
        """One that waits for a fetch holds nothing; what is fetched stays for others."""
        self._fetched.discard(rid)
        if rid in self._live:
            super().abort(rid)

    def _behind(self, tokens: list[int], extra_key: int | None) -> list[tuple[int | None, tuple[int, ...]]]:
        """The keys of the blocks behind a cached prefix."""
        cached = len(self._lookup(tokens, extra_key))
        ends = range((cached + 1) * self.block_size, len(tokens), self.block_size)
        return [self._key(extra_key, tokens[:end]) for end in ends]
