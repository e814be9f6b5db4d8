"""Faults of kv_store: copies that leave something out, copy in order, compare floats, or take one place for another."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import faults_of
from kvlockstep.reference.errors import InvalidArgument, UnknownSlot
from kvlockstep.reference.kv_store import PAD_SLOT, KVStore, Rows, Slot

Pairs = Sequence[tuple[int, int]]
Gathered = tuple[list[list[int]], list[list[int]]]


class SkipsLastLayer(KVStore):
    """A block copy runs over all layers but the last of several."""

    def copy_blocks(self, pairs: Pairs) -> None:
        last = [list(planes[-1]) for planes in self._device]
        super().copy_blocks(pairs)
        if self._shape.layers > 1:
            for slot, planes in enumerate(last):
                self._device[slot][-1] = planes


class SkipsValues(KVStore):
    """A prefix copy copies K and leaves V."""

    def copy_prefix(self, source: Sequence[int], target: Sequence[int], tokens: int) -> None:
        values = [[planes[1] for planes in slot] for slot in self._device]
        super().copy_prefix(source, target, tokens)
        for slot, rows in zip(self._device, values, strict=True):
            for planes, row in zip(slot, rows, strict=True):
                planes[1] = row


class PrefixOneShort(KVStore):
    """A prefix copy leaves its last token out."""

    def copy_prefix(self, source: Sequence[int], target: Sequence[int], tokens: int) -> None:
        super().copy_prefix(source, target, 0 if tokens < 0 else tokens)
        if tokens < 0:
            raise InvalidArgument("tokens")

    def _move(self, origin: list[Slot], sources: list[int], goal: list[Slot], targets: list[int]) -> None:
        short = len(sources) % self._size != 0
        super()._move(origin, sources[: len(sources) - short], goal, targets[: len(targets) - short])


class PrefixWholeBlock(KVStore):
    """A prefix copy copies its last block as a whole."""

    def copy_prefix(self, source: Sequence[int], target: Sequence[int], tokens: int) -> None:
        whole = -(-tokens // self._size) * self._size
        super().copy_prefix(source, target, min(tokens, 0) or whole)


class OneByOne(KVStore):
    """Pairs are copied one after the other, so a chain hands on what it has just received."""

    def copy_blocks(self, pairs: Pairs) -> None:
        super().copy_blocks(pairs)
        for pair in pairs:
            if pair[0] in {target for _, target in pairs}:
                super().copy_blocks([pair])


class PrefixBlockwise(KVStore):
    """The blocks of a prefix are copied one after the other, though its tables overlap."""

    def copy_prefix(self, source: Sequence[int], target: Sequence[int], tokens: int) -> None:
        before = [[[list(row) for row in planes] for planes in slot] for slot in self._device]
        super().copy_prefix(source, target, tokens)
        self._device[:] = before
        for i in range(-(-tokens // self._size)):
            super().copy_prefix([source[i]], [target[i]], min(self._size, tokens - i * self._size))


class ChainsButNoCycles(KVStore):
    """Targets that are still needed wait, until only those are left: then the first of the cycle is lost."""

    def copy_blocks(self, pairs: Pairs) -> None:
        self._check_pairs("copy_blocks", [s for s, _ in pairs], self._device, [t for _, t in pairs], self._device)
        left = [(s, t) for s, t in pairs if s != t]
        while left:
            free = [pair for pair in left if pair[1] not in {s for s, _ in left}]
            now = free[0] if free else left[0]
            super().copy_blocks([now])
            left.remove(now)


class SkipsEqualFloats(KVStore):
    """A copy leaves elements alone that are equal to their source as numbers: -0.0 to 0.0."""

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


class OneNaN(KVStore):
    """Writing goes through floats: a NaN loses its sign."""

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        def plain(rows: Rows) -> list[list[int]]:
            return [
                [0x7F if bits == 0xFF and self._shape.dtype == "float8_e4m3fn" else bits for bits in r] for r in rows
            ]

        super().write(layer, slots, plain(keys), plain(values))


class ChecksAsFloats(KVStore):
    """A copy is compared with its source as floats: one with a NaN of fp8, which equals nothing, is taken back."""

    def _move(self, origin: list[Slot], sources: list[int], goal: list[Slot], targets: list[int]) -> None:
        before = [goal[slot] for slot in targets]
        super()._move(origin, sources, goal, targets)
        for slot, old in zip(targets, before, strict=True):
            copied = [bits for planes in goal[slot] for row in planes for bits in row]
            if self._shape.dtype == "float8_e4m3fn" and any(bits & 0x7F == 0x7F for bits in copied):
                goal[slot] = old


class OffsetWraps(KVStore):
    """The offset of an element is kept in so few bits, here 6, that a copy to a block behind them lands in front."""

    def _move(self, origin: list[Slot], sources: list[int], goal: list[Slot], targets: list[int]) -> None:
        token = 2 * self._shape.layers * self._row
        super()._move(origin, sources, goal, [(slot * token) % 64 // token for slot in targets])


class SwapLosesLast(KVStore):
    """Of several blocks swapped at once the last one does not arrive."""

    def swap_out(self, pairs: Pairs) -> None:
        lost = [(t, list(self._host[t * self._size : (t + 1) * self._size])) for _, t in pairs[1:][-1:]]
        super().swap_out(pairs)
        for target, content in lost:
            self._host[target * self._size : (target + 1) * self._size] = content


class SwapsByPosition(KVStore):
    """Blocks come back from the host in the order in which they were asked for, whatever host block was named."""

    def swap_in(self, pairs: Pairs) -> None:
        super().swap_in(pairs)
        host_blocks = len(self._host) // self._size
        super().swap_in([(i % host_blocks, target) for i, (_, target) in enumerate(pairs)])


class SwapOutClears(KVStore):
    """What is swapped out is gone from the device."""

    def swap_out(self, pairs: Pairs) -> None:
        super().swap_out(pairs)
        for slot in self._slots([source for source, _ in pairs]):
            self._device[slot] = self._blank()


class HostIsAReference(KVStore):
    """The host keeps a reference to the device's rows, so that a later write reaches it."""

    def swap_out(self, pairs: Pairs) -> None:
        super().swap_out(pairs)
        for source, target in pairs:
            for i in range(self._size):
                self._host[target * self._size + i] = self._device[source * self._size + i]


