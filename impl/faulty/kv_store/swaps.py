"""Faults of kv_store: swaps between device and host."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.kv_store.copies import Pairs
from kvlockstep.impl.faulty.kv_store.rows import Gathered
from kvlockstep.reference.kv_store import KVStore


@fault("store-swap-loses", law="content_equality", seen=("vllm#7577",))
class SwapLosesLast(KVStore):
    """A swap of several blocks drops the last one."""

    def swap_out(self, pairs: Pairs) -> None:
        lost = [(t, list(self._host[t * self._size : (t + 1) * self._size])) for _, t in pairs[1:][-1:]]
        super().swap_out(pairs)
        for target, content in lost:
            self._host[target * self._size : (target + 1) * self._size] = content


@fault("store-swap-position", law="content_equality", seen=("sglang#28544",))
class SwapsByPosition(KVStore):
    """Swapping in ignores the host block ids and uses the order of the request."""

    def swap_in(self, pairs: Pairs) -> None:
        super().swap_in(pairs)
        host_blocks = len(self._host) // self._size
        super().swap_in([(i % host_blocks, target) for i, (_, target) in enumerate(pairs)])


@fault("store-swap-clears", law="write_isolation", seen=("sglang#38031",))
class SwapOutClears(KVStore):
    """Swapping out clears the device block."""

    def swap_out(self, pairs: Pairs) -> None:
        super().swap_out(pairs)
        for slot in self._slots([source for source, _ in pairs]):
            self._device[slot] = self._blank()


@fault("store-host-reference", law="write_isolation", seen=("mutant",))
class HostIsAReference(KVStore):
    """The host copy is a reference to device memory, so later writes change it."""

    def swap_out(self, pairs: Pairs) -> None:
        super().swap_out(pairs)
        for source, target in pairs:
            for i in range(self._size):
                self._host[target * self._size + i] = self._device[source * self._size + i]


@fault("store-host-planes", law="content_equality", seen=("LMCache#4463",))
class GatherSwapsPlanes(KVStore):
    """A gather from the host returns V before K."""

    def gather_host(self, layer: int, slots: Sequence[int]) -> Gathered:
        keys, values = super().gather_host(layer, slots)
        return values, keys


@fault("store-ignores-unknown", law="no_aliasing", seen=("vllm#7577",))
class UnknownIsIgnored(KVStore):
    """A swap to an unknown host block silently does nothing."""

    def swap_out(self, pairs: Pairs) -> None:
        super().swap_out([(s, t) for s, t in pairs if 0 <= t < len(self._host) // self._size])
