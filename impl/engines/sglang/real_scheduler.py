"""SGLang's Scheduler (0.5.23) on CPU, made without its `__init__`, and without model, reports and other ranks.

It has the attributes that are read on the way; one that is missing raises. A sampled token that has not come back is a
mark, which FutureMap relays as it would the token.
Source: sglang/srt/managers/scheduler.py, overlap_utils.py and schedule_policy.py.
"""

from __future__ import annotations

import importlib
import itertools
import logging
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from kvlockstep.impl.engines.sglang import modules
from kvlockstep.impl.engines.sglang.modules import Silent, configure, sglang_alone

STUBS = ("aiohttp", "setproctitle", "uvicorn", *modules.STUBS)
STUBS += ("sglang.srt.disaggregation.encoder", "sglang.srt.utils.hf_transformers_utils")

with sglang_alone(STUBS):
    engine: Any = importlib.import_module("sglang.srt.managers.scheduler")
    relay: Any = importlib.import_module("sglang.srt.managers.overlap_utils")
    policies: Any = importlib.import_module("sglang.srt.managers.schedule_policy")
    sampling: Any = importlib.import_module("sglang.srt.sampling.sampling_params")

logging.getLogger("sglang").setLevel(logging.CRITICAL)

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
        configure({"schedule": {"schedule_conservativeness": options.conservativeness}})
        self.new_token_ratio_tracker = engine.NewTokenRatioTracker.from_config()
        self.init_batch_result_processor()

    def _wire_the_rest(self) -> None:
        """Stand-ins for other processes, other ranks, and the device's streams."""
        silent = Silent()
        self.output_streamer = self.load_publisher = self.profiler_manager = self.kv_events_publisher = silent
        self.metrics_reporter = Silent(num_generated_tokens=0, forward_ct_decode=0, **REPORTS)
        self.load_inquirer = SimpleNamespace(_get_num_pending_tokens=lambda chunk_deduct: 0, get_loads=None)
        self.grammar_manager = Silent(grammar_queue=())
        self.dllm_manager = Silent()
        self.dp_attn_adapter = SimpleNamespace(
            maybe_prepare_mlp_sync_batch=lambda batch, need_sync: batch,
            maybe_convert_decode_to_extend=lambda batch: batch,
        )
        self.ngram_embedding_manager = SimpleNamespace(prepare_for_forward=lambda batch, chunked_req: batch)
        self.forward_stream = self.schedule_stream = self.copy_stream = silent
        self.forward_stream_ctx = self.copy_stream_ctx = nullcontext()
        self.device_module = SimpleNamespace(Event=Silent)
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


configure(SETTINGS)
engine.get_parallel()._config = engine.get_context().config_bag("parallel")
