"""Books: what the answers of a tier so far imply."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from kvlockstep.properties.kv_tier import Fate, named
from kvlockstep.reference.kv_tier.contract import Key


@dataclass
class Plan:
    """A plan, numbered in the order of making. `written` counts the chunks whose bytes the tier was given.

    `damaged` has the chunks whose bytes were damaged before a load has ended. `forgotten`: a reset came while the plan
    was in flight, so what it stores is nobody's.
    """

    number: int
    id: Hashable
    loads: bool
    units: dict[Key, int]
    damaged: set[Key] = field(default_factory=set)
    written: int = 0
    forgotten: bool = False

    def __str__(self) -> str:
        return f"{'load' if self.loads else 'store'} {self.number} of {named(list(self.units))}"


@dataclass
class Books:
    """`chunks` has the unit of each stored chunk, the least recently used first; `fates` says what became of each key.

    `in_flight` has the plans by number, oldest first, `done` the last one that has ended. `pins` are (owner, key).
    `epoch` counts resets: what was stored before one has other content. `reopened` has the chunks that a crash left.
    `loads_hold` is the trait of that name.
    """

    total: int
    loads_hold: bool = True
    chunks: dict[Key, int] = field(default_factory=dict)
    fates: dict[Key, Fate] = field(default_factory=dict)
    in_flight: dict[int, Plan] = field(default_factory=dict)
    done: Plan | None = None
    plans: int = 0
    pins: set[tuple[str, Key]] = field(default_factory=set)
    epoch: int = 0
    reopened: set[Key] = field(default_factory=set)

    def fate(self, key: Key) -> Fate:
        """Returns the fate of a key, by the answers so far."""
        return self.fates.get(key, Fate.ABSENT)

    @property
    def storing(self) -> set[Key]:
        """The keys whose store is in flight."""
        plans = (plan for plan in self.in_flight.values() if not plan.loads and not plan.forgotten)
        return {key for plan in plans for key in plan.units}

    @property
    def held(self) -> frozenset[int]:
        """The units that a plan in flight uses or a pin holds."""
        plans = (plan for plan in self.in_flight.values() if self.loads_hold or not plan.loads)
        planned = {unit for plan in plans for unit in plan.units.values()}
        return frozenset(planned | {self.chunks[key] for _, key in self.pins})

    def use(self, keys: Sequence[Key]) -> None:
        """Stored chunks were used just now, in this order."""
        for key in keys:
            if key in self.chunks:
                self.chunks[key] = self.chunks.pop(key)

    def begin(self, plan: Plan) -> None:
        """A plan is in flight."""
        self.in_flight[plan.number] = plan
        self.plans += 1
        if not plan.loads:
            self.fates |= dict.fromkeys(plan.units, Fate.STORING)

    def end(self, number: int, ok: bool) -> Plan:
        """A plan in flight ends. Returns it."""
        plan = self.done = self.in_flight.pop(number)
        if not plan.loads and not plan.forgotten:
            self.fates |= dict.fromkeys(plan.units, Fate.STORED if ok else Fate.FAILED)
            if ok:
                self.chunks |= plan.units
                self.reopened -= plan.units.keys()
        return plan

    def damage(self, key: Key) -> None:
        """The bytes of a stored chunk are damaged."""
        self.fates[key] = Fate.DAMAGED
        for plan in self.in_flight.values():
            if plan.loads and plan.units.get(key) == self.chunks[key]:
                plan.damaged.add(key)

    def drop(self, key: Key, fate: Fate) -> None:
        """A stored chunk is gone."""
        del self.chunks[key]
        self.fates[key] = fate
        self.pins = {(owner, pinned) for owner, pinned in self.pins if pinned != key}

    def reset(self) -> None:
        """Everything is forgotten, plans in flight are nobody's."""
        self.fates |= dict.fromkeys(self.chunks, Fate.RESET) | dict.fromkeys(self.storing, Fate.FORGOTTEN)
        for plan in self.in_flight.values():
            plan.forgotten = True
        self.chunks.clear()
        self.pins.clear()
        self.reopened.clear()
        self.epoch += 1

    def reopen(self) -> None:
        """The process has ended, and another one has opened the tier."""
        self.fates |= dict.fromkeys(self.storing, Fate.CUT)
        self.in_flight.clear()
        self.pins.clear()
        self.done = None
        self.reopened = set(self.chunks)
