"""kv_manager that answers with `Loading`, on the decode side of SGLang (0.5.23), which restores prefixes from the host.

A decode instance gets the KV of a prompt from a prefill instance, but for the prefix that its own tree has: on the
device, or on the host, from where it is restored first. An admission takes the slots of the whole prompt
(`DecodePreallocQueue.pop_preallocated`) and starts the load of the promised prefix (`_process_hicache_local_restores`).
`ready` asks for its end as the engine does in each step. Then the request gets its prefix
(`_commit_hicache_local_restore_to_req`), and the step that computes the rest of its prompt stands for the transfer from
the prefill instance; its commit publishes the prompt (`process_prebuilt`). All of these are the engine's own.

A whole prompt is never hit here: of the contract's requests one token is left to compute. The engine keeps no slots
for decodes here (`num_reserved_decode_tokens`), and takes them as soon as a decode is scheduled. What is preempted
comes back as a new request. `restores` is the most loads at a time, of which the engine has three.
Source: sglang/srt/disaggregation, decode.py, decode_hicache_mixin.py and decode_schedule_batch_mixin.py, beside those
of manager.py and hicache.py.
"""

from __future__ import annotations

import importlib
from functools import partial
from types import SimpleNamespace
from typing import Any

from kvlockstep.impl.engines.sglang import manager as sglang
from kvlockstep.impl.engines.sglang.modules import configure, sglang_alone
from kvlockstep.impl.engines.sglang.real_scheduler import STUBS
from kvlockstep.impl.engines.sglang.tiers.tiered import TieredManager
from kvlockstep.reference.kv.transfers import Loading

with sglang_alone(STUBS):
    decode: Any = importlib.import_module("sglang.srt.disaggregation.decode")
    mixin: Any = importlib.import_module("sglang.srt.disaggregation.decode_hicache_mixin")
# Admission counts with no output, as in manager.py.
decode.CLIP_MAX_NEW_TOKEN = 0
configure(
    {
        "disagg": {
            "disaggregation_decode_enable_radix_cache": True,
            "disaggregation_decode_host_receive_threshold": 1,
        }
    }
)
MANY = 64


class TransferQueue(decode.DecodeTransferQueue):  # type: ignore[misc]
    """The engine's queue of requests that wait for KV, without what serves several ranks."""

    def __init__(self, tree: Any, engine: Any) -> None:
        self.tree_cache, self.scheduler = tree, engine
        self.queue: list[Any] = []


class PreallocQueue(decode.DecodePreallocQueue):  # type: ignore[misc]
    """The engine's queue of requests that wait for slots, without the prefill instances it talks to.

    With `pins` what a match has found on the host is kept until its load has begun, which the engine does not do
    (sglang-restore-evicts-promise).
    """

    def __init__(self, rows: Any, allocator: Any, tree: Any, pins: bool) -> None:
        self._pins = pins
        self._pinned: list[tuple[Any, Any]] = []
        self.req_to_token_pool, self.token_to_kv_pool_allocator, self.tree_cache = rows, allocator, tree
        self.token_to_kv_pool = self.draft_token_to_kv_pool = None
        self.req_to_metadata_buffer_idx_allocator = SimpleNamespace(available_size=lambda: 1)
        self.kv_manager = SimpleNamespace(kv_args=SimpleNamespace(state_types=()))
        self.pp_size = 1
        self.num_reserved_decode_tokens = 0
        self.queue: list[Any] = []
        self.retracted_queue: list[Any] = []
        self.pending_reqs: list[Any] = []
        self.scheduler = SimpleNamespace(
            running_batch=SimpleNamespace(reqs=()),
            waiting_queue=(),
            last_batch=None,
            enable_priority_scheduling=False,
            enable_lora=False,
            enable_hisparse=False,
            enable_decode_hicache=True,
            tp_worker=SimpleNamespace(is_hybrid_swa=False),
            disagg_decode_prealloc_queue=None,
        )
        self.transfer_queue = TransferQueue(tree, self.scheduler)

    def _match_prefix_and_lock(self, req: Any) -> Any:
        """The engine's, with one token left of the prompt."""
        most = len(req.origin_input_ids) - 1
        result = decode.match_kv_cache(req, self.tree_cache, req.origin_input_ids, max_prefix_len=most)
        req.lock = self.tree_cache.lock(result.last_device_node)
        if self._pins and result.host_hit_length:
            node = result.best_match_node
            self._pinned.append((node, self.tree_cache.inc_host_lock_ref(node).to_dec_params()))
        return self._build_decode_prefix_match(req, result, max_prefix_len=most)

    def unpin(self) -> None:
        """What was promised is kept by its load, or nobody waits for it."""
        while self._pinned:
            self.tree_cache.dec_host_lock_ref(*self._pinned.pop())

    def _resolve_pending_reqs(self) -> None:
        """There is no prefill instance to find."""

    def _update_handshake_waiters(self, *_: Any) -> None:
        """There is none to shake hands with."""

    def _send_kv_metadata(self, *_: Any, **_options: Any) -> None:
        """There is none to be told which slots it is to fill."""


