"""kv_scheduler on the Scheduler of mini-sglang (0.1.0), on CPU: its overlap loop, or its normal loop.

The calls are those of `overlap_loop`: messages, `_schedule_next_batch`, `_forward`, then `_process_last_data` of the
batch before; `normal_loop` processes its own. What the Scheduler has of an Engine are the page table, `complete_one`
after a forward, and nothing else that bears on memory. A sampled token that has not come back is a mark, which is
replaced when it has. Source: minisgl/scheduler/scheduler.py; minisgl/engine/engine.py, forward_batch.

The loop schedules on a stream of its own, which never waits for the engine's: the token pool is written by both, and
the engine's write lands as late as its stream lets it, before its next forward or when the host has waited for it.
"""

from __future__ import annotations

import importlib
import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from kvlockstep.impl.engines.host_memory import pageable
from kvlockstep.impl.engines.loading import without_the_rest
from kvlockstep.impl.engines.mini_sglang import manager as mini_sglang
from kvlockstep.reference.kv_scheduler.contract import END_TOKEN, Batch, Item

STUBS = ("minisgl.distributed", "minisgl.engine", "minisgl.scheduler.config", "minisgl.scheduler.io")

with without_the_rest(mini_sglang.ENGINE, (), STUBS):
    decode: Any = importlib.import_module("minisgl.scheduler.decode")
    messages: Any = importlib.import_module("minisgl.message")
    scheduler: Any = importlib.import_module("minisgl.scheduler.scheduler")


class Output(NamedTuple):
    """Result of a forward; see minisgl.engine.ForwardOutput."""

    next_tokens_gpu: torch.Tensor
    next_tokens_cpu: torch.Tensor
    copy_done: Any