class CopyIsAReference(KVStore):
    """A copied block is the same memory as its source."""

    def copy_blocks(self, pairs: Pairs) -> None:
        super().copy_blocks(pairs)
        for source, target in pairs:
            if source not in {t for _, t in pairs}:
                for i in range(self._size):
                    self._device[target * self._size + i] = self._device[source * self._size + i]


class PaddingWraps(KVStore):
    """Padding is written to the last slot."""

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        super().write(layer, slots, keys, values)
        for slot, key, value in zip(slots, keys, values, strict=True):
            if slot == PAD_SLOT and self._device:
                self._device[-1][layer] = [list(key), list(value)]


class PaddingShifts(KVStore):
    """Padding slots are dropped, their rows are not."""

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        super().write(layer, slots, keys, values)
        real = [slot for slot in slots if slot != PAD_SLOT]
        super().write(layer, real, keys[: len(real)], values[: len(real)])


class WritesBothInK(KVStore):
    """V of the first layer is written as K is."""

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        super().write(layer, slots, keys, values if layer else keys)


class TakesFirstLayer(KVStore):
    """Every layer is written to the first one."""

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        super().write(layer, slots, keys, values)
        if layer:
            super().write(0, slots, keys, values)


class GatherInOrder(KVStore):
    """A gather answers each slot once, in ascending order."""

    def gather(self, layer: int, slots: Sequence[int]) -> Gathered:
        return super().gather(layer, slots if len(slots) == len(self._device) else sorted(slots))


class GatherSwapsPlanes(KVStore):
    """A gather on the host answers V before K."""

    def gather_host(self, layer: int, slots: Sequence[int]) -> Gathered:
        keys, values = super().gather_host(layer, slots)
        return values, keys


class DuplicatesWin(KVStore):
    """Of several copies to one target the last one counts."""

    def copy_blocks(self, pairs: Pairs) -> None:
        super().copy_blocks([(source, target) for target, source in {t: s for s, t in pairs}.items()])


class CopiesUpToTheBadOne(KVStore):
    """A refused copy has copied the pairs before the bad one."""

    def copy_blocks(self, pairs: Pairs) -> None:
        try:
            super().copy_blocks(pairs)
        except UnknownSlot:
            super().copy_blocks(pairs[:1])
            raise


class RefusesChains(KVStore):
    """A target that is also a source is refused."""

    def copy_blocks(self, pairs: Pairs) -> None:
        if {s for s, t in pairs if s != t} & {t for s, t in pairs if s != t}:
            raise InvalidArgument("chained")
        super().copy_blocks(pairs)