class RestoringManager(TieredManager):
    """The decode side's cache with a host tier, as large as the pool, with one of the engine's `write_policy`."""

    chunk = False
    whole_prompt = True

    def __init__(
        self,
        blocks: int,
        block_size: int,
        core: str,
        write_policy: str = "write_through",
        restores: int = MANY,
        drains: bool = True,
        pins: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(blocks, block_size, core, write_policy, restores=restores, **options)
        self.output_reserve = 0
        self._prealloc = PreallocQueue(self._rows, self._allocator, self._tree, pins)
        # Requests whose prompt is not there yet.
        self._arriving: dict[str, Any] = {}
        # Of these the ones whose prompt comes in this step.
        self._come: list[str] = []
        self._drains = drains

    @property
    def _waiting(self) -> Any:
        return self._prealloc.transfer_queue

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | Loading | None:  # type: ignore[override]
        asked = decode.DecodeRequest(self._request(rid, tokens, extra_key), None, waiting_for_input=True)
        self._prealloc.queue = [asked]
        preallocated, _ = self._prealloc.pop_preallocated()
        if not preallocated:
            self._prealloc.unpin()
            return None
        self._waiting.extend(preallocated)
        self._running[rid], self._arriving[rid] = asked.req, asked
        cached: int = asked.prefix_match.decode_prefix_len
        prefix = self.ready(rid)
        self._prealloc.unpin()
        if prefix is None:
            return Loading(cached)
        self._schedule(rid)
        return cached

    def ready(self, rid: str) -> int | None:
        asked = self._arriving[rid]
        self._host.load([rid], partial(self._waiting._process_hicache_local_restores, [asked]))
        status = asked.hicache_restore_status
        if status is mixin.HiCacheRestoreResult.FAILED:
            raise RuntimeError(f"{rid} is aborted: HiCache restore failed")
        if status is mixin.HiCacheRestoreResult.PENDING:
            return None
        self._waiting._commit_hicache_local_restore_to_req(asked)
        self._waiting.queue.remove(asked)
        prefix: int = asked.req.prefix_len
        return prefix

    def reserve(self, rid: str, n: int) -> bool:
        if rid in self._arriving:
            self._schedule(rid)
            return True
        if not self._schedule_decode(self._running[rid]):
            return False
        # Else the next admission would find its slot free.
        sglang.SGLangKVManager.launch(self)
        self._results += 1
        return True

    def launch(self) -> None:
        """Everything has its slots. A prompt that is published may become one with what is restored for another."""
        if self._drains and self._come:
            own = {slot // self.block_size for rid in self._come for slot in self.slots(rid)}
            self._host.copies.needed += self._host.copies.loads_beside(own)
        self._come.clear()

    def slots(self, rid: str) -> list[int]:
        """Up to its commit a row has no slots of what is restored for it."""
        asked = self._arriving.get(rid)
        held = super().slots(rid)
        if asked is None or asked not in self._waiting.queue or not asked.prefix_match.needs_local_restore:
            return held
        match = asked.prefix_match
        if asked.hicache_restored_kv_indices is None:
            return held[: match.l1_prefix_len]
        restored = asked.hicache_restored_kv_indices.tolist()
        return [*held[: match.l1_prefix_len], *restored, *held[match.decode_prefix_len :]]

    def commit(self, rid: str, n: int) -> None:
        super().commit(rid, n)
        self._arriving.pop(rid, None)

    def finish(self, rid: str) -> None:
        """One whose last token has not come leaves, as by an abort."""
        if rid in self._arriving:
            self._give_up(self._arriving.pop(rid))
        else:
            super().finish(rid)

    def abort(self, rid: str) -> None:
        asked = self._arriving.pop(rid, None)
        if asked is None:
            super().abort(rid)
            return
        self._give_up(asked)
        self._results = max(0, self._results - 1)

    def preempt(self, rid: str) -> None:
        asked = self._arriving.pop(rid, None)
        if asked is not None:
            self._give_up(asked)
            return
        super().preempt(rid)
        del self._retracted[rid]

    def limbo(self) -> int:
        """Beside what transfers keep: the slots behind a prefix whose load the engine has not started."""
        hidden = 0
        for asked in self._waiting.queue:
            match = asked.prefix_match
            if match.needs_local_restore and asked.hicache_restored_kv_indices is None:
                hidden += self._in_pages(asked.req.kv.kv_allocated_len - match.decode_prefix_len)
        return super().limbo() + hidden

    def reset(self) -> None:
        super().reset()
        self._waiting.queue.clear()

    def _schedule(self, rid: str) -> None:
        """The KV of a prompt has come, as far as it is computed elsewhere (`_get_new_prebuilt_batch`)."""
        req = self._running[rid]
        req.init_next_round_input(None)
        req.extend_end = req.kv.kv_committed_len
        self._come.append(rid)
        self._results += 1

    def _give_up(self, asked: Any) -> None:
        """Ends a request whose prompt is not there, as `pop_transferred` does."""
        if asked in self._waiting.queue:
            self._waiting.queue.remove(asked)
        self._waiting._clean_hicache_prefetch_resources(asked)
        self._release(self._running.pop(asked.req.rid), checkpoint=False)


make_through = partial(RestoringManager, core="python")
make_through_rust = partial(RestoringManager, core="rust")
make_back = partial(RestoringManager, core="rust", write_policy="write_back")
make_selective = partial(RestoringManager, core="rust", write_policy="write_through_selective")
make_three_loads = partial(RestoringManager, core="rust", restores=3)
make_undrained = partial(RestoringManager, core="rust", drains=False)
make_unpinned = partial(RestoringManager, core="rust", write_policy="write_back", pins=False)
make_ten_tokens = partial(RestoringManager, core="rust", least=10)
