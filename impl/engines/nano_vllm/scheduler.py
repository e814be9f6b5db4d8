"""kv_scheduler on the Scheduler of nano-vllm (0.2.0).

The calls are those of LLMEngine.step: `schedule`, the forward, `postprocess`. The worker's tables are the sequences'
own block tables, which the engine hands to its model runner whole at each step. There is no abort.
Source: nanovllm/engine/llm_engine.py, step; nanovllm/engine/model_runner.py, prepare_prefill and prepare_decode.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from kvlockstep.impl.engines.loading import without_the_rest
from kvlockstep.impl.engines.nano_vllm import manager as nano_vllm
from kvlockstep.impl.slots import slots_of
from kvlockstep.reference.kv_scheduler.contract import END_TOKEN, Batch, Item

with without_the_rest(nano_vllm.ENGINE, (), ("nanovllm.config",)):
    scheduler: Any = importlib.import_module("nanovllm.engine.scheduler")


class NanoVllmScheduler:
    """One Scheduler. As in nano_vllm a block has two tokens at least.

    `longest` is the longest request in pools, prompt and output: the engine asks nothing of a request that arrives, but
    only those up to one pool can end.
    """

    engine = "nano-vllm"
    version = nano_vllm.ENGINE.version
    policy = "fcfs"
    aborts: str | None = None
    mixes = False

    def __init__(self, blocks: int, block_size: int, budget: int, running: int, longest: int = 1) -> None:
        self.block_size = max(nano_vllm.SMALLEST_BLOCK, block_size)
        self.total = blocks * self.block_size
        self.max_length = longest * self.total if longest > 1 else None
        config = SimpleNamespace(
            max_num_seqs=running,
            max_num_batched_tokens=budget,
            eos=END_TOKEN,
            kvcache_block_size=self.block_size,
            num_kvcache_blocks=blocks,
        )
        self._scheduler = scheduler.Scheduler(config)
        self._manager = self._scheduler.block_manager
        self._sequences: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        self._launched: deque[tuple[list[Any], bool]] = deque()

    def add(self, rid: str, tokens: list[int], extra_key: int | None, max_tokens: int, priority: int) -> None:
        params = SimpleNamespace(temperature=1.0, max_tokens=max_tokens, ignore_eos=False)
        seq = self._sequences[rid] = nano_vllm.sequence.Sequence(tokens, params)
        seq.block_size = self.block_size
        self._names[seq.seq_id] = rid
        self._scheduler.add(seq)

    def schedule(self) -> Batch:
        before = list(self._scheduler.running)
        seqs, is_prefill = self._scheduler.schedule()
        self._launched.append((seqs, is_prefill))
        preempted = [self._names[seq.seq_id] for seq in before if seq.status is nano_vllm.WAITING]
        return Batch([self._item(seq, is_prefill) for seq in seqs], preempted)

    def update(self, sampled: Mapping[str, int]) -> Collection[str]:
        seqs, is_prefill = self._launched.popleft()
        names = [self._names[seq.seq_id] for seq in seqs]
        self._scheduler.postprocess(seqs, [sampled.get(name, END_TOKEN) for name in names], is_prefill)
        return [name for seq, name in zip(seqs, names, strict=True) if seq.is_finished]

    def queues(self) -> Mapping[str, Sequence[str]]:
        names = ("waiting", "running")
        return {name: [self._names[seq.seq_id] for seq in getattr(self._scheduler, name)] for name in names}

    def slots(self, rid: str) -> list[int]:
        return slots_of(self._sequences[rid].block_table, self.block_size)

    def avail(self) -> int:
        return len(self._manager.free_block_ids) * self.block_size

    def free_slots(self) -> Iterable[int] | None:
        blocks, found = self._manager.blocks, self._manager.hash_to_block_id
        free = [i for i in self._manager.free_block_ids if found.get(blocks[i].hash) != i]
        return slots_of(free, self.block_size)

    def _item(self, seq: Any, is_prefill: bool) -> Item:
        """The item that the model runner makes of a sequence."""
        start = seq.num_cached_tokens if is_prefill else len(seq) - 1
        end = start + seq.num_scheduled_tokens
        tokens = seq[start:end] if is_prefill else [seq.last_token]
        slots = slots_of(seq.block_table, self.block_size)[:end]
        return Item(self._names[seq.seq_id], start, end - start, slots, tokens, end == len(seq))


make = NanoVllmScheduler
make_unguarded = partial(NanoVllmScheduler, longest=2)
