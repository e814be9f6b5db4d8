"""kv_scheduler on the Scheduler of SGLang (0.5.23), on CPU: its normal loop, or its overlap loop.

The calls are those of `event_loop_normal`: messages, `get_next_batch_to_run`, `run_batch`, `process_batch_result`;
`event_loop_overlap` processes the batch before. All four are the engine's own, and so is all that they call but the
model worker, what reports, and what serves several ranks: see real_scheduler.py.

The engine ends at once what waits; a running request that is aborted ends with its next token, one between its chunks
before the next batch. A retracted request loses the token in flight and goes to the end of the queue, under fcfs too.
The estimate of a request's output is clipped to `estimate` (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION), as a rule to 0, so
that requests are retracted. Admission asks for a page beyond prompt and estimate: the pool has this page more.
Source: sglang/srt/managers/scheduler.py, schedule_policy.py, schedule_batch.py, overlap_utils.py,
scheduler_components/batch_result_processor.py.
"""

from __future__ import annotations

import itertools
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

from kvlockstep.impl.engines.sglang import manager as sglang
from kvlockstep.impl.engines.sglang.modules import ENGINE, configure
from kvlockstep.impl.engines.sglang.real_scheduler import (
    Options,
    RepairedScheduler,
    Scheduler,
    engine,
    policies,
    sampling,
)
from kvlockstep.impl.slots import slots_of
from kvlockstep.reference.kv_scheduler.contract import END_TOKEN, Batch, Item

# The engine's default clip of the estimate. At this conservativeness the share of it that admission counts with begins
# where the engine's own decays to, in more steps than an episode has (SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR).
DEFAULT_ESTIMATE = 4096
LOWEST_RATIO = 0.14


