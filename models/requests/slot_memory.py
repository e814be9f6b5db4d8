"""KV memory with one stamp per slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from typing import Any

from kvlockstep.models.requests.origins import HIT_AFTER_RESET, RESET, Copies
from kvlockstep.models.requests.request import Request
from kvlockstep.properties import transfers
from kvlockstep.properties.kv_manager.cell import Cell
from kvlockstep.reference.kv.memory import IN_FLIGHT, LOST, POISON, UNWRITTEN, VOID, KVMemory, Provenance
from kvlockstep.reference.kv_manager.traits import Traits

LEFT_BY_TRANSFERS = {IN_FLIGHT: transfers.NOT_LANDED, LOST: transfers.LOST, VOID: transfers.LOST}


class SlotMemory:
    """One stamp per slot, kept in the adapter's own KV memory if it has one (attribute `memory`), else in a dict."""

    granularity = "slot"
    sparing = False

    def __init__(self, adapter: Any, traits: Traits, goals_met: Counter[str]) -> None:
        self._size = traits.block_size
        self._store = getattr(adapter, "memory", None) or KVMemory()
        self._copies = Copies()
        self._provenance = Provenance()
        self._goals_met = goals_met
        self._writers: dict[int, str] = {}
        self._stamp_written: dict[int, int] = {}
        self._owner: dict[int, str] = {}
        self._loaded: set[int] = set()

    def begin_forward(self) -> None:
        self._writers.clear()
        self._stamp_written.clear()

    def end_forward(self) -> None:
        self._writers.clear()
        self._stamp_written.clear()
        self._copies.end_forward()

    def write(self, request: Request, table: Sequence[int], start: int, stop: int) -> tuple[int, str] | None:
        """Writes the stamps of [start, stop); returns the slot and the first writer of a conflict (rule 4)."""
        slots, stamps = table[start:stop], request.stamped(self._provenance, stop)[start:stop]
        for slot, stamp in zip(slots, stamps, strict=True):
            if self._stamp_written.setdefault(slot, stamp) != stamp:
                return slot, self._writers[slot]
            self._writers.setdefault(slot, request.name)
            if self._owner.get(slot, request.name) != request.name:
                self._goals_met["physical_reuse"] += 1
            self._owner[slot] = request.name
        self._store.write(slots, stamps)
        return None

    def first_wrong(self, request: Request, table: Sequence[int], stop: int) -> Cell | None:
        return self._wrong_from(request, table, 0, stop)

    def _wrong_from(self, request: Request, table: Sequence[int], start: int, stop: int) -> Cell | None:
        """The first of the positions [start, stop) that does not hold what it must."""
        slots, want = table[start:stop], request.stamped(self._provenance, stop)[start:stop]
        got = self._store.read(slots)
        if got == want:
            return None
        offset = next(i for i in range(stop - start) if got[i] != want[i])
        position, slot = start + offset, slots[offset]
        writer = self._writers.get(slot)
        return Cell(
            position,
            slot,
            slot // self._size,
            self._name(got[offset]),
            self._name(want[offset]),
            position < request.hit,
            writer == request.name,
            writer,
            self._origin(slot, got[offset], position < request.hit),
        )

    def _origin(self, slot: int, stamp: int, hit: bool) -> str:
        copied = self._copies.origin(slot, stamp, stamp == POISON)
        reset = hit and stamp == POISON and self._owner.get(slot) == RESET
        return copied or (HIT_AFTER_RESET if reset else "")

    def copy(self, pairs: Sequence[tuple[int, int]], when: str = "") -> None:
        self._store.copy(pairs)
        copied = self._store.read([target for _, target in pairs]) if pairs else []
        for (source, target), stamp in zip(pairs, copied, strict=True):
            self._copies.note(source, target, stamp, when)

    def poison(self, slots: Sequence[int]) -> None:
        self._store.poison(slots)

    def reset(self, slots: Sequence[int]) -> None:
        self._store.poison(slots)
        self._owner.update(dict.fromkeys(self._owner.keys() & set(slots), RESET))

    def _name(self, stamp: int) -> str:
        if stamp == UNWRITTEN:
            return "nothing"
        if stamp == POISON:
            return "freed memory"
        if stamp in LEFT_BY_TRANSFERS:
            return LEFT_BY_TRANSFERS[stamp]
        if stamp < 0:
            return "planes that disagree"
        extra_key, tokens = self._provenance.history(stamp)
        return f"the KV of {list(tokens)}" + (f" under key {extra_key}" if extra_key is not None else "")

    def shown(self, slots: Sequence[int]) -> list[str]:
        """Describes the content of these slots in words."""
        return [self._name(stamp) for stamp in self._store.read(slots)]

    @property
    def written(self) -> Set[int]:
        """The slots that a request or a transfer ever wrote."""
        return self._owner.keys() | self._loaded

    def peek(self, slots: Sequence[int]) -> list[int]:
        """The stamps in these slots, for a transfer that reads them."""
        return self._store.read(slots)

    def put(self, slots: Sequence[int], stamps: Sequence[int]) -> None:
        """Stores the stamps that a transfer writes into these slots."""
        self._loaded.update(slots)
        self._store.write(slots, stamps)

    def worst(self, stamps: Sequence[int]) -> str:
        """What stands there, in words: of the slots of a block the one that is most wrong."""
        worst = min(stamps)
        # No message tells the tokens of what is right, and to put them together takes long.
        return self._name(worst) if worst <= UNWRITTEN else "KV"

    def blocks_of(self, extra_key: int | None, tokens: Sequence[int], size: int) -> list[tuple[int, ...]]:
        """The stamps that the full blocks of these tokens must hold, `size` for each block."""
        full = len(tokens) // size * size
        stamps = self._provenance.extend(UNWRITTEN, extra_key, tokens[:full])
        return [tuple(stamps[i : i + size]) for i in range(0, full, size)]

    def history(self, stamp: int) -> Any:
        """The history that a stamp stands for, which is the same in every run."""
        return self._provenance.history(stamp) if stamp > UNWRITTEN else stamp

    def sketch(self) -> Any:
        """Content of the memory by hashes of histories, whose cost does not grow with their lengths."""
        slots, digests = sorted(self.written), self._provenance.digests()
        return tuple(slots), tuple(digests[stamp] if stamp > UNWRITTEN else stamp for stamp in self._store.read(slots))

    def contents(self) -> Any:
        """Content of the memory, by history, for the fingerprint of a state."""
        slots = sorted(self.written)
        return tuple(zip(slots, map(self.history, self._store.read(slots)), strict=True))
