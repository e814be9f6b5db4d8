"""Model of slot_prefix_cache: prompts that share prefixes, in slots that are overwritten and copied."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvlockstep.models.core.bounded import bounded
from kvlockstep.models.core.lockstep import LockstepModel
from kvlockstep.models.core.model import Scope
from kvlockstep.models.core.op import NotEnabled, Op, Pick, command
from kvlockstep.models.core.picture import Picture
from kvlockstep.models.slot_prefix_cache.goals import GOALS, notice
from kvlockstep.models.slot_prefix_cache.operations import OPERATIONS
from kvlockstep.models.slot_prefix_cache.picture import picture
from kvlockstep.properties.law import Refused, Step
from kvlockstep.properties.slot_prefix_cache import (
    LAWS,
    POISON,
    Held,
    Prefix,
    Row,
    View,
    common_length,
    overwritten,
    prefixes,
    trimmed,
)
from kvlockstep.properties.stamps import stamps
from kvlockstep.reference.slot_prefix_cache import SlotPrefixCache
from kvlockstep.reference.slot_prefix_cache.contract import Match


@dataclass(frozen=True)
class SlotPrefixCacheScope(Scope):
    """Sequences of up to `positions` tokens from the vocabulary `tokens`, at most `pins` pins out at a time, some of
    them from inserts with `pinned_inserts`.

    With `exhaustive` every sequence is proposed instead of mostly related ones, insert always writes the whole slot,
    and the version of a row is its length, so that neither old KV nor versions are part of the state; with `gone` the
    entries that are cached no more are part of it, so that every state is tried with everything a cache may remember.
    """

    capacity: int
    slots: int
    positions: int
    tokens: tuple[int, ...] = (1, 2)
    pins: int = 4
    pinned_inserts: bool = True
    exhaustive: bool = False
    gone: bool = False

    def shown(self) -> dict[str, Any]:
        return {"capacity": self.capacity, "slots": self.slots, "positions": self.positions}


def _scopes() -> Iterable[SlotPrefixCacheScope]:
    sizes = [(3, 3, 3), (4, 2, 4), (6, 3, 5), (8, 4, 4), (2, 2, 3), (12, 5, 8), (1, 1, 2), (5, 5, 3), (0, 1, 1)]
    sizes += [(16, 3, 12)]
    vocabularies = ((1, 2), (1, 2, 3), (0, 257, 2**31 - 1), (1,))
    for i, (capacity, slots, positions) in enumerate(sizes):
        for tokens in (vocabularies[i % 3], vocabularies[(i + 1) % 4]):
            yield SlotPrefixCacheScope(capacity, slots, positions, tokens)


class SlotPrefixCacheModel(LockstepModel[SlotPrefixCacheScope]):
    contract = "slot_prefix_cache"
    laws = LAWS
    reference_type = SlotPrefixCache
    scope_type = SlotPrefixCacheScope
    operations = OPERATIONS
    scopes = tuple(_scopes())
    small_scopes = (
        SlotPrefixCacheScope(1, 2, 2, pins=1, exhaustive=True, gone=True),
        SlotPrefixCacheScope(3, 3, 3, pins=1, pinned_inserts=False, exhaustive=True),
    )
    goals = GOALS

    def factory_arguments(self, scope: SlotPrefixCacheScope) -> dict[str, Any]:
        return {"capacity": scope.capacity, "slots": scope.slots, "positions": scope.positions}

    @command(5)
    def insert(self, pick: Pick) -> Op:
        """A sequence is computed in a slot and cached."""
        tokens = self._sequence(pick)
        version = len(tokens) if self.scope.exhaustive else pick((1, 2, 3))
        may_pin = self.scope.pinned_inserts and sum(self.held.pins.values()) < self.scope.pins
        pinned = pick((None, True)) if may_pin else None
        return Op("insert", tokens=tokens, slot=pick(range(self.scope.slots)), version=version, pinned=pinned)

    @command(4)
    def find(self, pick: Pick) -> Op:
        """The longest cached prefix of a prompt is looked up."""
        tokens = self._sequence(pick)
        if not self.scope.exhaustive:
            tokens += pick(([], list(self.scope.tokens[:1])))
        return Op("find", tokens=tokens)

    @command(2)
    def pin(self, pick: Pick) -> Op:
        """A running request protects its prefix."""
        if sum(self.held.pins.values()) >= self.scope.pins:
            raise NotEnabled
        return Op("pin", tokens=list(pick(list(self.view.entries))))

    @command(2)
    def release(self, pick: Pick) -> Op:
        """A request that is done takes its pin back."""
        return Op("release", tokens=list(pick(list(self.held.pins))))

    @command(2)
    def reuse(self, pick: Pick) -> Op:
        """A slot is overwritten from a position on."""
        slot = pick(range(self.scope.slots))
        row = self.held.rows.get(slot)
        return Op("reuse", slot=slot, length=pick(range(len(row.tokens) + 1 if row else 1)))

    @command(3)
    def copy_kv(self, pick: Pick) -> Op:
        """The KV of an entry is copied into another slot, or into its own."""
        return Op("copy_kv", tokens=list(pick(list(self.view.entries))), target=pick(range(self.scope.slots)))

    @command(1)
    def malformed(self, pick: Pick) -> Op:
        """An argument is at or out of its range, or the prefix is not cached or not pinned."""
        scope, entries = self.scope, self.view.entries
        one = list(scope.tokens[:1])
        uncached = next(p for n in itertools.count(1) if (p := scope.tokens[-1:] * n) not in entries)
        unpinned = next((p for p in entries if p not in self.held.pins), uncached)
        kind = pick(("slot", "length", "not_cached", "not_pinned"))
        if kind == "slot":
            slot = pick((-1, scope.slots))
            return pick(
                (
                    Op("insert", tokens=one, slot=slot, version=1),
                    Op("reuse", slot=slot, length=0),
                    Op("copy_kv", tokens=list(next(iter(entries), uncached)), target=slot),
                )
            )
        if kind == "length":
            return pick(
                (
                    Op("insert", tokens=[], slot=0, version=1),
                    Op("insert", tokens=one * (scope.positions + 1), slot=0, version=1),
                    Op("reuse", slot=0, length=-1),
                    Op("find", tokens=[]),
                    Op("find", tokens=one * (scope.positions + 1)),
                )
            )
        if kind == "not_cached":
            tokens = pick(((), uncached))
            return pick((Op("pin", tokens=list(tokens)), Op("copy_kv", tokens=list(tokens), target=0)))
        return Op("release", tokens=list(pick((unpinned, uncached))))

    def _sequence(self, pick: Pick) -> list[int]:
        scope = self.scope
        if scope.exhaustive:
            return list(pick(_all_sequences(scope.tokens, scope.positions)))
        entries = list(self.view.entries)
        related = pick((True, True, False)) if entries else False
        base = list(pick(entries)) if related else []
        room = scope.positions - len(base)
        more = pick(range(0 if base else 1, room + 1)) if room else 0
        return base + [pick(scope.tokens) for _ in range(more)]

    def perform(self, system: Any, op: Op) -> Any:
        args = op.args
        match op.name:
            case "find":
                return Match(*bounded(system.find(list(args["tokens"]))))
            case "insert":
                self._insert(system, **args)
            case "reuse":
                system.reuse(args["slot"], args["length"])
                behind = self.scope.positions - args["length"]
                system.write_kv(args["slot"], args["length"], [POISON] * behind)
            case "copy_kv":
                return system.copy_kv(list(args["tokens"]), args["target"])
            case _:
                getattr(system, op.name)(list(args["tokens"]))
        return None

    def _insert(self, system: Any, tokens: Sequence[int], slot: int, version: int, pinned: bool | None = None) -> None:
        # The KV is written behind the insert: a refused insert must leave the slot alone. The caller's list is
        # emptied, so that a cache that keeps it instead of a copy shows.
        given = list(tokens)
        system.insert(given, slot, version, bool(pinned))
        given.clear()
        sequence = tuple(tokens)
        start = 0 if self.scope.exhaustive else common_length(sequence, self.held.written.get(slot, ()))
        system.write_kv(slot, start, stamps(sequence)[start:])

    def observe(self, system: Any) -> View:
        scope = self.scope
        return View(system.entries(), [system.read_kv(slot, scope.positions) for slot in range(scope.slots)])

    def draw(self, view: View) -> Picture:
        return picture(view, self.held, self.scope.slots)

    def nothing_held(self) -> Held:
        return Held(self.scope.capacity, 0, {}, {}, {}, {}, {})

    def holds_after(self, held: Held, op: Op, outcome: Any) -> Held:
        # What the step before evicted shows in the entries seen after it.
        entries = self.view.entries
        rows = held.rows if len(held.held) == len(entries) else trimmed(held.rows, entries)
        clock, used, pins, written, args = held.clock + 1, held.used, held.pins, held.written, op.args
        if isinstance(outcome, Refused):
            return Held(held.capacity, held.clock, rows, entries, used, pins, written)
        tokens: Prefix = tuple(args.get("tokens", ()))
        match op.name:
            case "find":
                used = _touched(used, tokens[: outcome.length], clock)
            case "pin":
                pins = {**pins, tokens: pins.get(tokens, 0) + 1}
            case "release":
                pins = {p: n - (p == tokens) for p, n in pins.items() if n > (p == tokens)}
            case "insert":
                used = _touched(used if self.scope.gone else {p: used[p] for p in entries}, tokens, clock)
                written = {**written, args["slot"]: tokens}
                if args.get("pinned"):
                    pins = {**pins, tokens: pins.get(tokens, 0) + 1}
            case "reuse":
                written = {**written, args["slot"]: written.get(args["slot"], ())[: args["length"]]}
            case "copy_kv":
                written = {**written, args["target"]: tokens}
        if op.name not in ("insert", "reuse", "copy_kv"):
            return Held(held.capacity, clock, rows, entries, used, pins, written)
        rows = overwritten(rows, op.name, args)
        return Held(held.capacity, clock, rows, prefixes(rows), used, pins, written)

    def notice(self, step: Step[View, Held]) -> None:
        notice(self.goals_met, step, self.scope.positions)

    def fingerprint(self) -> Any:
        # Clocks become ranks. Versions, KV and the relative order of rows that share no prefix are left out: the
        # contract carries them, and decides nothing by them. Nor does it decide anything by which slot or token it
        # is: states that differ by renaming slots or tokens are one state, in which all slots and tokens are tried.
        entries, held = self.view.entries, self.held
        rank = {t: i for i, t in enumerate(sorted({held.used[p] for p in entries}))}
        rows = trimmed(held.rows, entries)
        state = {(p, rank[held.used[p]], _holders(rows, p), held.pins.get(p, 0)) for p in entries}
        if self.scope.gone:
            nowhere: tuple[int, ...] = ()
            state |= {(p, -1, nowhere, 0) for p in held.used if p not in entries}
        return _canonical(frozenset(state), self.scope.tokens) if self.scope.exhaustive else frozenset(state)

    @classmethod
    def simpler_scopes(cls, scope: SlotPrefixCacheScope) -> Iterable[Scope]:
        for name in ("slots", "positions", "capacity"):
            size, least = getattr(scope, name), int(name != "capacity")
            for smaller in sorted({least, size // 2, size - 1}):
                if least <= smaller < size:
                    yield replace(scope, **{name: smaller})


def _holders(rows: Mapping[int, Row], prefix: Prefix) -> tuple[int, ...]:
    return tuple([slot for slot, row in rows.items() if row.tokens[: len(prefix)] == prefix])


def _touched(used: Mapping[Prefix, int], tokens: Prefix, clock: int) -> dict[Prefix, int]:
    return {**used, **{tokens[:n]: clock for n in range(1, len(tokens) + 1)}}


@functools.cache
def _all_sequences(tokens: tuple[int, ...], longest: int) -> list[tuple[int, ...]]:
    return [p for n in range(1, longest + 1) for p in itertools.product(tokens, repeat=n)]


@functools.lru_cache(maxsize=100_000)
def _canonical(state: frozenset[tuple[Any, ...]], tokens: tuple[int, ...]) -> Any:
    """The least renaming of a state: slots are numbered as they appear, tokens permuted in every way."""
    renamed = []
    for permuted in itertools.permutations(tokens):
        token = dict(zip(tokens, permuted, strict=True))
        slot: dict[int, int] = {}
        renamed.append(
            [
                (prefix, rank, tuple([slot.setdefault(s, len(slot)) for s in slots]), pins)
                for prefix, rank, slots, pins in sorted((tuple([token[t] for t in p]), *rest) for p, *rest in state)
            ]
        )
    return tuple(min(renamed))
