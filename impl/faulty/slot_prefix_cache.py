"""Faults of slot_prefix_cache."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import faults_of
from kvlockstep.reference.errors import InvalidArgument, NotCached, Pinned
from kvlockstep.reference.slot_prefix_cache import MISS, Match, Prefix, Row, SlotPrefixCache


class EvictsInterior(SlotPrefixCache):
    """Evicts the least recent entry wherever it stands, and everything below it with it, pinned or not."""

    def _evict(self) -> None:
        while len(self._used) > self._capacity:
            free = [p for p in self._used if not self._pins[p]]
            if not free:
                return
            victim = min(free, key=lambda p: (self._used[p], len(p)))
            for slot in [s for s, row in self._rows.items() if row.tokens[: len(victim)] == victim]:
                row = self._rows.pop(slot)
                if len(victim) > 1:
                    self._rows[slot] = Row(victim[:-1], row.version, row.inserted)
            self._used = {p: t for p, t in self._used.items() if p[: len(victim)] != victim}


class FindsEvicted(SlotPrefixCache):
    """An evicted entry stays as a tombstone that find still walks into."""

    def __init__(self, capacity: int, slots: int, positions: int) -> None:
        super().__init__(capacity, slots, positions)
        self._tombs: dict[Prefix, tuple[int, int]] = {}

    def _evict(self) -> None:
        before = self.entries()
        super()._evict()
        self._tombs.update({p: e for p, e in before.items() if p not in self._used})

    def find(self, tokens: Sequence[int]) -> Match:
        match = super().find(tokens)
        longer = tuple(tokens[: match.length + 1])
        if len(longer) > match.length and longer in self._tombs:
            return Match(len(longer), *self._tombs[longer])
        return match


class ReuseKeepsLonger(SlotPrefixCache):
    """Reusing a slot in place for a shorter prefix leaves its longer entries, though the slot is written over."""

    def reuse(self, slot: int, length: int) -> None:
        self._check_slot(slot)


class LoopsWhenPinned(SlotPrefixCache):
    """Eviction tries again as long as the cache is over capacity."""

    def _evict(self) -> None:
        while len(self._used) > self._capacity:
            super()._evict()


class PinOnlyItself(SlotPrefixCache):
    """A pinned entry survives a full cache only until its slot is wanted."""

    def _set_row(self, slot: int, row: Row | None) -> None:
        pins, self._pins = self._pins, type(self._pins)()
        try:
            super()._set_row(slot, row)
        finally:
            self._pins = pins


class FindKeepsAge(SlotPrefixCache):
    """A hit does not count as a use."""

    def find(self, tokens: Sequence[int]) -> Match:
        used = dict(self._used)
        match = super().find(tokens)
        self._used = used
        return match


class RefreshesOnlyTheEnd(SlotPrefixCache):
    """A hit refreshes its last entry and not the path to it."""

    def find(self, tokens: Sequence[int]) -> Match:
        used = dict(self._used)
        match = super().find(tokens)
        prefix = tuple(tokens[: match.length])
        self._used = {p: t if p == prefix else used[p] for p, t in self._used.items()}
        return match


class AnswersOldest(SlotPrefixCache):
    """Of several slots with the prefix the first one answers."""

    def _slot_of(self, prefix: Prefix) -> int:
        holders = [s for s, row in self._rows.items() if row.tokens[: len(prefix)] == prefix]
        return min(holders, key=lambda s: self._rows[s].inserted)


class CopyOneShort(SlotPrefixCache):
    """copy_kv leaves out the last position."""

    def copy_kv(self, tokens: Sequence[int], target: int) -> int:
        self._check_slot(target)
        last = self._kv[target][len(tokens) - 1] if 0 < len(tokens) <= self._positions else 0
        source = super().copy_kv(tokens, target)
        self._kv[target][len(tokens) - 1] = last
        return source


class CopyKeepsTargetEntries(SlotPrefixCache):
    """What the target slot held before the copy can still be found."""

    def copy_kv(self, tokens: Sequence[int], target: int) -> int:
        rows, used = dict(self._rows), dict(self._used)
        source = super().copy_kv(tokens, target)
        self._rows, self._used = rows, used
        return source


class ReleaseWithoutPin(SlotPrefixCache):
    """Releasing an entry without a pin is taken for done."""

    def release(self, tokens: Sequence[int]) -> None:
        prefix = tuple(tokens)
        if prefix in self._pins or prefix not in self._used:
            super().release(tokens)


class PinsWhatIsNotCached(SlotPrefixCache):
    """Pinning an unknown prefix silently does nothing."""

    def pin(self, tokens: Sequence[int]) -> None:
        try:
            super().pin(tokens)
        except NotCached:
            return


class MatchesOneMore(SlotPrefixCache):
    """A hit counts one token more than is cached."""

    def find(self, tokens: Sequence[int]) -> Match:
        match = super().find(tokens)
        return match if match == MISS or match.length == len(tokens) else match._replace(length=match.length + 1)


class StopsOneShort(SlotPrefixCache):
    """The longest entry is not looked at."""

    def find(self, tokens: Sequence[int]) -> Match:
        return super().find(tokens[:-1])


class EvictsOneTooMany(SlotPrefixCache):
    """The cache is kept one below its capacity."""

    def _evict(self) -> None:
        self._capacity -= 1
        super()._evict()
        self._capacity += 1


class InsertPins(SlotPrefixCache):
    """Every insert pins, whether its request still runs or not."""

    def insert(self, tokens: Sequence[int], slot: int, version: int, pinned: bool = False) -> None:
        super().insert(tokens, slot, version, True)


class InsertsNothing(SlotPrefixCache):
    """An empty sequence is inserted at the root."""

    def insert(self, tokens: Sequence[int], slot: int, version: int, pinned: bool = False) -> None:
        if len(tokens):
            super().insert(tokens, slot, version, pinned)


class InsertKeepsAge(SlotPrefixCache):
    """An entry that is inserted again keeps its place in the order of eviction."""

    _known: frozenset[Prefix] = frozenset()

    def insert(self, tokens: Sequence[int], slot: int, version: int, pinned: bool = False) -> None:
        self._known = frozenset(self._used)
        super().insert(tokens, slot, version, pinned)
        self._known = frozenset()

    def _touch(self, prefix: Prefix) -> None:
        ages = {p: t for p, t in self._used.items() if p in self._known}
        super()._touch(prefix)
        self._used.update(ages)


class FindCrashes(SlotPrefixCache):
    """An evicted entry still hangs in the tree; a search that comes by fails to move it up."""

    def __init__(self, capacity: int, slots: int, positions: int) -> None:
        super().__init__(capacity, slots, positions)
        self._tombs: set[Prefix] = set()

    def _evict(self) -> None:
        before = set(self._used)
        super()._evict()
        self._tombs = (self._tombs | before) - set(self._used)

    def find(self, tokens: Sequence[int]) -> Match:
        match = super().find(tokens)
        longer = tuple(tokens[: match.length + 1])
        if len(longer) > match.length and longer in self._tombs:
            raise KeyError(longer)
        return match


class OrphansCount(SlotPrefixCache):
    """What hangs below an evicted entry is unreachable and takes room all the same."""

    def __init__(self, capacity: int, slots: int, positions: int) -> None:
        super().__init__(capacity, slots, positions)
        self._orphans = 0

    def _evict(self) -> None:
        before = len(self._used)
        self._capacity -= self._orphans
        super()._evict()
        self._capacity += self._orphans
        self._orphans = min(self._capacity, self._orphans + max(0, before - len(self._used) - 1))


class ScanRefreshes(SlotPrefixCache):
    """An eviction that passes over pinned entries moves them to the end of the order."""

    def _evict(self) -> None:
        over = len(self._used) > self._capacity
        super()._evict()
        if over:
            self._clock += 1
            for prefix in self._pins:
                self._used[prefix] = self._clock


class OneSlotAnswers(SlotPrefixCache):
    """An entry names its latest slot only: when that one is written over, the other slots that hold it are no help."""

    def reuse(self, slot: int, length: int) -> None:
        held = [p for p in self._used if self._slot_of(p) == slot and len(p) > length]
        super().reuse(slot, length)
        for other, row in list(self._rows.items()):
            kept = max((n for n in range(len(row.tokens) + 1) if row.tokens[:n] not in held), default=0)
            cut = min([len(p) - 1 for p in held if row.tokens[: len(p)] == p], default=kept)
            if cut < len(row.tokens) and not any(row.tokens[: len(p)] == p for p in self._pins):
                self._set_row(other, row._replace(tokens=row.tokens[:cut]) if cut else None)


class InsertKeepsFormer(SlotPrefixCache):
    """What a slot held before another sequence was inserted into it can still be found."""

    def _set_row(self, slot: int, row: Row | None) -> None:
        self._former: dict[Prefix, Match] = getattr(self, "_former", {})
        old = self._rows.get(slot)
        super()._set_row(slot, row)
        if old is not None and row is not None and row.tokens[:1] != old.tokens[:1]:
            self._former[old.tokens] = Match(len(old.tokens), slot, old.version)

    def find(self, tokens: Sequence[int]) -> Match:
        match = super().find(tokens)
        former = getattr(self, "_former", {}).get(tuple(tokens))
        return former if former is not None and match == MISS else match


class ReleaseKeepsOver(SlotPrefixCache):
    """What was pinned over capacity stays when its last pin goes: only an insert looks whether there is too much."""

    def release(self, tokens: Sequence[int]) -> None:
        capacity, self._capacity = self._capacity, len(self._used)
        try:
            super().release(tokens)
        finally:
            self._capacity = capacity


class CopiesUnknown(SlotPrefixCache):
    """Copying what is not cached does nothing."""

    def copy_kv(self, tokens: Sequence[int], target: int) -> int:
        try:
            return super().copy_kv(tokens, target)
        except NotCached:
            return target


class NegativeIsLast(SlotPrefixCache):
    """Slot -1 is the last one."""

    def copy_kv(self, tokens: Sequence[int], target: int) -> int:
        return super().copy_kv(tokens, len(self._kv) - 1 if target == -1 else target)


class SlotZeroIsNone(SlotPrefixCache):
    """An entry that lies in slot 0 is taken for none."""

    def find(self, tokens: Sequence[int]) -> Match:
        match = super().find(tokens)
        return match if match.slot else MISS


class KeepsOneEntry(SlotPrefixCache):
    """The last entry is kept, however small the limit."""

    def _evict(self) -> None:
        capacity, self._capacity = self._capacity, max(1, self._capacity)
        super()._evict()
        self._capacity = capacity


class RefusedInsertClears(SlotPrefixCache):
    """An insert that is refused leaves the slot blank from the end of what is cached there on."""

    def insert(self, tokens: Sequence[int], slot: int, version: int, pinned: bool = False) -> None:
        try:
            super().insert(tokens, slot, version, pinned)
        except InvalidArgument:
            kept = len(self._rows[slot].tokens) if slot in self._rows else 0
            self._kv[slot][kept:] = [0] * (self._positions - kept)
            raise


class EvictsByAge(SlotPrefixCache):
    """Age alone decides: of a path that was used at once the beginning goes first, and its end hangs in the air."""

    def _evict(self) -> None:
        while len(self._used) > self._capacity:
            path = {p[:n] for p in self._pins for n in range(1, len(p) + 1)}
            free = [p for p in self._used if p not in path]
            if not free:
                return
            del self._used[min(free, key=lambda p: (self._used[p], len(p)))]

    def entries(self) -> dict[Prefix, tuple[int, int]]:
        return {p: entry for p, entry in super().entries().items() if p in self._used}


class CopiesWholeSlot(SlotPrefixCache):
    """copy_kv takes the source slot with all that stands behind the prefix."""

    def copy_kv(self, tokens: Sequence[int], target: int) -> int:
        source = super().copy_kv(tokens, target)
        self._kv[target][:] = self._kv[source]
        return source


class InsertKeepsVersion(SlotPrefixCache):
    """A sequence that is inserted again into its slot keeps the version that it had there."""

    def _set_row(self, slot: int, row: Row | None) -> None:
        old = self._rows.get(slot)
        same = row is not None and old is not None and row.tokens == old.tokens
        super()._set_row(slot, row._replace(version=old.version) if same and row and old else row)


class PinnedInThisSlot(SlotPrefixCache):
    """A slot that holds a pinned prefix is refused, though another slot holds it too."""

    def _set_row(self, slot: int, row: Row | None) -> None:
        tokens = row.tokens if row is not None else ()
        old = self._rows[slot].tokens if slot in self._rows else ()
        if any(old[: len(p)] == p != tokens[: len(p)] for p in self._pins):
            raise Pinned(f"slot={slot} holds a pinned prefix")
        super()._set_row(slot, row)


FAULTS = faults_of(
    "slot_prefix_cache",
    ("prefix-evicts-interior", EvictsInterior, "eviction cuts a pinned descendant", ("seed 000",), "conservation"),
    ("prefix-finds-evicted", FindsEvicted, "a tombstone is found", ("seed 000",), "prefix_soundness"),
    ("prefix-reuse-keeps", ReuseKeepsLonger, "in-place reuse leaves longer entries", ("seed 000",), "content_equality"),
    ("prefix-loops-pinned", LoopsWhenPinned, "insert never returns", ("seed 000",), "termination"),
    ("prefix-pin-ignored", PinOnlyItself, "a pinned entry is overwritten", ("seed 000",), "eviction_safety"),
    ("prefix-find-keeps-age", FindKeepsAge, "a hit does not refresh", ("mutant",), "eviction_order"),
    ("prefix-refreshes-end", RefreshesOnlyTheEnd, "a hit refreshes only its end", ("mutant",), "eviction_order"),
    ("prefix-oldest-slot", AnswersOldest, "the first slot answers", ("mutant",), "prefix_soundness"),
    ("prefix-copy-short", CopyOneShort, "a copy lacks its last position", ("LMCache#4921",), "content_equality"),
    ("prefix-copy-keeps", CopyKeepsTargetEntries, "the copy target's entries stay", ("seed 000",), "content_equality"),
    ("prefix-release-free", ReleaseWithoutPin, "a release without a pin", ("seed 000",), "no_double_free"),
    ("prefix-pin-unknown", PinsWhatIsNotCached, "a pin that pins nothing", ("seed 000",), "eviction_safety"),
    ("prefix-hit-plus-one", MatchesOneMore, "a hit counts one token too many", ("vllm#11186",), "prefix_soundness"),
    ("prefix-hit-minus-one", StopsOneShort, "the longest entry is missed", ("mutant",), "prefix_completeness"),
    ("prefix-evicts-more", EvictsOneTooMany, "evicts below capacity", ("sglang#4987",), "conservation"),
    ("prefix-insert-pins", InsertPins, "every insert pins", ("seed 000",), "accounting"),
    ("prefix-inserts-nothing", InsertsNothing, "an empty sequence is inserted", ("seed 000",), "agreement"),
    ("prefix-insert-keeps-age", InsertKeepsAge, "an insert does not refresh", ("seed 000",), "eviction_order"),
    ("prefix-find-crashes", FindCrashes, "a search meets an evicted entry", ("seed 000",), "error_contract"),
    ("prefix-orphans-count", OrphansCount, "orphans take room", ("seed 000", "sglang#22592"), "conservation"),
    ("prefix-scan-refreshes", ScanRefreshes, "being passed over is a use", ("seed 000",), "eviction_order"),
    ("prefix-one-slot", OneSlotAnswers, "no other slot is tried", ("seed 000",), "conservation"),
    ("prefix-insert-keeps", InsertKeepsFormer, "the slot's former entries stay", ("seed 000",), "prefix_soundness"),
    ("prefix-release-keeps", ReleaseKeepsOver, "an unpin frees nothing", ("seed 000", "LMCache#1130"), "accounting"),
    ("prefix-copy-unknown", CopiesUnknown, "a copy of nothing", ("seed 000",), "agreement"),
    ("prefix-negative-slot", NegativeIsLast, "slot -1 is the last", ("seed 000",), "agreement"),
    ("prefix-slot-zero", SlotZeroIsNone, "0 is taken for none", ("llama.cpp#21510",), "prefix_completeness"),
    ("prefix-keeps-one", KeepsOneEntry, "the limit is not kept", ("ik_llama.cpp#2320",), "accounting"),
    ("prefix-refused-clears", RefusedInsertClears, "a refused insert clears", ("Megatron-LM#6091",), "atomicity"),
    ("prefix-evicts-by-age", EvictsByAge, "the beginning of a path goes first", ("Megatron-LM#5822",), "structure"),
    ("prefix-copy-whole", CopiesWholeSlot, "a copy of more than the prefix", ("mlx-lm#1547",), "write_isolation"),
    ("prefix-keeps-version", InsertKeepsVersion, "an old version", ("mutant",), "version_current"),
    ("prefix-pinned-here", PinnedInThisSlot, "a needless refusal", ("mutant",), "admission_honesty"),
)
