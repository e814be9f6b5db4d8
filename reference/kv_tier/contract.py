"""The contract of kv_tier: what a target must offer, its plans, its events and its traits."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from kvlockstep.reference.traits import required, trait

MISS: Literal["miss"] = "miss"
PENDING: Literal["pending"] = "pending"
HIT: Literal["hit"] = "hit"
DAMAGES = ("lose", "truncate", "repeat")


class Key(NamedTuple):
    """The name of a chunk. `extra_key` tells apart what has equal tokens: adapter, salt, KV group, weights."""

    hash: int
    extra_key: int | None = None


class StorePlan(NamedTuple):
    """A store in flight: the unit of each chunk that is written, and the keys that were evicted to make room."""

    id: Hashable
    units: Mapping[Key, int]
    evicted: Sequence[Key] = ()


class LoadPlan(NamedTuple):
    """A load in flight: the unit of each chunk that is read."""

    id: Hashable
    units: Mapping[Key, int]


class ChunkStored(NamedTuple):
    """These chunks can be hit from now on."""

    keys: tuple[Key, ...]


class ChunkRemoved(NamedTuple):
    """These chunks cannot be hit any more."""

    keys: tuple[Key, ...]


class AllChunksCleared(NamedTuple):
    """No chunk can be hit any more."""


Event = ChunkStored | ChunkRemoved | AllChunksCleared


@runtime_checkable
class KVTierTarget(Protocol):
    """Factory `make(units)`. Chunks of KV by key, each in a unit of its own, for several owners.

    A store or a load is a plan: it begins with the call, and it ends when the caller completes it, in any order. The
    traits are the attributes of `TierTraits`. No method of a tier raises.
    """

    def lookup(self, key: Key, owner: str) -> Literal["miss", "pending", "hit"]:
        """Says whether the chunk can be loaded: "hit" once it is stored, "pending" while its store is in flight.
        May refresh how recently the chunk was used, and changes nothing else.
        """

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        """Begins to store the chunks that are not there yet; `keys` are different. A key that is stored already, or
        in flight, is left out, so that a plan may be empty. Evicts what it needs. None if there is no room.
        """

    def load(self, keys: Sequence[Key], owner: str) -> LoadPlan | None:
        """Begins to load chunks, each of which `lookup` has just called a hit for this owner. They stay in the tier.
        The plan takes over the pins that the owner has on them. Answering None breaks the promise of the lookups.
        """

    def complete(self, plan: Hashable, ok: bool) -> None:
        """Ends the plan with this id. Chunks of a store can be hit from now on if it is `ok`, else they are gone.
        Chunks of a load stay either way. A plan that is not in flight is left alone: nothing changes.
        """

    def touch(self, keys: Sequence[Key]) -> None:
        """Refreshes how recently chunks were used. Ignores keys that are not there."""

    def release(self, owner: str) -> None:
        """The owner ends: its pins are dropped, its plans go on. An owner without pins is left alone."""

    def avail(self) -> int:
        """Returns the units that a store could have: free ones, and those of chunks that may be evicted.
        A unit that a plan in flight uses, or a pin holds, is none of them. Changes nothing.
        """

    def free_units(self) -> Iterable[int]:
        """Returns the units that hold no chunk and are used by no plan, in any order, each once. Changes nothing."""


class KVTierOptional(Protocol):
    """Methods of a kv_tier that may be left out. A target that has one announces it with a trait."""

    def pin(self, key: Key, owner: str) -> Literal["miss", "pending", "hit"]:
        """Answers as `lookup` does, and pins a hit for the owner: the chunk stays until the owner's next load of it,
        which takes the pin over, or until `release`. An owner has one pin on a chunk, however often it asks.
        """

    def reset(self) -> None:
        """Forgets every chunk and every pin. What a plan in flight uses stays taken until the plan is completed, and
        is free then: bytes may still be on their way to it.
        """

    def events(self) -> Iterable[Event]:
        """Returns which chunks can be hit and which cannot any more, since the last call, in order."""

    def damage(self, key: Key, how: str) -> None:
        """Damages the bytes of a stored chunk behind the tier's back, as a bad storage does: "lose" them all,
        "truncate" them, or "repeat" those of another chunk (of any, if there is one) in their place.
        """

    def reopen(self) -> None:
        """Ends the process without warning and opens the tier again. Chunks that were stored are there, in the same
        units, unless they are damaged; plans, pins and events are gone.
        """


class KVTierBytes(Protocol):
    """More methods of a tier that `holds_bytes`. Without it the caller moves the bytes, by the units of the plan."""

    def write(self, plan: Hashable, key: Key, data: bytes) -> None:
        """Takes the bytes of one chunk of a store in flight, once for each. A store that fails may lack some."""

    def read(self, plan: Hashable, key: Key) -> bytes | None:
        """Returns the bytes of one chunk of a load in flight, or None if the storage has lost or damaged them.
        After None the chunk cannot be hit any more, and its unit is free when no plan uses it.
        """


def bytes_target(traits: Any) -> type | None:
    """The protocol of the methods that a tier needs because it `holds_bytes`; None if it does not."""
    return KVTierBytes if traits.holds_bytes else None


@dataclass(frozen=True)
class TierTraits:
    """Traits that a kv_tier target declares; read from attributes of the same names."""

    total: int = required("Units of the tier", least=1)
    extra_key: bool = trait(False, "Keys may have an `extra_key`. Otherwise it is always None.")
    pending_visible: bool = trait(
        True, 'A lookup answers "pending" while the store is in flight. Otherwise it answers "miss" until then.'
    )
    can_pin: bool = trait(False, "There is `pin(key, owner)`.", method="pin")
    skips: bool = trait(False, "A store may leave any of its keys out: a filter, a budget.")
    spares_offered: bool = trait(
        True, "A store does not evict a chunk that is offered to it. Otherwise a sequence may get a hole in the middle."
    )
    evict_batch: int = trait(1, "Chunks are evicted in groups of so many; an eviction is rounded up to them.", least=1)
    refusal_evicts: bool = trait(
        False, "A refused store may have evicted chunks. They are those whose units are free afterwards."
    )
    can_reset: bool = trait(False, "There is `reset()`.", method="reset")
    reset_in_flight: bool = trait(False, "`reset` may come while plans are in flight.")
    announces: bool = trait(False, "There is `events()`.", method="events")
    holds_bytes: bool = trait(False, "The tier moves the bytes itself, by `write` and `read`.")
    loads_hold: bool = trait(
        True, "A load in flight holds its units. Otherwise `load` has read the bytes, and the chunks may be evicted."
    )
    can_damage: bool = trait(False, "There is `damage(key, how)`, for tests. Needs `holds_bytes`.", method="damage")
    can_reopen: bool = trait(False, "There is `reopen()`, for tests. Needs `holds_bytes`.", method="reopen")
