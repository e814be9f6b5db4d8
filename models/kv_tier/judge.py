"""Judge of a kv_tier: makes its calls, owns the units' content, and checks the laws.

Nothing is held against a policy: the judge learns from the plans which chunks were evicted, and asks for no order. It
knows of every key what a lookup has to answer, and of every unit whether it is free.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import NotEnabled, require
from kvlockstep.models.kv_tier.answers import evicted_of, units_of
from kvlockstep.models.kv_tier.books import Plan
from kvlockstep.models.kv_tier.goals import notice_end, notice_lookup, notice_store
from kvlockstep.models.kv_tier.session import TierSession
from kvlockstep.models.requests.adapter import answered
from kvlockstep.properties import kv_tier as laws
from kvlockstep.properties.kv_tier import Fate
from kvlockstep.properties.law import ERROR_CONTRACT, counted
from kvlockstep.reference.kv_tier.contract import HIT, MISS, PENDING, Key


class TierJudge(TierSession):
    """The operations of a trace: each makes calls of the tier, checks what follows, and returns its answer as text.

    An operation raises Divergence if a law does not hold, and NotEnabled, with nothing changed, if it is not legal now.
    """

    def lookup(self, keys: Sequence[Key], owner: str) -> str:
        """Keys are looked up in order, up to the first that is no hit."""
        return self._run_of_hits(keys, owner, pin=False)

    def pin(self, keys: Sequence[Key], owner: str) -> str:
        """Keys are looked up in order, up to the first that is no hit; the hits are pinned."""
        require(self.traits.can_pin)
        return self._run_of_hits(keys, owner, pin=True)

    def _run_of_hits(self, keys: Sequence[Key], owner: str, pin: bool) -> str:
        self.legal(keys)
        hits = 0
        for key in keys:
            answer = self._lookup(key, owner, pin)
            if answer != HIT:
                self.settle()
                return f"{counted(hits, 'hit')}, then {answer}" if hits else answer
            hits += 1
        self.settle()
        return HIT if hits == 1 else counted(hits, "hit")

    def store(self, keys: Sequence[Key], owner: str) -> str:
        """Chunks are offered to the tier."""
        self.legal(keys)
        books, before = self.books, self.pool
        known = books.chunks.keys() | books.storing
        new = [key for key in keys if key not in known]
        self.goals_met["stored_already"] += any(key in books.chunks for key in keys)
        self.goals_met["in_flight_already"] += any(key in books.storing for key in keys)
        answer = answered(self.adapter.store, list(keys), owner)
        if answer is None:
            return self._refused(keys, new, before)
        units, evicted = units_of(answer, "store"), evicted_of(answer)
        optional = {key for key in keys if books.fate(key) is Fate.DAMAGED}
        if self.traits.skips:
            optional |= set(new)
        spared = [key for key in keys if self.traits.spares_offered and key not in optional]
        planned = laws.Planned(
            list(keys),
            units,
            evicted,
            dict(books.chunks),
            frozenset(books.storing),
            before.held,
            frozenset(optional),
            len(before.free),
            self.traits.total,
            self.traits.evict_batch,
            spared,
        )
        for law in (laws.pinned, laws.no_aliasing, laws.plan_exact, laws.evicted_exact, laws.eviction_bounded):
            self.checks.check(law, planned)
        notice_store(self.goals_met, books, planned)
        for key in evicted:
            books.drop(key, Fate.EVICTED)
        for key, _ in units:
            if key in books.chunks:
                books.drop(key, Fate.LOST)
        plan = self._begin(answer, dict(units), loads=False)
        self.settle()
        return f"{plan}, evicts {laws.named(evicted)}" if evicted else str(plan)

    def load(self, keys: Sequence[Key], owner: str) -> str:
        """Keys are looked up in order, and those up to the first that is no hit are loaded."""
        self.legal(keys)
        books = self.books
        hits: list[Key] = []
        for key in keys:
            if self._lookup(key, owner) != HIT:
                break
            hits.append(key)
        if not hits:
            self.settle()
            return "nothing"
        answer = answered(self.adapter.load, list(hits), owner)
        units = None if answer is None else units_of(answer, "load")
        planned = None if units is None else [key for key, _ in units]
        self.checks.check(laws.backed, laws.Loaded(hits, planned))
        books.use(hits)
        taken_over = {(owner, key) for key in hits}
        self.goals_met["pin_taken_over"] += not books.pins.isdisjoint(taken_over)
        books.pins -= taken_over
        plans = list(books.in_flight.values())
        self.goals_met["load_behind_store"] += any(not plan.loads for plan in plans)
        self.goals_met["two_readers"] += any(plan.loads and not plan.units.keys().isdisjoint(hits) for plan in plans)
        self.goals_met["several_loaded"] += len(hits) > 1
        plan = self._begin(answer, dict(units or ()), loads=True)
        for key, unit in plan.units.items():
            self._compare(key, unit, "starts")
        self.settle()
        return str(plan)

    def write(self, nth: int) -> str:
        """The tier is given the bytes of one more chunk of the `nth` plan in flight, a store."""
        require(self.allows("write"))
        store = self.in_flight(nth)
        require(not store.loads and store.written < len(store.units))
        self._write_next(store)
        self.settle()
        return str(store)

    def complete_again(self, ok: bool) -> str:
        """The plan that has ended last is completed once more, which changes nothing."""
        done, before = self.books.done, self.pool
        if done is None:
            raise NotEnabled
        self.goals_met["completed_again"] += 1
        answered(self.adapter.complete, done.id, ok)
        self.settle(unchanged=before)
        return str(done)

    def complete(self, nth: int, ok: bool) -> str:
        """The `nth` plan in flight ends."""
        books = self.books
        ending = self.in_flight(nth)
        if ok and not ending.loads and self.traits.holds_bytes:
            while ending.written < len(ending.units):
                self._write_next(ending)
        lost = [] if not ending.loads else [key for key in ending.units if not self._read(ending, key)]
        notice_end(self.goals_met, books, ending, ok)
        answered(self.adapter.complete, ending.id, ok and not lost)
        books.end(ending.number, ok)
        if not ending.loads:
            # A store that fails has written something, but nobody knows what.
            stored = dict.fromkeys(ending.units, books.epoch if ok and not ending.forgotten else -1)
            self.content.fill(ending.units, stored)
        for key in lost:
            # The key may have been stored again since, in another unit.
            if books.chunks.get(key) == ending.units[key] and books.fate(key) is Fate.DAMAGED:
                books.drop(key, Fate.LOST)
        self.settle()
        return f"{ending} without {laws.named(lost)}" if lost else str(ending)

    def touch(self, keys: Sequence[Key]) -> str:
        """Chunks were used in some other way."""
        self.legal(keys)
        answered(self.adapter.touch, list(keys))
        self.books.use(keys)
        self.settle()
        return ""

    def release(self, owner: str) -> str:
        """An owner ends, or has no use for its hits."""
        pins = {(of, key) for of, key in self.books.pins if of == owner}
        before = self.pool
        answered(self.adapter.release, owner)
        self.books.pins -= pins
        self.goals_met["released" if pins else "released_nothing"] += 1
        self.settle(unchanged=None if pins else before)
        return ""

    def reset(self) -> str:
        """Everything is forgotten."""
        require(self.allows("reset"))
        self.goals_met["reset"] += bool(self.books.chunks)
        self.goals_met["reset_in_flight"] += bool(self.books.in_flight)
        answered(self.adapter.reset)
        self.books.reset()
        self.pool = self.look()
        self.checks.check(laws.reset_complete, self.pool)
        self.settle()
        return ""

    def damage(self, keys: Sequence[Key], how: str) -> str:
        """The storage damages a chunk behind the tier's back."""
        require(self.allows("damage") and all(key in self.books.chunks for key in keys))
        for key in keys:
            answered(self.adapter.damage, key, how)
            self.books.damage(key)
        self.goals_met[f"damage_{how}"] += 1
        self.settle()
        return ""

    def reopen(self) -> str:
        """The process ends without warning, and the tier is opened again."""
        require(self.allows("reopen"))
        stores = [plan for plan in self.books.in_flight.values() if not plan.loads]
        self.goals_met["reopened_in_flight"] += any(plan.written for plan in stores)
        self.goals_met["reopened"] += bool(self.books.chunks)
        answered(self.adapter.reopen)
        self.books.reopen()
        # A tier may check its chunks when it is opened, or when they are read.
        free = set(self.look().free)
        for key in [key for key, unit in self.books.chunks.items() if unit in free]:
            if self.books.fate(key) is Fate.DAMAGED:
                self.books.drop(key, Fate.LOST)
        self.checks.check(laws.crash_consistency, self.look())
        # Events are those of one process: a listener asks a new one for what is there.
        self.heard = set(self.books.chunks)
        self.settle()
        return ""

    def _lookup(self, key: Key, owner: str, pin: bool = False) -> str:
        answer: Any = answered(self.adapter.pin if pin else self.adapter.lookup, key, owner)
        if answer not in (HIT, MISS, PENDING):
            raise Divergence(
                ERROR_CONTRACT.id,
                f"{'pin' if pin else 'lookup'} returned {reprlib.repr(answer)}, not miss, pending or hit",
            )
        books = self.books
        fate = books.fate(key)
        looked = laws.Looked(key, answer, fate, self.traits.pending_visible, key in books.reopened)
        # Each of these laws is about other fates, so that their order does not matter.
        for law in (laws.visible_when_written, laws.failure_visible, laws.evicted_exact):
            self.checks.check(law, looked)
        if self.traits.can_reset:
            self.checks.check(laws.reset_complete, looked)
        if self.allows("reopen"):
            self.checks.check(laws.crash_consistency, looked)
        notice_lookup(self.goals_met, books, key, answer)
        if answer == HIT:
            books.use([key])
            if pin:
                self.goals_met["pinned_twice"] += any(of != owner and pinned == key for of, pinned in books.pins)
                books.pins.add((owner, key))
        elif key in books.chunks:
            # It is damaged: for any other chunk a law has failed by now.
            books.drop(key, Fate.LOST)
        return str(answer)

    def _refused(self, keys: Sequence[Key], new: Sequence[Key], before: laws.Pool) -> str:
        books = self.books
        # Offered chunks that are there are no room: they are not evicted for the others.
        idle = [key for key, unit in books.chunks.items() if unit not in before.held and key not in keys]
        damaged = sum(books.fate(key) is Fate.DAMAGED for key in keys)
        room = len(before.free) + len(idle)
        self.checks.check(laws.refusal_honest, laws.Refusal(len(new) + damaged, room))
        self.goals_met["refused"] += 1
        self.goals_met["refused_by_one"] += len(new) == room + 1
        if self.traits.refusal_evicts:
            free = set(self.look().free)
            idle = [key for key, unit in books.chunks.items() if unit not in before.held]
            if self.traits.spares_offered:
                idle = [key for key in idle if key not in keys]
            for key in [key for key in idle if books.chunks[key] in free]:
                books.drop(key, Fate.EVICTED)
        self.settle()
        return "refused"

    def _begin(self, answer: Any, units: dict[Key, int], loads: bool) -> Plan:
        damaged = {key for key in units if loads and self.books.fate(key) is Fate.DAMAGED}
        plan = Plan(self.books.plans, answer.id, loads, units, damaged)
        self.books.begin(plan)
        if not loads:
            # Bytes may arrive at any time between start and completion: until then nobody knows what is there.
            self.content.fill(units, dict.fromkeys(units, -1))
        return plan

    def _write_next(self, plan: Plan) -> None:
        key = list(plan.units)[plan.written]
        answered(self.adapter.write, plan.id, key, self.content.data(key, self.books.epoch))
        plan.written += 1

    def _read(self, plan: Plan, key: Key) -> bool:
        """Compares what a load has read. False if the tier says that it is damaged."""
        if plan.forgotten:
            return True
        if not self.traits.holds_bytes:
            self._compare(key, plan.units[key], "ends")
            return True
        data = answered(self.adapter.read, plan.id, key)
        if data is not None and not isinstance(data, bytes | bytearray | memoryview):
            raise Divergence(ERROR_CONTRACT.id, f"read returned {reprlib.repr(data)}, not bytes or None")
        damaged = key in plan.damaged
        stored = self.content.data(key, self.books.epoch)
        self.checks.check(laws.whole_or_none, laws.Bytes(key, data if data is None else bytes(data), stored, damaged))
        self.goals_met["damage_found"] += data is None
        return data is not None

    def _compare(self, key: Key, unit: int, moment: str) -> None:
        if not self.traits.holds_bytes:
            found, stored = self.content.of(unit), self.content.chunk(key, self.books.epoch)
            self.checks.check(laws.content_equality, laws.Read(key, unit, found, stored, moment))
