"""The contract of kv_manager: its methods and events; traits.py has its traits."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Protocol, runtime_checkable

from kvlockstep.reference.kv.transfers import TierUnits, Transfer
from kvlockstep.reference.kv_manager.events import AllBlocksCleared, BlockRemoved, BlockStored, Event

__all__ = ["AllBlocksCleared", "BlockRemoved", "BlockStored", "Event", "KVManagerOptional", "KVManagerTarget"]


@runtime_checkable
class KVManagerTarget(Protocol):
    """Factory `make(blocks, block_size)`. A whole engine as its scheduler sees it.

    Optional methods are those of `KVManagerOptional`, each announced by a trait; the traits are the attributes of
    `Traits`.
    """

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        """Finds and pins the cached prefix, and takes slots for the next `n` tokens behind it, or for fewer if the
        prompt ends before: `n` is chosen before the hit is known.
        Returns the number of cached tokens, 0 if none are, less than all of them. Returns None to refuse; then nothing
        is held. With `tiers` it may return `Loading(cached)`: part of these tokens is still to be loaded. With `moves`
        it may return `Fetching()`: nothing is held either, and the request asks again.
        After `preempt` the same id comes back with all the tokens known so far.
        """

    def append(self, rid: str, token: int) -> None:
        """One more token of the request is known; its KV is not computed yet."""

    def reserve(self, rid: str, n: int) -> bool:
        """Takes slots for the next `n` tokens. Returns False to refuse; then nothing has changed."""

    def copies(self) -> list[tuple[int, int]]:
        """Returns the slot copies (source, target) that this step needs; called once, before launch."""

    def launch(self) -> None:
        """Allocates for the whole batch, if the engine does that."""

    def slots(self, rid: str) -> list[int]:
        """Returns the slots of positions 0, 1, ... that are allocated now. Slot = block * block_size + offset, and
        blocks are numbered from 0 on. Changes nothing.
        """

    def commit(self, rid: str, n: int) -> None:
        """`n` reserved tokens are written and accepted. Full blocks may be published now."""

    def finish(self, rid: str) -> None:
        """The request ends and gives its slots back. You decide what stays cached."""

    def abort(self, rid: str) -> None:
        """The request ends in whatever phase it is."""

    def preempt(self, rid: str) -> None:
        """The request gives its slots back, to be admitted again under the same id."""

    def avail(self) -> int:
        """Returns the number of free and evictable slots. Changes nothing."""

    def free_now(self) -> int:
        """Returns the number of free slots, without eviction. Changes nothing."""

    def free_slots(self) -> Iterable[int] | None:
        """Returns the slots that are free and cannot be hit any more, or None. Makes traces much shorter."""


class KVManagerOptional(Protocol):
    """Methods of a kv_manager that may be left out. A target that has one announces it with a trait."""

    def withdraw(self, rid: str) -> None:
        """Takes back what this step scheduled for the request. If that was its admission, the request ends."""

    def fork(self, rid: str, child: str) -> Iterable[tuple[int, int]] | None:
        """The child starts with all tokens and all computed KV of its parent. Returns the slot copies (source, target)
        to be made at once. Returns None to refuse; then nothing has changed.
        """

    def reset(self) -> None:
        """Forgets everything, live and preempted requests too."""

    def evict_all(self) -> None:
        """Drops everything that is cached and that no live request holds."""

    def limbo(self) -> int:
        """Returns the number of slots that no live request holds and that cannot be taken yet, such as those of blocks
        that are being copied elsewhere. `avail` may count them or not. Changes nothing.
        """

    def ready(self, rid: str) -> int | None:
        """Returns how many tokens of a request whose admission loads are computed: as many as were promised, or fewer
        if something has failed. None while it still waits.
        """

    def transfers(self) -> Sequence[Transfer]:
        """The transfers that were submitted since the last call. Asked after every operation."""

    def waits(self) -> Collection[Hashable]:
        """The ids of transfers that the worker waits for before this step copies and writes. Asked after `launch`, and
        after a fork, or a commit with `copies_at_commit`, before their copies.
        """

    def complete(self, id: Hashable, ok: bool) -> None:
        """The transfer has ended; if not `ok`, its targets hold garbage. The next `poll` takes it in at the latest."""

    def poll(self) -> None:
        """Takes in the transfers that have ended."""

    def tier(self, name: str) -> TierUnits:
        """What became of each unit of a tier. Changes nothing."""

    def events(self) -> Iterable[Event]:
        """Returns the changes to what can be hit since the last call, in order."""
