"""kv_scheduler on the Scheduler of SGLang (0.5.23), on CPU: its normal loop, or its overlap loop.

The calls are those of `event_loop_normal`: messages, `get_next_batch_to_run`, `run_batch`, `process_batch_result`;
`event_loop_overlap` processes the batch before. All four are the engine's own, and so is all that they call but the
model worker, what reports, and what serves several ranks. The Scheduler is made without its `__init__`, with the
attributes that are read on the way; one that is missing raises. A sampled token that has not come back is a mark, which
FutureMap relays as it would the token.

The engine ends at once what waits; a running request that is aborted ends with its next token, one between its chunks
before the next batch. A retracted request loses the token in flight and goes to the end of the queue, under fcfs too.
The estimate of a request's output is clipped to `estimate` (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION), as a rule to 0, so
that requests are retracted. Admission asks for a page beyond prompt and estimate: the pool has this page more.
Source: sglang/srt/managers/scheduler.py, schedule_policy.py, schedule_batch.py, overlap_utils.py,
scheduler_components/batch_result_processor.py.
"""

from __future__ import annotations

import importlib
import itertools
import logging
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from kvlockstep.impl.engines.loading import without_the_rest
from kvlockstep.impl.engines.sglang import manager as sglang
from kvlockstep.impl.slots import slots_of
from kvlockstep.reference.kv_scheduler.contract import END_TOKEN, Batch, Item

STUBS = ("aiohttp", "setproctitle", "uvicorn", *sglang.STUBS)
STUBS += ("sglang.srt.disaggregation.encoder", "sglang.srt.utils.hf_transformers_utils")

with (
    without_the_rest(sglang.ENGINE, sglang.BARE, STUBS),
    patch.object(torch, "compile", lambda *function, **_: function[0] if function else lambda function: function),
):
    engine: Any = importlib.import_module("sglang.srt.managers.scheduler")
    relay: Any = importlib.import_module("sglang.srt.managers.overlap_utils")
    policies: Any = importlib.import_module("sglang.srt.managers.schedule_policy")
    sampling: Any = importlib.import_module("sglang.srt.sampling.sampling_params")

logging.getLogger("sglang").setLevel(logging.CRITICAL)

DEFAULT_ESTIMATE = 4096
LOWEST_RATIO = 0.14
SETTINGS: dict[str, Any] = {
    "disagg": {"disaggregation_decode_enable_offload_kvcache": False, "disaggregation_decode_retraction_backup": None},
    "exec": {
        "deterministic": {"enable_deterministic_inference": False},
        "features": {
            "enable_custom_logit_processor": False,
            "enable_return_hidden_states": False,
            "enable_watermark": False,
            "return_hidden_states_mode": None,
        },
        "mamba": {"enable_mamba_extra_buffer_lazy": False},
    },
    "memory": {"enable_flexkv": False, "enable_hisparse": False, "radix_eviction_policy": "lru"},
    "observability": {"enable_metrics": False},
    "parallel": {"attn_dcp_size": 1, "dcp_enabled": False, "pp_size": 1, "pp_max_micro_batch_size": 0},
    "schedule": {
        "prefill_max_requests": None,
        "retraction_policy": "length",
        "schedule_conservativeness": 1.0,
        "schedule_low_priority_values_first": True,
    },
    "serving": {"weight_version": None},
}
OFF = [
    "abort_on_priority_when_disabled",
    "attn_dp_enabled",
    "enable_async_d2h_copy",
    "enable_continuous_input_polling",
    "enable_fpm",
    "enable_hicache_storage",
    "enable_hierarchical_cache",
    "enable_hisparse",
    "enable_lmcache",
    "enable_lora",
    "enable_overlap_mlx",
    "enable_pdmux",
    "enable_unified_cache_external_linker",
    "enable_unified_memory",
    "is_hybrid_swa",
    "require_mlp_sync",
    "_engine_paused",
    "_sched_idled",
]
ABSENT = [
    "chunked_req",
    "decode_offload_manager",
    "dllm_config",
    "draft_worker",
    "dynamic_chunk_sizer",
    "forward_sleep_time",
    "hisparse_coordinator",
    "last_batch",
    "load_snapshot_writer",
    "max_queued_requests",
    "metrics_collector",
    "min_free_slots_delayer",
    "mm_receiver",
    "prefill_delayer",
    "rust_server",
    "scheduler_stage_metrics",
    "scripted_scheduler_hook",
    "truncation_align_size",
    "_confidence_budget_prepare",
    "_pause_started_at",
    "_pending_chunked_abort_req",
]
COUNTERS = [
    "batch_record_ct",
    "forward_ct",
    "max_prefill_bs",
    "priority_scheduling_preemption_threshold",
    "processed_tokens_counter",
    "_prefill_decode_interval_remaining",
]
REPORTS = {"current_scheduler_metrics_enabled": False, "enable_metrics": False, "is_stats_logging_rank": False}


