"""kv_manager with groups on LMDeploy's checkpoints of recurrent states (0.16): full attention beside a state.

The calls are those of manager.py. A running request has one slot for its state, which each step rewrites. Behind each
prompt and chunk the state is copied into a slot of the trie, together with the last block of KV if that is partly
filled; a hit is copied from there, before the forward. Checkpoints and requests share the slots: those of requests are
capped, and the rest (`prefix_cache_state_budget`) is for checkpoints, which may also have what requests leave free. The
plans of copies are those of the engine's own inputs maker. A checkpoint is published when its forward was sent, here at
the commit. A request that is preempted with its last output outstanding keeps a state that is a step too far
(known.toml): here it gives back what it has, unless `as_is`.
Source: lmdeploy/pytorch/paging/{state_manager, block_trie}, engine/{inputs_maker, engine_loop}.py and
engine/model_agent/agent.py, beside those of manager.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from kvlockstep.impl.engines.cut import cut
from kvlockstep.impl.engines.lmdeploy.manager import ENGINE, LmdeployKVManager
from kvlockstep.reference.kv_manager.groups.contract import Group, Step

FULL, STATES = "kv", "states"
# The engine keeps one slot for dummy inputs.
RESERVED = 1

plans = cut(
    ENGINE,
    "lmdeploy.pytorch.engine.inputs_maker",
    (
        "_make_state_prefix_cache_restore_plan",
        "_make_state_prefix_cache_save_plan",
        "InputsMakerAsync._make_kv_prefix_cache_copy_plan",
        "InputsMakerAsync._prepare_prefill_cache_restore",
        "InputsMakerAsync._prepare_prefill_cache_save",
    ),
    {"np": np, "torch": torch},
)


class CopyPlans:
    """The engine's inputs maker as far as it plans copies of checkpoints."""

    _make_kv_prefix_cache_copy_plan = plans._make_kv_prefix_cache_copy_plan
    _prepare_prefill_cache_restore = plans._prepare_prefill_cache_restore
    _prepare_prefill_cache_save = plans._prepare_prefill_cache_save

    def __init__(self, scheduler: Any) -> None:
        self.scheduler, self.cache_config = scheduler, scheduler.cache_config

    def restores(self, seqs: list[Any]) -> list[tuple[str, int, int]]:
        """The copies in front of the forward."""
        return copies_of(*self._prepare_prefill_cache_restore(seqs))

    def saves(self, seq: Any, step: int) -> list[tuple[str, int, int]]:
        """The copies behind the forward that ends with so many tokens."""
        return copies_of(*self._prepare_prefill_cache_save([seq], (step,)))


def copies_of(kv: torch.Tensor | None, states: Any) -> list[tuple[str, int, int]]:
    """The copies of two plans of the engine, each with its pool."""
    of_kv = [] if kv is None else kv.T.tolist()
    of_states = [] if states is None else zip(*states, strict=True)
    return [*((FULL, s, t) for s, t in of_kv), *((STATES, s, t) for s, t in of_states)]


