"""kv_scheduler on vLLM's v1 Scheduler and AsyncScheduler (0.33.0), fcfs and priority, on CPU.

The calls are those of EngineCore.step: `schedule`, the forward, aborts that came in meanwhile, `update_from_output`;
the asynchronous scheduler has a second batch in flight. What the worker knows of a block table it learns from
SchedulerOutput alone, as the model runner does: tables of new and resumed requests replace, others are appended to.
Source: vllm/v1/engine/core.py, step and step_with_batch_queue; vllm/v1/worker/gpu/model_runner.py, update_requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from kvlockstep.impl.engines.vllm import modules as vllm
from kvlockstep.impl.engines.vllm.events import POOL, received
from kvlockstep.impl.slots import slots_of
from kvlockstep.reference.kv_manager.events import Event
from kvlockstep.reference.kv_scheduler.contract import END_TOKEN, NO_DRAFTS, Batch, Item


class VllmScheduler:
    """One scheduler. `runner_v2`: resumed requests come as new ones, as the engine's default model runner has it.

    `long_prefill` sets `long_prefill_token_threshold`, so that a long prompt leaves budget to others. With `drafts`
    tokens are speculated, with n-grams or, if `eagle`, with a drafter that has KV of its own and needs slots for it.
    That KV depends on the token behind as well: the last block of a hit is dropped, or a hash covers the token `ahead`.

    The longest request is the whole pool, as the engine demands at its start.

    The engine publishes its events with the result of a batch. Here they are asked for as soon as they are there, since
    a batch hits what was stored in front of it. A `listener` can predict every hit unless there is an EAGLE head, with
    which the last block of a hit is computed again.
    """

    engine = "vllm"
    version = vllm.ENGINE.version
    extra_key = can_reset = True
    # The media whose events are received, with their names here.
    _media = POOL

    def __init__(
        self,
        blocks: int,
        block_size: int,
        budget: int,
        running: int,
        policy: str = "fcfs",
        asynchronous: bool = False,
        runner_v2: bool = True,
        caching: bool = True,
        long_prefill: bool = False,
        drafts: int = 0,
        eagle: bool = False,
        ahead: int = 0,
        listener: str | None = "counting",
    ) -> None:
        self.block_size = block_size
        self.total = blocks * block_size
        self.policy: str | None = policy
        self.overlap = 2 if asynchronous else 1
        self.prefix_cache = caching
        self.event_listener = listener if caching and not eagle else None
        threshold = block_size + 1 if long_prefill else 0
        config = _config(blocks, self.total, budget, running, policy, asynchronous, runner_v2, caching, threshold)
        self.drafts = drafts
        if drafts:
            _speculate(config, drafts, eagle, ahead)
        config.kv_events_config.enable_kv_cache_events = self.event_listener is not None
        self._configure(config)
        kind = vllm.async_scheduler.AsyncScheduler if asynchronous else vllm.scheduler.Scheduler
        grammar = SimpleNamespace(
            accept_tokens=lambda _request, _tokens: True, validate_tokens=lambda _request, tokens: tokens
        )
        caches, steps, hash_size = self._caches(blocks, block_size)
        self._scheduler = kind(config, caches, grammar, steps, hash_size)
        self._published: list[Any] = []
        self._scheduler.kv_event_publisher = SimpleNamespace(publish=lambda batch: self._published.extend(batch.events))
        self._pool = self._scheduler.kv_cache_manager.block_pool
        self._hasher = vllm.block_hasher(hash_size, ahead) if caching else None
        self._added = 0
        self._tables: dict[str, list[int]] = {}
        self._launched: deque[tuple[Any, dict[str, list[int]]]] = deque()
        self._guesses: dict[str, list[int]] = {}

    def add(self, rid: str, tokens: list[int], extra_key: int | None, max_tokens: int, priority: int) -> None:
        self._added += 1
        request = vllm.make_request(
            rid, tokens, self._hasher, extra_key, False, max_tokens, priority, float(self._added), END_TOKEN
        )
        self._mark(request)
        self._scheduler.add_request(request)

    def schedule(self, accepted: Sequence[Mapping[str, int]] = ()) -> Batch:
        rejected = self._rejections(accepted)
        output = self._decide()
        self._tell_worker(output)
        scheduled = output.num_scheduled_tokens
        fed = {new.req_id: new.prefill_token_ids or new.prompt_token_ids for new in output.scheduled_new_reqs}
        items = [self._item(output, rid, fed.get(rid), rejected.get(rid, 0)) for rid in scheduled]
        self._launched.append((output, self._drafts_of(output)))
        preempted = (output.preempted_req_ids & self._scheduler.requests.keys()) - scheduled.keys()
        return Batch(items, sorted(preempted), self._block_copies(output))

    def draft(self, rid: str, tokens: list[int]) -> None:
        if self.overlap > 1:
            self._guesses[rid] = tokens
        else:
            self._scheduler.update_draft_token_ids(vllm.outputs.DraftTokenIds([rid], [tokens]))

    def update(self, sampled: Mapping[str, int], accepted: Mapping[str, int] = NO_DRAFTS) -> Collection[str]:
        output, drafts = self._launched.popleft()
        rids = list(output.num_scheduled_tokens)
        right = {rid: drafts[rid][:n] for rid, n in accepted.items()}
        tokens = [[*right.get(rid, []), sampled[rid]] if rid in sampled else [] for rid in rids]
        return self._take_in(
            output, vllm.outputs.ModelRunnerOutput(rids, {rid: i for i, rid in enumerate(rids)}, tokens)
        )

    def abort(self, rid: str) -> None:
        self._scheduler.finish_requests(rid, vllm.ABORTED)

    def reset(self) -> None:
        self._scheduler.reset_prefix_cache(reset_running_requests=True)

    def events(self) -> list[Event]:
        published, self._published = self._published, []
        return received([*published, *self._unpublished()], self._media)

    def queues(self) -> Mapping[str, Sequence[str]]:
        names = ("running", "waiting", "kv_holding_waiting")
        return {name: [request.request_id for request in getattr(self._scheduler, name)] for name in names}

    def slots(self, rid: str) -> list[int]:
        return self._slots(self._scheduler.kv_cache_manager.get_block_ids(rid)[0])

    def avail(self) -> int:
        return int(self._pool.get_num_free_blocks()) * self.block_size

    def free_slots(self) -> Iterable[int] | None:
        queue = self._pool.free_block_queue.get_all_free_blocks()
        return self._slots([block.block_id for block in queue if block.block_hash is None])

    def _mark(self, request: Any) -> None:
        """Gives a request what it brings with it, before the scheduler has it."""

    def _unpublished(self) -> list[Any]:
        """Takes the events that would be published with the result of the next batch."""
        return list(self._scheduler.kv_cache_manager.take_events())

    def _configure(self, config: Any) -> None:
        """Changes the configuration of the scheduler before there is one."""

    def _caches(self, blocks: int, block_size: int) -> tuple[Any, int, int]:
        """The description of the KV cache, and how many tokens a block of the scheduler and a hash have."""
        return vllm.cache_config(blocks, block_size), block_size, block_size

    def _decide(self) -> Any:
        return self._scheduler.schedule()

    def _take_in(self, output: Any, ran: Any) -> list[str]:
        """Gives the scheduler what a batch has brought; returns the requests that have ended by it."""
        answers = self._scheduler.update_from_output(output, ran).values()
        return [out.request_id for answer in answers for out in answer.outputs if out.finish_reason is not None]

    def _block_copies(self, output: Any) -> list[tuple[int, int]]:
        """The copies that the worker makes before the batch."""
        size = self.block_size
        return [
            (copy.src_block_id * size + i, copy.dst_block_id * size + i)
            for copy in output.kv_cache_block_copies or ()
            for i in range(size)
        ]

    def _tell_worker(self, output: Any) -> None:
        for rid in output.finished_req_ids | output.preempted_req_ids:
            self._tables.pop(rid, None)
        for new in output.scheduled_new_reqs:
            self._tables[new.req_id] = list(new.block_ids[0])
        cached = output.scheduled_cached_reqs
        for rid, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if rid in cached.resumed_req_ids:
                self._tables[rid] = list(blocks[0])
            elif blocks is not None:
                self._tables[rid] += blocks[0]

    def _rejections(self, accepted: Sequence[Mapping[str, int]]) -> dict[str, int]:
        """Drafts in flight that the device has rejected; its runner takes them off `num_computed_tokens` there."""
        rejected: dict[str, int] = {}
        for (output, _), right in zip(self._launched, accepted, strict=bool(accepted)):
            for rid, drafts in output.scheduled_spec_decode_tokens.items():
                rejected[rid] = rejected.get(rid, 0) + len(drafts) - right.get(rid, 0)
        return rejected

    def _drafts_of(self, output: Any) -> dict[str, list[int]]:
        """The drafts that a batch feeds. An asynchronous scheduler names placeholders; the runner has the ids."""
        drafts = output.scheduled_spec_decode_tokens
        return {rid: self._guesses.pop(rid, []) for rid in drafts} if self.overlap > 1 else drafts

    def _item(self, output: Any, rid: str, fed: Sequence[int] | None, rejected: int) -> Item:
        request = self._scheduler.requests[rid]
        n, drafts = output.num_scheduled_tokens[rid], output.scheduled_spec_decode_tokens.get(rid, [])
        start = request.num_computed_tokens - n - rejected
        end = start + n - len(drafts)
        tokens = list((request.all_token_ids if fed is None else fed)[start:end])
        slots = self._worker_slots(rid, start + n)
        named = [] if self.overlap > 1 else drafts
        return Item(rid, start, n, slots, [*tokens, *named], not request.is_prefill_chunk, len(drafts))

    def _worker_slots(self, rid: str, stop: int) -> list[int]:
        """The slots of [0, stop), as the worker knows them."""
        return self._slots(self._tables[rid])[:stop]

    def _slots(self, blocks: Iterable[int]) -> list[int]:
        return slots_of(blocks, self.block_size)


def _config(
    blocks: int,
    longest: int,
    budget: int,
    running: int,
    policy: str,
    asynchronous: bool,
    runner_v2: bool,
    caching: bool,
    threshold: int,
) -> Any:
    """The fields of VllmConfig that the scheduler reads for a text model on one GPU, at their defaults."""
    batches = 2 if asynchronous else 1
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(
            max_num_seqs=running,
            max_num_active_seqs=None,
            max_num_scheduled_tokens=None,
            max_num_batched_tokens=budget,
            long_prefill_token_threshold=threshold,
            long_prefill_token_threshold_adaptive=False,
            enable_chunked_prefill=True,
            scheduler_reserve_full_isl=True,
            prefill_schedule_interval=1,
            watermark=0.0,
            policy=policy,
            async_scheduling=asynchronous,
        ),
        cache_config=SimpleNamespace(
            num_gpu_blocks=blocks + 1,
            enable_prefix_caching=caching,
            enable_mamba_shared_prefix_checkpoint=False,
            mamba_cache_mode="none",
        ),
        model_config=SimpleNamespace(
            max_model_len=longest,
            runner_type="generate",
            uses_mrope=False,
            is_diffusion=False,
            is_encoder_decoder=False,
            supports_multimodal_inputs=False,
            return_sampling_mask=False,
        ),
        parallel_config=SimpleNamespace(
            data_parallel_index=0,
            data_parallel_size=1,
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
        ),
        observability_config=SimpleNamespace(
            per_request_spec_decode_metrics="none",
            kv_cache_metrics=False,
            enable_logging_iteration_details=False,
            enable_mfu_metrics=False,
        ),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=SimpleNamespace(enabled=False),
        lora_config=None,
        kv_events_config=SimpleNamespace(enable_kv_cache_events=False, publisher="null"),
        kv_transfer_config=None,
        ec_transfer_config=None,
        speculative_config=None,
        is_mm_encoder_only=False,
        use_v2_model_runner=runner_v2,
        max_concurrent_batches=batches,
        max_in_flight_tokens=batches * budget,
        num_speculative_tokens=0,
        num_lookahead_tokens=0,
        num_hash_lookahead_tokens=0,
        num_prefill_lookahead_tokens=0,
    )


def _speculate(config: Any, drafts: int, eagle: bool, ahead: int) -> None:
    """Changes the configuration as speculative decoding does (vllm/config/speculative.py)."""
    config.num_speculative_tokens = drafts
    config.num_lookahead_tokens = drafts if eagle else 0
    config.num_prefill_lookahead_tokens = int(eagle)
    config.num_hash_lookahead_tokens = ahead
    config.speculative_config = SimpleNamespace(
        num_speculative_tokens_per_batch_size=None,
        max_num_new_slots_for_drafting=0,
        disable_eagle_block_drop=False,
        use_eagle=lambda: eagle,
        needs_eagle_block_drop=lambda: eagle,
        use_eagle_block_drop=lambda: eagle,
    )


make = VllmScheduler
make_priority = partial(VllmScheduler, policy="priority")
make_async = partial(VllmScheduler, asynchronous=True)
make_async_priority = partial(VllmScheduler, asynchronous=True, policy="priority")
make_v1 = partial(VllmScheduler, runner_v2=False)
make_long = partial(VllmScheduler, long_prefill=True)
make_priority_long = partial(VllmScheduler, policy="priority", long_prefill=True)
make_uncached = partial(VllmScheduler, caching=False)
make_ngram = partial(VllmScheduler, drafts=3)
make_eagle = partial(VllmScheduler, drafts=3, eagle=True)
make_async_ngram = partial(VllmScheduler, drafts=3, asynchronous=True)
make_async_eagle = partial(VllmScheduler, drafts=3, asynchronous=True, eagle=True)
make_async_eagle_ahead = partial(make_async_eagle, ahead=1)
make_async_priority_ngram = partial(VllmScheduler, drafts=3, asynchronous=True, policy="priority")
make_priority_ngram = partial(VllmScheduler, drafts=3, policy="priority")
make_ngram_long = partial(VllmScheduler, drafts=3, long_prefill=True)