class ModelWorker:
    """Stands for the engine's. `items` are what the last batch asked of it, `marks` the requests of unknown tokens."""

    def __init__(self, rows: Any) -> None:
        self.model_runner = SimpleNamespace(attn_backend=None, prefill_aware_swa=False)
        self.items: list[tuple[Any, int, int, list[int], list[int], bool]] = []
        self.marks: dict[int, Any] = {}
        self._rows = rows
        self._next_mark = itertools.count(-2, -1)

    def forward_batch_generation(self, batch: Any, **_options: Any) -> Any:
        decodes = batch.forward_mode.is_decode()
        counts = [1] * len(batch.reqs) if decodes else batch.extend_lens
        starts = [length - 1 for length in batch.seq_lens.tolist()] if decodes else batch.prefix_lens
        fed, written = iter(batch.input_ids.tolist()), iter(batch.out_cache_loc.tolist())
        self.items = []
        for req, row, start, n in zip(batch.reqs, batch.req_pool_indices.tolist(), starts, counts, strict=True):
            slots = [*self._rows.req_to_token[row, :start].tolist(), *itertools.islice(written, n)]
            samples = decodes or req is not batch.chunked_req
            self.items.append((req, start, n, slots, list(itertools.islice(fed, n)), samples))
        marks = [next(self._next_mark) for _ in batch.reqs]
        self.marks |= dict(zip(marks, batch.reqs, strict=True))
        return engine.GenerationBatchResult(next_token_ids=torch.tensor(marks))


class Options(NamedTuple):
    """Options of the server.

    `overlap`: its overlap loop. `mixed`: mixed chunked prefill. `interval`: decode batches behind each prefill. With
    `priority` the smaller number comes first, and may preempt. `estimate`: the most tokens of output that admission
    counts with; `conservativeness` scales the share of it that running requests are expected to need. `core`: the tree,
    as in SGLangKVManager. `drafts`: the most drafts of a request, and `eagle`: a drafter with layers makes them, so
    that the tree keys pairs of tokens; see drafting.py.
    """

    overlap: bool = False
    mixed: bool = False
    interval: int = 0
    policy: str = "fcfs"
    priority: bool = False
    conservativeness: float = 1.0
    estimate: int = 0
    core: str | None = "rust"
    drafts: int = 0
    eagle: bool = False


def speculates(options: Options) -> str | None:
    """The engine's name of its speculative decoding."""
    return None if not options.drafts else "EAGLE" if options.eagle else "NGRAM"