class SGLangScheduler:
    """One Scheduler with these `options`. An abort ends all requests whose id begins as it says; `id_end` ends each.

    Under overlap a result that comes before the next batch is processed then; the loop has it wait for that batch.
    """

    engine = "sglang"
    version = ENGINE.version
    extra_key = True
    aborts = "before_schedule"
    late_aborts = drops_late_tokens = preempted_last = True

    def __init__(
        self,
        blocks: int,
        block_size: int,
        budget: int,
        running: int,
        kind: Callable[..., Any] = Scheduler,
        id_end: str = ";",
        **options: Any,
    ) -> None:
        given = Options(**options)
        self.block_size = block_size
        pages = blocks + self._spare(block_size, given)
        self.total = pages * block_size
        self.max_length = blocks * block_size - (given.estimate > 0)
        self.overlap = 1 + given.overlap
        self.mixes = given.mixed
        self.policy = "priority" if given.priority else "fcfs" if given.policy == "fcfs" else None
        self.can_reset = not given.overlap
        memory = self._rows, self._allocator, self._tree = self._memory(pages, block_size, budget, running, given)
        self._scheduler = kind(memory, budget, running, given)
        self._estimate = given.estimate
        self._id_end = id_end
        self._settings = {
            "parallel": {"pp_max_micro_batch_size": running},
            "schedule": {"schedule_policy": given.policy},
        }
        self._launched: deque[Any] = deque()
        self._reqs: dict[str, Any] = {}

    def _spare(self, block_size: int, given: Options) -> int:
        """The pages beyond those of the longest request."""
        return 1

    def _memory(self, blocks: int, block_size: int, budget: int, running: int, given: Options) -> tuple[Any, Any, Any]:
        """The rows of the requests that run, an allocator of `blocks` pages, and the tree over both."""
        return sglang.memory(blocks, block_size, given.core, running, is_eagle=given.eagle)

    def add(self, rid: str, tokens: list[int], extra_key: int | None, max_tokens: int, priority: int) -> None:
        params = sampling.SamplingParams(max_new_tokens=max_tokens)
        params.normalize(None)
        req = self._reqs[rid] = engine.Req(
            f"{rid}{self._id_end}",
            "",
            array("q", tokens),
            params,
            eos_token_ids={END_TOKEN},
            extra_key=None if extra_key is None else str(extra_key),
            priority=priority if self.policy == "priority" else None,
        )
        self._scheduler._add_request_to_queue(req)

    def schedule(self) -> Batch:
        waited = set(map(id, self._scheduler.waiting_queue))
        configure(self._settings)
        with patch.object(policies, "CLIP_MAX_NEW_TOKENS", self._estimate):
            plan = self._scheduler.get_next_batch_to_run(self._scheduler.running_batch, self._scheduler.last_batch)
        batch = self._scheduler.last_batch = plan.batch_to_run
        self._scheduler.running_batch = plan.running_batch
        preempted = [rid_of(req) for req in self._scheduler.waiting_queue if id(req) not in waited]
        self._launched.append(batch)
        if batch is None:
            return Batch([], preempted)
        self._before_launch()
        result = self._scheduler.run_batch(batch)
        self._scheduler.result_queue.append((batch.copy() if self.overlap > 1 else batch, result))
        return Batch([self._item(*asked) for asked in self._scheduler.model_worker.items], preempted)

    def _before_launch(self) -> None:
        """The next batch is decided, and the device launches it."""

    def update(self, sampled: Mapping[str, int]) -> Collection[str]:
        if self._launched.popleft() is None:
            return []
        batch, result = self._scheduler.result_queue.popleft()
        going = [req for req in batch.reqs if not req.finished()]
        for i, req in enumerate(batch.reqs):
            self._scheduler.arrive(result, i, sampled.get(rid_of(req), END_TOKEN))
        self._scheduler.process_batch_result(batch, result)
        return [rid_of(req) for req in going if req.finished()]

    def abort(self, rid: str) -> None:
        self._scheduler.aborted.add(self._reqs[rid].rid)
        self._scheduler.abort_request(engine.AbortReq(rid=self._reqs[rid].rid))

    def reset(self) -> None:
        """Retracts every request and flushes the caches, as before new weights."""
        self._scheduler.pause_generation(engine.PauseGenerationReqInput(mode="retract"))
        self._scheduler.flush_cache(empty_cache=False)
        self._scheduler.continue_generation(engine.ContinueGenerationReqInput(torch_empty_cache=False))

    def queues(self) -> Mapping[str, Sequence[str]]:
        """A request that runs stands in one or more of the batches, or alone between its chunks.

        What has finished stays in the running batch until the next one is decided.
        """
        batches = [self._scheduler.running_batch, self._scheduler.last_batch]
        batches += [batch for batch, _ in self._scheduler.result_queue]
        running = [req for batch in batches if batch is not None for req in batch.reqs if not req.is_retracted]
        chunked = [self._scheduler.chunked_req] if self._scheduler.chunked_req is not None else []
        return {
            "waiting": [rid_of(req) for req in self._scheduler.waiting_queue],
            "running": list(dict.fromkeys(rid_of(req) for req in [*running, *chunked] if not req.finished())),
        }

    def slots(self, rid: str) -> list[int]:
        kv = self._reqs[rid].kv
        held: list[int] = (
            self._rows.req_to_token[kv.req_pool_idx, : kv.kv_allocated_len].tolist() if kv.holds_kv else []
        )
        return held

    def avail(self) -> int:
        return int(self._allocator.available_size() + self._tree.evictable_size())

    def free_slots(self) -> Iterable[int] | None:
        return slots_of(self._allocator.get_all_free_pages().tolist(), self.block_size)

    def _item(self, req: Any, start: int, n: int, slots: list[int], fed: list[int], samples: bool) -> Item:
        """The tokens that it feeds are unknown from the one on that it waits for itself."""
        marks = self._scheduler.model_worker.marks
        tokens = list(itertools.takewhile(lambda token: marks.get(token) is not req, fed))
        return Item(rid_of(req), start, n, slots, tokens, samples)


def rid_of(req: Any) -> str:
    return str(req.rid).removesuffix(";")


make = SGLangScheduler
make_overlap = partial(SGLangScheduler, overlap=True)
make_priority = partial(SGLangScheduler, priority=True)
make_overlap_priority = partial(SGLangScheduler, overlap=True, priority=True)
make_lpm = partial(SGLangScheduler, policy="lpm")
make_radix = partial(SGLangScheduler, core=None)
make_plain_ids = partial(SGLangScheduler, id_end="")
make_mixed = partial(SGLangScheduler, mixed=True, estimate=DEFAULT_ESTIMATE, conservativeness=LOWEST_RATIO)
make_interval = partial(SGLangScheduler, interval=4, estimate=DEFAULT_ESTIMATE, conservativeness=LOWEST_RATIO)
make_mixed_repaired = partial(SGLangScheduler, mixed=True, kind=RepairedScheduler)
make_overlap_mixed_repaired = partial(SGLangScheduler, overlap=True, mixed=True, kind=RepairedScheduler)
