"""kv_scheduler with transfers on vLLM's v1 Scheduler and AsyncScheduler (0.33.0) with a KV connector.

The scheduler is driven as in scheduler.py. What its worker would do for the connector is done here, in the order of
vllm/v1/worker/gpu/kv_connector.py, ActiveKVConnector: loads that the batch needs start in front of it and are waited
for, all other transfers start behind it, and what has ended is reported with the result of a batch.

A step without a batch is what the engine makes of a paused scheduler (`pause_generation` with mode "keep"): `schedule`
decides nothing, the worker hears of the requests that have ended, and `update_from_output` gets its report.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from types import SimpleNamespace
from typing import Any

from kvlockstep.impl.engines.vllm import modules as vllm
from kvlockstep.impl.engines.vllm.scheduler import VllmScheduler

vllm.scheduler.KVConnectorFactory = SimpleNamespace(
    create_connector=lambda config, role, kv_cache_config: config.kv_transfer_config.connector
)


class ConnectedScheduler(VllmScheduler):
    """A scheduler with a connector. `policy_on_failure` is `kv_load_failure_policy`, other options are the base's."""

    late_release = in_steps = silent_tiers = True
    # `kv_holding_waiting` is emptied before `waiting`.
    loaded_first = True

    def __init__(
        self,
        blocks: int,
        block_size: int,
        budget: int,
        running: int,
        policy_on_failure: str = "recompute",
        **options: Any,
    ) -> None:
        self.blocks, self.block_size = blocks, block_size
        self._policy_on_failure = policy_on_failure
        super().__init__(blocks, block_size, budget, running, **options)
        self.failed_loads = "recompute" if policy_on_failure == "recompute" else "end"
        # With batches that overlap it frees no block that a batch in flight may write.
        self.preempts_in_flight = self.overlap == 1

    def connect(self, config: Any) -> Any:
        """Makes the connector for a configuration, which it may change."""
        raise NotImplementedError

    def results(self, finished: set[str]) -> Any:
        """What the worker reports at the end of a step that named these requests as finished: a KVConnectorOutput."""
        raise NotImplementedError

    def poll(self) -> Collection[str]:
        self._scheduler.set_pause_state(vllm.PAUSED_ALL)
        output = self._decide()
        self._scheduler.set_pause_state(vllm.UNPAUSED)
        self._tell_worker(output)
        return self._take_in(output, vllm.outputs.ModelRunnerOutput([], {}))

    def reset(self) -> None:
        self._scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)

    def slots(self, rid: str) -> list[int]:
        request = self._scheduler.requests.get(rid)
        return [] if request is None or request.is_finished() else super().slots(rid)

    def limbo(self) -> int:
        """Slots that no live request holds, kept for a transfer or for a batch in flight."""
        return len(self._blocks_in_limbo()) * self.block_size

    def _unpublished(self) -> list[Any]:
        return [*super()._unpublished(), *self._events_of_tier()]

    def _events_of_tier(self) -> Iterable[Any]:
        """Takes the events of the connector that would be published behind those of the pool."""
        events: Iterable[Any] = self._scheduler.connector.take_events()
        return events

    def _blocks_in_limbo(self) -> set[int]:
        scheduler = self._scheduler
        tables = {rid: set().union(*scheduler.kv_cache_manager.get_block_ids(rid)) for rid in scheduler.requests}
        held = {block for rid in tables if not scheduler.requests[rid].is_finished() for block in tables[rid]}
        return self._kept().union(*tables.values()) - held - {0}

    def _kept(self) -> set[int]:
        """Blocks that are kept beside those in the tables of requests."""
        return {block.block_id for _, blocks in self._scheduler.deferred_frees for block in blocks}

    def _configure(self, config: Any) -> None:
        super()._configure(config)
        config.kv_transfer_config = SimpleNamespace(
            kv_load_failure_policy=self._policy_on_failure,
            kv_connector_extra_config={},
            engine_id="engine",
            is_kv_producer=True,
            is_kv_consumer=True,
        )
        config.kv_transfer_config.connector = self.connect(config)

    def _take_in(self, output: Any, ran: Any) -> list[str]:
        ran.kv_connector_output = self.results(output.finished_req_ids)
        return super()._take_in(output, ran)