class LateWrites:
    """A tensor as a stream sees it whose last write lands before its next read, or when the host waits for it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self._due: tuple[Any, torch.Tensor] | None = None

    def land(self) -> None:
        if self._due is not None:
            self.tensor[self._due[0]] = self._due[1]
        self._due = None

    def __getitem__(self, where: Any) -> torch.Tensor:
        self.land()
        return self.tensor[where]

    def __setitem__(self, where: Any, values: torch.Tensor) -> None:
        self._due = where, values


class Scheduler(scheduler.Scheduler):  # type: ignore[misc]
    """The engine's Scheduler without its Engine.

    `holding` are the requests whose memory it has not given back, `ongoing` those of batches in flight.
    """

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        mini_sglang.core._GLOBAL_CTX = None
        mini_sglang.core.set_global_ctx(mini_sglang.core.Context(block_size))
        longest = blocks * block_size
        page_table = torch.zeros((running + 1, -(-longest // 32) * 32), dtype=torch.int32)
        self.engine = SimpleNamespace(
            page_table=page_table,
            max_seq_len=longest,
            graph_runner=SimpleNamespace(pad_batch=lambda batch: setattr(batch, "padded_reqs", batch.reqs)),
            attn_backend=SimpleNamespace(prepare_metadata=lambda _batch: None),
            sampler=SimpleNamespace(prepare=lambda _batch: None),
            forward_batch=self._run,
        )
        self.device = torch.device("cpu")
        self.table_manager = mini_sglang.table.TableManager(running, page_table)
        self.cache_manager = mini_sglang.cache.CacheManager(blocks, block_size, page_table, "radix")
        self.decode_manager = decode.DecodeManager(block_size)
        self.prefill_manager = mini_sglang.prefill.PrefillManager(
            self.cache_manager, self.table_manager, self.decode_manager
        )
        self.finished_reqs: set[Any] = set()
        self.eos_token_id = END_TOKEN
        self.token_pool = LateWrites(self.table_manager.token_pool)
        self.prefill_budget = budget
        self.replies: list[Any] = []
        self.send_result = self.replies.extend
        self.holding: dict[int, Any] = {}
        self.ongoing: list[Any] = []
        self.marks: dict[int, int] = {}
        self._next_mark = itertools.count(-2, -1)

    def _run(self, batch: Any, _sample_args: Any) -> Output:
        """Stands for Engine.forward_batch. Each sampled token is a mark."""
        for req in batch.reqs:
            req.complete_one()
            self.holding[req.uid] = req
        marks = torch.tensor([next(self._next_mark) for _ in batch.reqs], dtype=torch.int32)
        self.marks |= {mark: req.uid for mark, req in zip(marks.tolist(), batch.reqs, strict=True)}
        return Output(marks, marks.clone(), SimpleNamespace(synchronize=lambda: None))

    def arrive(self, output: Output, i: int, token: int) -> None:
        """The i-th token of a batch comes back."""
        mark = int(output.next_tokens_gpu[i])
        output.next_tokens_cpu[i] = token
        self.token_pool.tensor[self.token_pool.tensor == mark] = token
        del self.marks[mark]

    def _free_req_resources(self, req: Any) -> None:
        self.holding.pop(req.uid, None)
        super()._free_req_resources(req)


class RepairedScheduler(Scheduler):
    """The engine without the bugs of known.toml but those that are `left`."""

    def __init__(self, *sizes: int, left: Collection[str] = ()) -> None:
        super().__init__(*sizes)
        self._left = left
        self._leaving: list[Any] = []

    def _schedule_next_batch(self) -> Any:
        with patch.object(mini_sglang.prefill, "PrefillAdder", mini_sglang.WholePageAdder):
            return super()._schedule_next_batch()

    def _forward(self, forward_input: Any) -> Any:
        output = super()._forward(forward_input)
        if "late_write" not in self._left:
            self.token_pool.land()
        return output

    def _process_one_msg(self, msg: Any) -> None:
        """An abort of what is in flight waits until it is back."""
        req = self.holding.get(msg.uid) if isinstance(msg, messages.AbortBackendMsg) else None
        if req in self.ongoing and "abort_in_flight" not in self._left:
            self.prefill_manager.abort_req(msg.uid)
            self.decode_manager.remove_req(req)
            self._leaving.append(req)
        else:
            super()._process_one_msg(msg)

    def _process_last_data(self, data: Any) -> None:
        """A request whose last token is in flight has not ended, and nobody hears of one that has."""
        reqs = data[0].batch.reqs if data is not None else []
        held = set(self.holding)
        ahead = [req for req in reqs if req in self.ongoing and "early_end" not in self._left]
        for req in ahead:
            req.device_len -= 1
        super()._process_last_data(data)
        for req in ahead:
            req.device_len += 1
        if "late_reply" not in self._left:
            self.replies[:] = [reply for reply in self.replies if reply.uid in held]
        for req in [req for req in self._leaving if req not in self.ongoing]:
            self._leaving.remove(req)
            if req.uid in self.holding:
                self._free_req_resources(req)
        for req in reqs:
            if req.uid in self.holding and req.cache_handle.cached_len and "unmapped_duplicates" not in self._left:
                mapped = req.cache_handle.get_matched_indices()
                self.engine.page_table[req.table_idx, : len(mapped)] = mapped


class MiniSglangScheduler:
    """One Scheduler; `loop` is its overlap loop, else its normal one."""

    engine = "mini-sglang"
    version = mini_sglang.ENGINE.version
    policy = "fcfs"
    preempts = mixes = False
    aborts = "before_schedule"

    def __init__(
        self,
        blocks: int,
        block_size: int,
        budget: int,
        running: int,
        overlap: bool = True,
        kind: Callable[..., Any] = Scheduler,
    ) -> None:
        self.block_size = block_size
        self.total = blocks * block_size
        self.overlap = 1 + overlap
        self._scheduler = kind(blocks, block_size, budget, running)
        self._cache = self._scheduler.cache_manager
        self._launched: deque[Any] = deque()
        self._rids: list[str] = []
        self._uids: dict[str, int] = {}
        self._ended: set[str] = set()

    def add(self, rid: str, tokens: list[int], extra_key: int | None, max_tokens: int, priority: int) -> None:
        uid = self._uids[rid] = len(self._rids)
        self._rids.append(rid)
        params = mini_sglang.core.SamplingParams(max_tokens=max_tokens)
        ids = torch.tensor(tokens, dtype=torch.int32)
        self._scheduler._process_one_msg(messages.UserMsg(uid=uid, input_ids=ids, sampling_params=params))

    def schedule(self) -> Batch:
        with pageable():
            ahead = self._scheduler._schedule_next_batch()
        if ahead is None:
            self._launched.append(None)
            return Batch([])
        parts = [(req, req.cached_len, req.device_len) for req in ahead.batch.reqs]
        tables = [self._scheduler.engine.page_table[req.table_idx, :end].tolist() for req, _, end in parts]
        self._launched.append((ahead, self._scheduler._forward(ahead)))
        self._scheduler.ongoing = self._in_flight()
        fed = iter(ahead.batch.input_ids.tolist())
        return Batch(
            [
                self._item(req, start, end, slots, list(itertools.islice(fed, end - start)))
                for (req, start, end), slots in zip(parts, tables, strict=True)
            ]
        )

    def update(self, sampled: Mapping[str, int]) -> Collection[str]:
        data = self._launched.popleft()
        self._scheduler.ongoing = self._in_flight()
        if not self._scheduler.ongoing:
            self._scheduler.token_pool.land()
        if data is not None:
            for i, req in enumerate(data[0].batch.reqs):
                self._scheduler.arrive(data[1], i, sampled.get(self._rids[req.uid], END_TOKEN))
        self._scheduler._process_last_data(data)
        ended = [self._rids[reply.uid] for reply in self._scheduler.replies if reply.finished]
        self._scheduler.replies.clear()
        self._ended |= set(ended)
        return ended

    def abort(self, rid: str) -> None:
        self._ended.add(rid)
        self._scheduler._process_one_msg(messages.AbortBackendMsg(uid=self._uids[rid]))

    def queues(self) -> Mapping[str, Sequence[str]]:
        """A request whose last token is in flight stands in the batch alone."""
        pending = [self._rids[req.uid] for req in self._scheduler.prefill_manager.pending_list]
        running = [self._rids[req.uid] for req in self._scheduler.decode_manager.running_reqs]
        last = {self._rids[req.uid] for req in self._in_flight()} - {*pending, *running, *self._ended}
        return {"pending": pending, "running": running, "in flight": sorted(last)}

    def slots(self, rid: str) -> list[int]:
        req = self._scheduler.holding.get(self._uids[rid])
        if req is None:
            return []
        end = -(-req.cached_len // self.block_size) * self.block_size
        held: list[int] = self._scheduler.engine.page_table[req.table_idx, :end].tolist()
        return held

    def avail(self) -> int:
        return int(self._cache.available_size)

    def free_slots(self) -> Iterable[int] | None:
        return [first + i for first in self._cache.free_slots.tolist() for i in range(self.block_size)]

    def _in_flight(self) -> list[Any]:
        return [req for data in self._launched if data is not None for req in data[0].batch.reqs]

    def _item(self, req: Any, start: int, end: int, slots: list[int], fed: list[int]) -> Item:
        """The tokens that it feeds are unknown from the one on that it waits for itself."""
        marks = self._scheduler.marks
        tokens = list(itertools.takewhile(lambda token: marks.get(token) != req.uid, fed))
        samples = not isinstance(req, mini_sglang.prefill.ChunkedReq)
        return Item(self._rids[req.uid], start, end - start, slots, tokens, samples)


make = MiniSglangScheduler
make_repaired = partial(MiniSglangScheduler, kind=RepairedScheduler)
make_normal_repaired = partial(MiniSglangScheduler, overlap=False, kind=RepairedScheduler)


def _with(bug: str) -> Callable[..., MiniSglangScheduler]:
    """The engine with one of its bugs."""
    return partial(MiniSglangScheduler, kind=partial(RepairedScheduler, left=(bug,)))


make_early_end = _with("early_end")
make_unmapped_duplicates = _with("unmapped_duplicates")
make_abort_in_flight = _with("abort_in_flight")
make_late_write = _with("late_write")
make_late_reply = _with("late_reply")
