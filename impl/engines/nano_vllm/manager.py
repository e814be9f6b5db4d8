"""kv_manager on the BlockManager of nano-vllm (0.2.0).

Calls come in the order of the engine's own scheduler: a waiting request asks `can_allocate` and takes its whole prompt
with `allocate`, whatever part of it this step computes; later chunks ask for nothing; a decode asks `can_append`, then
calls `may_append`; full blocks are hashed after the forward. A finished or preempted request is deallocated, and so is
an aborted one here, as the engine has no abort. Source: nanovllm/engine/scheduler.py, schedule, preempt, postprocess.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from kvlockstep.impl.engines.loading import find, without_the_rest
from kvlockstep.impl.slots import slots_of

SMALLEST_BLOCK = 2

ENGINE = find("nanovllm", "engine/block_manager.py", "git clone https://github.com/GeeeekExplorer/nano-vllm")

with without_the_rest(ENGINE, ("nanovllm", "nanovllm.engine"), ()):
    block_manager: Any = importlib.import_module("nanovllm.engine.block_manager")
    sequence: Any = importlib.import_module("nanovllm.engine.sequence")

RUNNING, WAITING = sequence.SequenceStatus.RUNNING, sequence.SequenceStatus.WAITING


class NanoVllmKVManager:
    """One BlockManager. The engine cannot have blocks of one token (it wants multiples of 256): they get two.

    With one token, `len(seq) % block_size == 1` never holds, and a decode would never get its block.
    """

    engine = "nano-vllm"
    version = ENGINE.version
    chunk = whole_prompt = True
    tokens_per_decode = 1
    hash_trust = "tokens"

    def __init__(self, blocks: int, block_size: int) -> None:
        self.block_size = max(SMALLEST_BLOCK, block_size)
        self.total = blocks * self.block_size
        self._manager = block_manager.BlockManager(blocks, self.block_size)
        self._sequences: dict[str, Any] = {}
        self._preempted: dict[str, Any] = {}

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        seq = self._preempted.get(rid) or self._sequence(tokens)
        cached_blocks: int = self._manager.can_allocate(seq)
        if cached_blocks == -1:
            return None
        self._preempted.pop(rid, None)
        self._sequences[rid] = seq
        self._manager.allocate(seq, cached_blocks)
        cached: int = seq.num_cached_tokens
        self._schedule_prefill(seq, min(n, len(seq) - cached))
        return cached

    def append(self, rid: str, token: int) -> None:
        self._sequences[rid].append_token(token)

    def reserve(self, rid: str, n: int) -> bool:
        seq = self._sequences[rid]
        if seq.status is WAITING:
            self._schedule_prefill(seq, n)
            return True
        if not self._manager.can_append(seq):
            return False
        seq.num_scheduled_tokens = n
        seq.is_prefill = False
        self._manager.may_append(seq)
        return True

    def copies(self) -> list[tuple[int, int]]:
        return []

    def launch(self) -> None:
        pass

    def slots(self, rid: str) -> list[int]:
        return slots_of(self.blocks(rid), self.block_size)

    def blocks(self, rid: str) -> list[int]:
        """The block table: block i holds positions [i * block_size, (i + 1) * block_size)."""
        return list(self._sequences[rid].block_table)

    def commit(self, rid: str, n: int) -> None:
        seq = self._sequences[rid]
        self._manager.hash_blocks(seq)
        seq.num_cached_tokens += seq.num_scheduled_tokens
        seq.num_scheduled_tokens = 0

    def finish(self, rid: str) -> None:
        self._manager.deallocate(self._sequences.pop(rid))

    def abort(self, rid: str) -> None:
        self.finish(rid)

    def preempt(self, rid: str) -> None:
        seq = self._preempted[rid] = self._sequences.pop(rid)
        seq.status = WAITING
        seq.is_prefill = True
        self._manager.deallocate(seq)

    def avail(self) -> int:
        return len(self._manager.free_block_ids) * self.block_size

    def free_now(self) -> int:
        return len(self.free_blocks()) * self.block_size

    def free_slots(self) -> Iterable[int] | None:
        return slots_of(self.free_blocks(), self.block_size)

    def free_blocks(self) -> list[int]:
        """The blocks in the free queue that no lookup can hit."""
        blocks, found = self._manager.blocks, self._manager.hash_to_block_id
        return [block for block in self._manager.free_block_ids if found.get(blocks[block].hash) != block]

    def _sequence(self, tokens: list[int]) -> Any:
        seq = sequence.Sequence(tokens)
        seq.block_size = self.block_size
        return seq

    def _schedule_prefill(self, seq: Any, n: int) -> None:
        seq.num_scheduled_tokens = n
        if seq.num_cached_tokens + n == len(seq):
            seq.status = RUNNING


make = NanoVllmKVManager