class Scheduler(engine.Scheduler):  # type: ignore[misc]
    """The engine's Scheduler over `memory`: rows, allocator and tree, with prompts in chunks of `budget`."""

    worker: Callable[..., Any] = ModelWorker

    def __init__(self, memory: tuple[Any, Any, Any], budget: int, running: int, options: Options) -> None:
        self.__dict__.update(dict.fromkeys(OFF, False) | dict.fromkeys(ABSENT) | dict.fromkeys(COUNTERS, 0))
        self.req_to_token_pool, self.token_to_kv_pool_allocator, self.tree_cache = memory
        self.page_size = self.tree_cache.page_size
        self.chunked_prefill_size = budget // self.page_size * self.page_size
        self.max_prefill_tokens = budget
        self.max_running_requests = running
        self.max_req_len = 1 << 30
        self.enable_overlap = self.enable_skip_finishing_decode = options.overlap
        self.is_mixed_chunk = options.mixed
        self.prefill_decode_interval, self.prefill_decode_interval_min_bs = options.interval, 1
        self.is_generation = True
        self.enable_priority_scheduling = self.enable_priority_preemption = options.priority
        self.schedule_low_priority_values_first = True
        self.disaggregation_mode = engine.DisaggregationMode.NULL
        self.spec_algorithm = engine.SpeculativeAlgorithm.from_string(speculates(options))
        self.model_config = SimpleNamespace(
            is_encoder_decoder=False, vocab_size=1 << 31, self_opened_think_start_ids=None
        )
        self.tp_worker = self.model_worker = self.worker(self.req_to_token_pool)
        self._wire_the_rest()
        self.aborted: set[str] = set()
        self.waiting_queue: list[Any] = []
        self.running_batch = engine.ScheduleBatch(reqs=[], batch_is_full=False)
        self.result_queue: deque[Any] = deque()
        self.future_map = relay.FutureMap(torch.device("cpu"), self.spec_algorithm, self.req_to_token_pool)
        self.policy = engine.SchedulePolicy(options.policy, self.tree_cache, False, options.priority, True)
        sglang.configure({"schedule": {"schedule_conservativeness": options.conservativeness}})
        self.new_token_ratio_tracker = engine.NewTokenRatioTracker.from_config()
        self.init_batch_result_processor()

    def _wire_the_rest(self) -> None:
        """Stand-ins for other processes, other ranks, and the device's streams."""
        silent = sglang.Silent()
        self.output_streamer = self.load_publisher = self.profiler_manager = self.kv_events_publisher = silent
        self.metrics_reporter = sglang.Silent(num_generated_tokens=0, forward_ct_decode=0, **REPORTS)
        self.load_inquirer = SimpleNamespace(_get_num_pending_tokens=lambda chunk_deduct: 0, get_loads=None)
        self.grammar_manager = sglang.Silent(grammar_queue=())
        self.dllm_manager = sglang.Silent()
        self.dp_attn_adapter = SimpleNamespace(
            maybe_prepare_mlp_sync_batch=lambda batch, need_sync: batch,
            maybe_convert_decode_to_extend=lambda batch: batch,
        )
        self.ngram_embedding_manager = SimpleNamespace(prepare_for_forward=lambda batch, chunked_req: batch)
        self.forward_stream = self.schedule_stream = self.copy_stream = silent
        self.forward_stream_ctx = self.copy_stream_ctx = nullcontext()
        self.device_module = SimpleNamespace(Event=sglang.Silent)
        self.batch_record_buf = [None, None]
        self.return_health_check_ipcs: deque[Any] = deque()
        self._pause_intervals: deque[Any] = deque()

    def send_abort_output(self, abort_req: Any, req: Any) -> None:
        """Nobody but its user ends a request that fits."""
        if req.rid not in self.aborted:
            reason = abort_req.finished_reason or {"message": "somebody asked for it"}
            raise RuntimeError(f"{req.rid} is aborted: {reason['message']}")

    def _record_step_counters(self, batch: Any, result: Any) -> None:
        """The times of steps are of no use here."""

    def arrive(self, result: Any, i: int, token: int) -> None:
        """The i-th token of a batch comes back, and was in the relay all along."""
        mark = int(result.next_token_ids[i])
        result.next_token_ids[i] = token
        relayed = self.future_map.output_tokens_buf
        relayed[relayed == mark] = token
        del self.model_worker.marks[mark]


class RepairedScheduler(Scheduler):
    """Without sglang-scheduler-starved-chunk: decodes join a batch only where the rest of a prompt still fits."""

    # Pages that the rest of a prompt must find free beside those that it takes.
    beside = 0

    def get_new_batch_prefill(self, running_batch: Any) -> Any:
        def leaves_room(batch: Any) -> bool:
            req, allocator = self.chunked_req, self.token_to_kv_pool_allocator
            rest = 0 if req is None else len(req.full_untruncated_fill_ids) - req.extend_end
            pages = -(-rest // self.page_size) + (0 if req is None else self.beside)
            needed = batch.new_tokens_required_next_decode() + pages * self.page_size
            return bool(allocator.check_decode_capacity(num_tokens=needed, tree_cache=self.tree_cache))

        with patch.object(engine.ScheduleBatch, "check_decode_mem", leaves_room):
            return super().get_new_batch_prefill(running_batch)


class SGLangScheduler:
    """One Scheduler with these `options`. An abort ends all requests whose id begins as it says; `id_end` ends each.

    Under overlap a result that comes before the next batch is processed then; the loop has it wait for that batch.
    """

    engine = "sglang"
    version = sglang.ENGINE.version
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
        sglang.configure(self._settings)
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


sglang.configure(SETTINGS)
engine.get_parallel()._config = engine.get_context().config_bag("parallel")

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
