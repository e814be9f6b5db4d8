"""Faults of kv_scheduler: when a store reads its block, and who waits for it."""

from __future__ import annotations

from collections.abc import Collection, Hashable

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.kv_scheduler.fenced import FencedScheduler
from kvlockstep.reference.kv_scheduler.contract import Batch
from kvlockstep.reference.kv_scheduler.scheduler import Job, KVScheduler
from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler


@fault("sched-store-unfenced", law="transfer_isolation", seen=("ATOM#2146",))
class StoreUnfenced(FencedScheduler):
    """Blocks that are freed under a store are written without waiting for it."""

    def waits(self) -> Collection[Hashable]:
        return []


@fault("sched-store-at-decision", law="transfer_isolation", seen=("vllm#45704",))
class StoreAtDecision(TieredScheduler):
    """A store is submitted when it is decided, in front of the batch that computes what it reads."""

    def _commit(self, job: Job, n: int) -> None:
        KVScheduler._commit(self, job, n)

    def schedule(self) -> Batch:
        batch = super().schedule()
        for item in batch.items:
            request = self._kv._live[item.rid]
            for i in range(item.start // self.block_size, (item.start + item.n - item.drafts) // self.block_size):
                key = self._kv._key(request.extra_key, request.tokens[: (i + 1) * self.block_size])
                if not self._tier.knows(key):
                    self._store(key, request.table[i])
        self._submitted = [transfer._replace(before=True) for transfer in self._submitted]
        return batch


@fault("sched-fence-decodes-only", law="transfer_isolation", seen=("vllm#46951",))
class FencesDecodesOnly(FencedScheduler):
    """Only blocks that a running request takes are fenced, not those of an admission."""

    def schedule(self) -> Batch:
        running = {job.rid for job in self._running}
        batch = super().schedule()
        slots = [slot for item in batch.items if item.rid in running for slot in item.slots[item.start :]]
        self._fence = self._stores_of(self._written({slot // self.block_size for slot in slots}))
        return batch


@fault("sched-fence-not-loads", law="source_stable", seen=("vllm#46951",))
class FencesNoLoads(FencedScheduler):
    """A load fills a block that a store still reads, since only the blocks of batches are fenced."""

    def _written(self, blocks: set[int]) -> set[int]:
        return blocks


@fault("sched-fence-by-key", law="transfer_isolation", seen=("TensorRT-LLM#9056",))
class FencesByKey(FencedScheduler):
    """Stores are found by the key of their block, so a block that was evicted meanwhile has no fence."""

    def _stores_of(self, blocks: Collection[int]) -> list[Hashable]:
        ids = super()._stores_of(blocks)
        return [id for id in ids if self._kv._key_of.get(self._stores[id].block) == self._stores[id].key]
