"""KV memory as the judge uses it: one stamp per slot, or one per block where a manager works in whole blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from kvlockstep.models.kv_judge import Request
from kvlockstep.properties.kv_manager import Cell
from kvlockstep.reference.contracts import Traits
from kvlockstep.reference.kv_memory import POISON, UNWRITTEN, KVMemory, Provenance


class SlotMemory:
    """One stamp per slot, kept in the adapter's own KV memory if it has one (attribute `memory`), else in a dict."""

    def __init__(self, adapter: Any, traits: Traits, reach: Counter[str]) -> None:
        self._store = getattr(adapter, "memory", None) or KVMemory()
        self._provenance = Provenance()
        self._reach = reach
        self._writers: dict[int, str] = {}
        self._stamp_written: dict[int, int] = {}
        self._owner: dict[int, str] = {}

    def begin_forward(self) -> None:
        self._writers.clear()
        self._stamp_written.clear()

    def end_forward(self) -> None:
        self._writers.clear()
        self._stamp_written.clear()

    def write(self, request: Request, table: Sequence[int], start: int, stop: int) -> tuple[int, str] | None:
        """Writes the stamps of [start, stop); answers the slot and the first writer of a conflict (rule 4)."""
        slots, stamps = table[start:stop], self._stamps(request, stop)[start:stop]
        for slot, stamp in zip(slots, stamps, strict=True):
            if self._stamp_written.setdefault(slot, stamp) != stamp:
                return slot, self._writers[slot]
            self._writers.setdefault(slot, request.name)
            if self._owner.get(slot, request.name) != request.name:
                self._reach["physical_reuse"] += 1
            self._owner[slot] = request.name
        self._store.write(slots, stamps)
        return None

    def first_wrong(self, request: Request, table: Sequence[int], stop: int) -> Cell | None:
        slots, want = table[:stop], self._stamps(request, stop)[:stop]
        got = self._store.read(slots)
        if got == want:
            return None
        position = next(i for i in range(stop) if got[i] != want[i])
        slot = slots[position]
        writer = self._writers.get(slot)
        return Cell(
            position,
            slot,
            self._name(got[position]),
            self._name(want[position]),
            position < request.hit,
            writer == request.name,
            writer,
        )

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._store.copy(pairs)

    def poison(self, slots: Sequence[int]) -> None:
        self._store.poison(slots)

    def _stamps(self, request: Request, stop: int) -> list[int]:
        """Stamps of the request's known and drafted tokens; those of rejected drafts are forgotten."""
        known = request.stamps
        del known[request.computed :]
        if len(known) < stop:
            tokens = (request.tokens + request.drafts)[len(known) : stop]
            known += self._provenance.extend(known[-1] if known else UNWRITTEN, request.extra_key, tokens)
        return known

    def _name(self, stamp: int) -> str:
        if stamp == UNWRITTEN:
            return "nothing"
        return "freed memory" if stamp == POISON else f"stamp {stamp}"

    def contents(self) -> Any:
        """What stands in memory, for the fingerprint of a state; None if the store cannot tell."""
        cells = getattr(self._store, "_cells", None)
        return tuple(sorted(cells.items())) if cells is not None else None