class LmdeployStateManager(LmdeployKVManager):
    """One Scheduler with `blocks` GPU blocks, states of `running` requests, and `budget` slots more for checkpoints."""

    copies_at_admit = copies_at_commit = True

    def __init__(
        self, blocks: int, block_size: int, running: int, budget: int, as_is: bool = False, **cache: Any
    ) -> None:
        # With all requests that may run `budget` slots are left, with one fewer one more: then none may be refused.
        self.groups = Group("full", block_size), Group("state", 1, pool=STATES, units=budget + 1)
        self.pools = {FULL: blocks, STATES: running + budget}
        super().__init__(
            blocks,
            block_size,
            as_is,
            states_shapes=[((1,), torch.float32)],
            num_state_caches=RESERVED + running + budget,
            prefix_cache_state_budget=budget,
            **cache,
        )
        self._states = self._scheduler.state_manager
        self._trie = self._scheduler.block_trie
        self._checkpoints = self._trie.state_checkpoints
        self._plans = CopyPlans(self._scheduler)
        self._admitted: list[Any] = []
        self._prefills: dict[str, int] = {}
        self._unanswered: set[str] = set()
        self._saves: dict[str, list[tuple[str, int, int]]] = {}
        self._due: list[tuple[str, int, int]] = []

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached is not None:
            self._admitted.append(self._sequences[rid])
        return cached

    def append(self, rid: str, token: int) -> None:
        self._unanswered.discard(rid)
        super().append(rid, token)

    def copies(self) -> list[tuple[Any, ...]]:
        """What hits are copied from, and the checkpoints of the last commit."""
        due = self._due + self._plans.restores(self._admitted)
        self._due, self._admitted = [], []
        return due

    def launch(self) -> None:
        super().launch()
        for rid, n in self._prefills.items():
            seq = self._sequences[rid]
            self._saves[rid] = self._plans.saves(seq, seq.num_history_ids + n)
        self._prefills = {}

    def state(self, rid: str, group: int) -> Step:
        seq = self._sequences[rid]
        start, own = int(seq.num_history_ids), int(seq.logical_state)
        return Step(own if start else None, [(start + self._batch[rid], own)])

    def slots(self, rid: str, group: int = 0) -> list[int]:
        return super().slots(rid)

    def held(self, rid: str, group: int) -> set[int]:
        """The blocks of nodes above those that the request shares are kept, too, though it may have its own there."""
        seq = self._sequences[rid]
        if group == 1:
            return {int(seq.logical_state)}
        own = set(seq.logical_blocks.get_real_blocks().tolist())
        if seq.prefix_cache.recompute_overlap.trie_block_map:
            for root in self._trie._roots.values():
                _add_ancestors(root, own)
        held: list[int] = self._blocks.allocator.get_physical_blocks(np.array(sorted(own))).tolist()
        return set(held)

    def commit(self, rid: str, n: int) -> None:
        super().commit(rid, n)
        seq = self._sequences[rid]
        if rid not in self._prefilling:
            self._unanswered.add(rid)
        self._checkpoints.publish_save(seq, pin_save=True)
        self._checkpoints.unpin_restore(seq)
        self._checkpoints.unpin_save(seq)
        self._due += self._saves.pop(rid, [])

    def avail(self, pool: str = FULL) -> int:
        if pool == FULL:
            return self.free_now(pool) + len(self._evictable())
        waiting = [seq for seq in self._scheduler.waiting if seq.logical_state >= 0]
        return self.free_now(pool) + len(self._unpinned()) + len(waiting)

    def free_now(self, pool: str = FULL) -> int:
        return int(self._blocks.get_num_free_gpu_blocks() if pool == FULL else self._states.get_num_free())

    def free_slots(self, pool: str = FULL) -> Iterable[int] | None:
        if pool == FULL:
            return self.free_blocks()
        states = self._states.allocator
        free: list[int] = states._free_states[states.num_states - states.get_num_free() :].tolist()
        return free

    def _schedule_prefill(self, rid: str, n: int) -> None:
        super()._schedule_prefill(rid, n)
        self._prefills[rid] = self._batch[rid]

    def _end(self, rid: str) -> None:
        self._saves.pop(rid, None)
        self._unanswered.discard(rid)
        super()._end(rid)

    def _comes_back_wrong(self, rid: str, seq: Any) -> bool:
        return super()._comes_back_wrong(rid, seq) or rid in self._unanswered

    def _unpinned(self) -> list[Any]:
        nodes = self._trie._checkpoint_index.unique_nodes()
        return [node.state_checkpoint for node in nodes if self._checkpoints._is_evictable_checkpoint(node)]

    def _evictable(self) -> list[int]:
        """The blocks that only the trie, its checkpoints and waiting requests own, with nothing below that is kept."""
        owners = Counter(c.frozen_block_id for c in self._unpinned() if c.frozen_block_id >= 0)
        for seq in self._scheduler.waiting:
            owners.update(seq.logical_blocks.get_real_blocks().tolist())
        owned = self._blocks.allocator._log_mem.ref_count
        kept: set[int] = set()
        for root in self._trie._roots.values():
            _settle(root, owners, owned, kept)
        return [block for block, count in owners.items() if owned[block] == count and block not in kept]


def _add_ancestors(node: Any, blocks: set[int]) -> bool:
    """Adds the blocks of nodes that have one of `blocks` below them; answers whether this is one of them."""
    below = [_add_ancestors(child, blocks) for child in node.children.values()]
    if any(below) and node.parent is not None:
        blocks.add(int(node.block_id))
    return any(below) or node.block_id in blocks


def _settle(node: Any, owners: Counter[int], owned: Any, kept: set[int]) -> bool:
    """Counts the trie as an owner of its blocks; answers whether the node is kept, by a request or a node below."""
    below = [_settle(child, owners, owned, kept) for child in node.children.values()]
    if node.parent is None:
        return False
    owners[int(node.block_id)] += 1
    if any(below) or owned[node.block_id] > owners[int(node.block_id)]:
        kept.add(int(node.block_id))
        return True
    return False


def make_state(blocks: int, block_size: int) -> LmdeployStateManager:
    """Two slots for checkpoints beside those of requests."""
    return LmdeployStateManager(blocks, block_size, max(2, blocks // 4), 2)


def make_state_borrowed(blocks: int, block_size: int) -> LmdeployStateManager:
    """No slots for checkpoints but those that requests leave free, which is the engine's default."""
    return LmdeployStateManager(blocks, block_size, max(3, blocks // 2), 0)


def make_state_as_is(blocks: int, block_size: int) -> LmdeployStateManager:
    """As `make_state`, but a request that was preempted keeps all that it has, as in the engine."""
    return LmdeployStateManager(blocks, block_size, max(2, blocks // 4), 2, as_is=True)
