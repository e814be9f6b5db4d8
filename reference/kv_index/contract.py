"""The contract of kv_index: what a router's index must offer, and its traits. The events are those of kv_manager."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from kvlockstep.reference.kv_manager.contract import Event
from kvlockstep.reference.traits import trait

Worker = Hashable


class WorkerSnapshot(NamedTuple):
    """A worker's cache behind its event `number`: an empty cache that takes in `events` is equal to it."""

    worker: Worker
    number: int
    events: Sequence[Event]


@runtime_checkable
class KVIndexTarget(Protocol):
    """Factory `make(block_size)`. What a router knows of its workers' caches. No call raises.

    Optional methods are those of `KVIndexOptional`, each announced by a trait of `IndexTraits`.
    """

    def apply(self, worker: Worker, number: int, event: Event) -> bool | None:
        """Takes in one event of a worker. Numbers count the worker's events from 0.
        With `tells_gaps` returns True if numbers are missing between the last event and this one, else False.
        """

    def known(self, tokens: list[int], extra_key: int | None) -> Mapping[Worker, int]:
        """Returns how many whole blocks at the head of the sequence each worker has cached, one after the other.
        A worker with none may be left out. Changes nothing; the list and the answer belong to the caller.
        """

    def remove(self, worker: Worker) -> None:
        """The worker has left. Forgets its blocks, its keys and its number. Changes nothing for an unknown worker."""


class KVIndexOptional(Protocol):
    """Methods of a kv_index that may be left out. A target that has one announces it with a trait."""

    def resync(self, worker: Worker, number: int, events: Sequence[Event]) -> None:
        """Replaces what is known of the worker: its cache is what `events` make of an empty one, and the next event
        has the number behind `number`.
        """

    def snapshot(self) -> Sequence[tuple[Worker, int, Sequence[Event]]]:
        """Returns (worker, number, events) for each worker that was heard of and has not left, as `resync` takes
        them: a new index that is fed with all of them knows the same. Changes nothing.
        """


@dataclass(frozen=True)
class IndexTraits:
    """What a kv_index target declares of itself; read from attributes of the same names."""

    extra_key: bool = trait(False, "Sequences under different extra keys are told apart. Else no event has one.")
    event_listener: Literal["set", "counting"] = trait(
        "set",
        'How workers announce equal blocks. A "set" holds a block once, and one removal ends it. A "counting" index '
        "hears a store and a removal for each copy, and a block is gone with its last copy.",
    )
    orphans: Literal["kept", "dropped"] = trait(
        "kept",
        'What a removal does to the blocks below. "kept": they are found again as soon as the removed block is stored '
        'again. "dropped": the index may forget them until they are stored again.',
    )
    shared_keys: bool = trait(
        False, "Equal keys of two workers name equal blocks. Else keys are each worker's own, and may collide."
    )
    tells_gaps: bool = trait(False, "`apply` says whether events were missed. The answer is then checked.")
    ignores_old: bool = trait(
        False, "An event whose number is not above the last one changes nothing. Only then do old events arrive."
    )
    waits_for_resync: bool = trait(
        False,
        "Behind a gap, removals may be ignored. The gap ends when the worker is resynchronised, clears or leaves.",
    )
    can_resync: bool = trait(False, "There is `resync(worker, number, events)`.", method="resync")
    can_snapshot: bool = trait(False, "There is `snapshot()`. It is checked with `can_resync`.", method="snapshot")
