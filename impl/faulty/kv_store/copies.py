"""Faults of kv_store: copies within the device."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.errors import InvalidArgument, UnknownSlot
from kvlockstep.reference.kv_store import KVStore, Slot

Pairs = Sequence[tuple[int, int]]


@fault("store-last-layer", law="content_equality", seen=("seed 000",))
class SkipsLastLayer(KVStore):
    """A block copy skips the last layer."""

    def copy_blocks(self, pairs: Pairs) -> None:
        last = [list(planes[-1]) for planes in self._device]
        super().copy_blocks(pairs)
        if self._shape.layers > 1:
            for slot, planes in enumerate(last):
                self._device[slot][-1] = planes


@fault("store-skips-values", law="content_equality", seen=("LMCache-Ascend#270",))
class SkipsValues(KVStore):
    """A prefix copy copies K but not V."""

    def copy_prefix(self, source: Sequence[int], target: Sequence[int], tokens: int) -> None:
        values = [[planes[1] for planes in slot] for slot in self._device]
        super().copy_prefix(source, target, tokens)
        for slot, rows in zip(self._device, values, strict=True):
            for planes, row in zip(slot, rows, strict=True):
                planes[1] = row


@fault("store-prefix-short", law="content_equality", seen=("LMCache#4921",))
class PrefixOneShort(KVStore):
    """A prefix copy leaves out its last token."""

    def copy_prefix(self, source: Sequence[int], target: Sequence[int], tokens: int) -> None:
        super().copy_prefix(source, target, 0 if tokens < 0 else tokens)
        if tokens < 0:
            raise InvalidArgument("tokens")

    def _move(self, origin: list[Slot], sources: list[int], goal: list[Slot], targets: list[int]) -> None:
        short = len(sources) % self._size != 0
        super()._move(origin, sources[: len(sources) - short], goal, targets[: len(targets) - short])


@fault("store-prefix-whole", law="write_isolation", seen=("LMCache#2206",))
class PrefixWholeBlock(KVStore):
    """A prefix copy copies all of its last block, past the end of the prefix."""

    def copy_prefix(self, source: Sequence[int], target: Sequence[int], tokens: int) -> None:
        whole = -(-tokens // self._size) * self._size
        super().copy_prefix(source, target, min(tokens, 0) or whole)


@fault("store-one-by-one", law="content_equality", seen=("mutant",))
class OneByOne(KVStore):
    """Pairs are copied one after the other, so a chain passes on what it just received."""

    def copy_blocks(self, pairs: Pairs) -> None:
        super().copy_blocks(pairs)
        for pair in pairs:
            if pair[0] in {target for _, target in pairs}:
                super().copy_blocks([pair])


@fault("store-prefix-blockwise", law="content_equality", seen=("LMCache#2206",))
class PrefixBlockwise(KVStore):
    """A prefix copy goes block by block, although source and target tables overlap."""

    def copy_prefix(self, source: Sequence[int], target: Sequence[int], tokens: int) -> None:
        before = [[[list(row) for row in planes] for planes in slot] for slot in self._device]
        super().copy_prefix(source, target, tokens)
        self._device[:] = before
        for i in range(-(-tokens // self._size)):
            super().copy_prefix([source[i]], [target[i]], min(self._size, tokens - i * self._size))


@fault("store-loses-cycle", law="content_equality", seen=("mutant",))
class ChainsButNoCycles(KVStore):
    """Chains of copies are ordered correctly, but a cycle loses its first block."""

    def copy_blocks(self, pairs: Pairs) -> None:
        self._check_pairs("copy_blocks", [s for s, _ in pairs], self._device, [t for _, t in pairs], self._device)
        left = [(s, t) for s, t in pairs if s != t]
        while left:
            free = [pair for pair in left if pair[1] not in {s for s, _ in left}]
            now = free[0] if free else left[0]
            super().copy_blocks([now])
            left.remove(now)


@fault("store-equal-floats", law="content_equality", seen=("TensorRT-LLM#2699",))
class SkipsEqualFloats(KVStore):
    """A copy skips elements that compare equal as floats, such as -0.0 and 0.0."""

    def _move(self, origin: list[Slot], sources: list[int], goal: list[Slot], targets: list[int]) -> None:
        minus_zero = 1 << (8 * self._shape.item_bytes - 1)
        before = [[[list(row) for row in planes] for planes in goal[slot]] for slot in targets]
        super()._move(origin, sources, goal, targets)
        if self._shape.dtype == "int8":
            return
        for slot, old in zip(targets, before, strict=True):
            for layer, planes in enumerate(old):
                for plane, row in enumerate(planes):
                    new = goal[slot][layer][plane]
                    new[:] = [a if {a, b} == {0, minus_zero} else b for a, b in zip(row, new, strict=True)]


@fault("store-fp8-floats", law="content_equality", seen=("mutant",))
class ChecksAsFloats(KVStore):
    """A copy is verified as floats, so a copy of an fp8 NaN is taken back."""

    def _move(self, origin: list[Slot], sources: list[int], goal: list[Slot], targets: list[int]) -> None:
        before = [goal[slot] for slot in targets]
        super()._move(origin, sources, goal, targets)
        for slot, old in zip(targets, before, strict=True):
            copied = [bits for planes in goal[slot] for row in planes for bits in row]
            if self._shape.dtype == "float8_e4m3fn" and any(bits & 0x7F == 0x7F for bits in copied):
                goal[slot] = old


@fault("store-offset-wraps", law="content_equality", seen=("mutant",))
class OffsetWraps(KVStore):
    """Element offsets are kept in 6 bits, so copies to higher blocks land in lower ones."""

    def _move(self, origin: list[Slot], sources: list[int], goal: list[Slot], targets: list[int]) -> None:
        token = 2 * self._shape.layers * self._row
        super()._move(origin, sources, goal, [(slot * token) % 64 // token for slot in targets])


@fault("store-copy-reference", law="write_isolation", seen=("atlas#692",))
class CopyIsAReference(KVStore):
    """A copied block shares its memory with the source."""

    def copy_blocks(self, pairs: Pairs) -> None:
        super().copy_blocks(pairs)
        for source, target in pairs:
            if source not in {t for _, t in pairs}:
                for i in range(self._size):
                    self._device[target * self._size + i] = self._device[source * self._size + i]


@fault("store-duplicates", law="no_aliasing", seen=("vllm#42571",))
class DuplicatesWin(KVStore):
    """Several copies to one target are accepted, and the last one wins."""

    def copy_blocks(self, pairs: Pairs) -> None:
        super().copy_blocks([(source, target) for target, source in {t: s for s, t in pairs}.items()])


@fault("store-half-copied", law="atomicity", seen=("sglang#27108",))
class CopiesUpToTheBadOne(KVStore):
    """A refused copy has already copied the pairs before the bad one."""

    def copy_blocks(self, pairs: Pairs) -> None:
        try:
            super().copy_blocks(pairs)
        except UnknownSlot:
            super().copy_blocks(pairs[:1])
            raise


@fault("store-refuses-chain", law="admission_honesty", seen=("mutant",))
class RefusesChains(KVStore):
    """A copy is refused if a target is also a source."""

    def copy_blocks(self, pairs: Pairs) -> None:
        if {s for s, t in pairs if s != t} & {t for s, t in pairs if s != t}:
            raise InvalidArgument("chained")
        super().copy_blocks(pairs)


@fault("store-shift-of-first", law="content_equality", seen=("mutant",))
class ShiftOfFirst(KVStore):
    """Rows of every block move to its front by the distance of the first block."""

    copies_rows = True
    shifts = 4

    def copy_rows(self, pairs: Pairs) -> None:
        by, size = (pairs[0][0] - pairs[0][1] if pairs else 0), self._size
        inside = [(t + by) // size == t // size for _, t in pairs]
        super().copy_rows([(t + by if within else s, t) for (s, t), within in zip(pairs, inside, strict=True)])