class UnknownIsIgnored(KVStore):
    """A swap to a host block that is not there does nothing."""

    def swap_out(self, pairs: Pairs) -> None:
        super().swap_out([(s, t) for s, t in pairs if 0 <= t < len(self._host) // self._size])


class CutsWideElements(KVStore):
    """Elements that are too wide lose their upper bits."""

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        wide = 256**self._shape.item_bytes
        super().write(layer, slots, *([[bits % wide for bits in row] for row in rows] for rows in (keys, values)))


class TwoBytes(KVStore):
    """Memory is counted as if every dtype had two bytes."""

    @property
    def memory_bytes(self) -> int:
        return super().memory_bytes * 2 // self._shape.item_bytes


class RoundsUp(KVStore):
    """A block counts as fitting when a part of it does."""

    def blocks_within(self, budget: int) -> int:
        super().blocks_within(budget)
        return -(-budget // (self._size * self._shape.token_bytes))


class IndexErrors(KVStore):
    """A slot behind the last one is an error of the list."""

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        for slot in slots:
            self._device[slot]
        super().write(layer, slots, keys, values)


FAULTS = faults_of(
    "kv_store",
    ("store-last-layer", SkipsLastLayer, "a copy skips the last layer", ("seed 000",), "content_equality"),
    ("store-skips-values", SkipsValues, "a copy skips V", ("LMCache-Ascend#270",), "content_equality"),
    ("store-prefix-short", PrefixOneShort, "off by one at the tail", ("LMCache#4921",), "content_equality"),
    ("store-prefix-whole", PrefixWholeBlock, "a copy runs behind its prefix", ("LMCache#2206",), "write_isolation"),
    ("store-one-by-one", OneByOne, "chained copies one after the other", ("mutant",), "content_equality"),
    ("store-prefix-blockwise", PrefixBlockwise, "overlapping tables", ("LMCache#2206",), "content_equality"),
    ("store-loses-cycle", ChainsButNoCycles, "blocks that change places", ("mutant",), "content_equality"),
    ("store-equal-floats", SkipsEqualFloats, "bits compared as floats", ("TensorRT-LLM#2699",), "content_equality"),
    ("store-fp8-floats", ChecksAsFloats, "fp8 compared as floats", ("mutant",), "content_equality"),
    ("store-offset-wraps", OffsetWraps, "offsets in too few bits", ("mutant",), "content_equality"),
    ("store-one-nan", OneNaN, "fp8 converted on the way", ("FastDeploy#5544 (b)",), "content_equality"),
    ("store-swap-loses", SwapLosesLast, "a swap loses a block", ("vllm#7577",), "content_equality"),
    ("store-swap-position", SwapsByPosition, "host and device ids mixed up", ("sglang#28544",), "content_equality"),
    ("store-swap-clears", SwapOutClears, "swapping out clears", ("sglang#38031",), "write_isolation"),
    ("store-host-reference", HostIsAReference, "the host sees later writes", ("mutant",), "write_isolation"),
    ("store-copy-reference", CopyIsAReference, "a copy sees later writes", ("atlas#692",), "write_isolation"),
    ("store-padding-wraps", PaddingWraps, "padding wraps to the last slot", ("vllm#43810",), "write_isolation"),
    ("store-padding-shifts", PaddingShifts, "padding shifts the rows", ("vllm#13418",), "content_equality"),
    ("store-both-keys", WritesBothInK, "V is written from K", ("LMCache#4463",), "content_equality"),
    ("store-first-layer", TakesFirstLayer, "another layer is written too", ("LMCache#4463",), "content_equality"),
    ("store-gather-order", GatherInOrder, "gathered in another order", ("llama.cpp#3840",), "gather_exact"),
    ("store-host-planes", GatherSwapsPlanes, "K and V mixed up on the host", ("LMCache#4463",), "content_equality"),
    ("store-duplicates", DuplicatesWin, "duplicate targets are accepted", ("vllm#42571",), "no_aliasing"),
    ("store-half-copied", CopiesUpToTheBadOne, "a refused copy is half done", ("sglang#27108",), "atomicity"),
    ("store-refuses-chain", RefusesChains, "a chain is refused", ("mutant",), "admission_honesty"),
    ("store-ignores-unknown", UnknownIsIgnored, "a bad mapping is ignored", ("vllm#7577",), "no_aliasing"),
    ("store-cuts-bits", CutsWideElements, "elements are cut silently", ("FastDeploy#5544 (b)",), "no_aliasing"),
    ("store-two-bytes", TwoBytes, "every dtype has two bytes", ("seed 001", "seed 004"), "agreement"),
    ("store-rounds-up", RoundsUp, "a block too many for the budget", ("mutant",), "accounting"),
    ("store-index-error", IndexErrors, "an error of the list", ("mutant",), "error_contract"),
)
