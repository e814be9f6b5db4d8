"""The contract of kv_scheduler: a scheduler together with the KV manager that it drives; traits.py has its traits."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from kvlockstep.reference.kv.transfers import TierUnits, Transfer
from kvlockstep.reference.kv_manager.events import Event
from kvlockstep.reference.kv_scheduler.batch import END_TOKEN, NO_DRAFTS, PAD_DRAFT, Batch, Item

__all__ = [
    "END_TOKEN",
    "NO_DRAFTS",
    "PAD_DRAFT",
    "Batch",
    "Item",
    "KVSchedulerOptional",
    "KVSchedulerTarget",
]


@runtime_checkable
class KVSchedulerTarget(Protocol):
    """Factory `make(blocks, block_size, budget, running)`: at most `budget` tokens and `running` requests a batch.

    Slots are integers, the block of a slot is slot // block_size; `avail` and `total` count slots. A request ends by
    END_TOKEN or by its `max_tokens`-th sampled token; together with its prompt they fit into the pool.

    `schedule` is called with at most `overlap` - 1 batches in flight, and its batch is launched at once: it writes
    its KV whatever comes after. `update` brings the sampled tokens of the oldest batch, even of requests that ended or
    were aborted meanwhile, and returns the requests that have ended now. `abort` comes when the trait `aborts` says.
    `queues` names every queue with the requests in it. `slots` are those a request holds now; none if it waits. An
    ended request may hold its slots, and stand in a queue, until its last batch is back. `free_slots` as in kv_manager.

    With `drafts`, `draft(rid, tokens)` offers guesses behind a request's last token, for its next batch, and `update`
    has a second argument: how many drafts of each request were right. The sampled token follows them. If batches
    overlap as well, the drafts are the device's. Then `draft` comes right after the launch of the batch that samples
    the token before them, and `schedule` has an argument: for each batch in flight, the oldest first, what `update`
    will say about its drafts, so that the items begin where the device does. Both inform the worker; the scheduler
    must decide without them.
    """

    def add(self, rid: str, tokens: list[int], extra_key: int | None, max_tokens: int, priority: int) -> None:
        """A request arrives. It ends by END_TOKEN or by its `max_tokens`-th sampled token."""

    def schedule(self) -> Batch:
        """Decides the next batch, which is launched at once."""

    def update(self, sampled: Mapping[str, int]) -> Collection[str]:
        """Receives the sampled tokens of the oldest batch in flight; returns the requests that have ended now."""

    def abort(self, rid: str) -> None:
        """The request ends, even with a batch in flight."""

    def queues(self) -> Mapping[str, Sequence[str]]:
        """Returns every queue by its name, with the requests in it. Changes nothing."""

    def slots(self, rid: str) -> list[int]:
        """Returns the slots that the request holds now; none if it waits. Changes nothing."""

    def avail(self) -> int:
        """Returns the number of free and evictable slots. Changes nothing."""

    def free_slots(self) -> Iterable[int] | None:
        """Returns the slots that are free and cannot be hit any more, or None."""


class KVSchedulerOptional(Protocol):
    """Methods that may be left out. A target that has one announces it with a trait."""

    def reset(self) -> None:
        """Drops everything that is cached; live requests wait again."""

    def draft(self, rid: str, tokens: list[int]) -> None:
        """Offers guesses behind the last token of a request, for its next batch."""

    def transfers(self) -> Sequence[Transfer]:
        """The transfers that were submitted since the last call. Asked after every operation."""

    def waits(self) -> Collection[Hashable]:
        """The ids of transfers that the worker waits for before the batch that `schedule` just decided writes."""

    def complete(self, id: Hashable, ok: bool) -> None:
        """The transfer has ended; if not `ok`, its targets hold garbage. Taken in by the next `poll` at the latest."""

    def poll(self) -> None:
        """Takes in what has completed and submits what is due, with nothing to compute."""

    def tier(self, name: str) -> TierUnits:
        """What became of each unit of a tier. Changes nothing."""

    def looking_up(self) -> Collection[str]:
        """The requests that this `schedule` has passed over, since a tier was asked for what it has of them.

        Asked right after it. Changes nothing.
        """

    def offer(self, tokens: list[int], extra_key: int | None) -> Sequence[int | None]:
        """Another instance has computed these tokens. Returns for each full block the peer's unit that has it now.

        None for a block that the tier does not take, or that is on its way there. With groups a list for each group: of
        a window the blocks out of reach need not be taken, of a state those at which nobody has saved one.
        """

    def events(self) -> Iterable[Event]:
        """Returns the changes to what can be hit since the last call, in order. Those of a tier may be left out."""

    def limbo(self) -> int:
        """Slots that no live request holds and that are not available yet. Changes nothing."""
