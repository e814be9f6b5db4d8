"""vLLM's hybrid schedulers (0.33.0) beside another instance: windows and states go from prefill to decode, too.

The connector is that of peer.py, for all groups at once (`SupportsHMA`). When a request has ended by itself,
`request_finished_all_groups` names its blocks, without those that its windows have left. It sends of each group the
full blocks that the next token would read, as NixlConnector does: a window is clipped to its tail, of a state goes the
one behind all tokens. What it finds in the tier is what a hit needs of each group behind the hit of all groups in the
pool. A load that fails is reported by the name of its request (`failed_recving`), since a block number says no group.

Source: vllm/distributed/kv_transfer/kv_connector/v1/nixl/base_scheduler.py, beside those of peer.py and hybrid.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from kvlockstep.impl.engines.vllm import modules as vllm
from kvlockstep.impl.engines.vllm.hybrid_scheduler import FULL, STATE, WINDOW, WINDOWS
from kvlockstep.impl.engines.vllm.transfers.connector import TIER, Job
from kvlockstep.impl.engines.vllm.transfers.hybrid import HybridConnected
from kvlockstep.impl.engines.vllm.transfers.peer import UNITS_PER_BLOCK, PeerConnector, PeerScheduler
from kvlockstep.reference.kv_manager.groups.contract import Group, needed, owed

# The group, and the hash of all tokens up to the end of the block.
Key = tuple[int, Any]


class HybridPeerConnector(PeerConnector, vllm.connector.SupportsHMA):  # type: ignore[misc]
    """A connector for `groups`; a hash has `hash_size` tokens, a hit ends where every group ends a block."""

    def __init__(
        self, units: int, groups: tuple[Group, ...], hash_size: int, wide: int, inside: bool, short: bool, config: Any
    ) -> None:
        super().__init__(units, wide, config)
        self._groups, self._hash_size, self._inside, self._short = groups, hash_size, inside, short
        self._wanted: dict[str, list[tuple[Key, int, int]]] = {}

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        return tuple(range(len(self._groups)))

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        most = request.num_tokens - (self._short or request.num_tokens == 1)
        for cached in range(most // self._block_size * self._block_size, num_computed_tokens, -self._block_size):
            wanted = list(self.to_load(request.block_hashes, cached, num_computed_tokens))
            if all(self.tier.find(key) is not None for key, _, _ in wanted):
                self._wanted[request.request_id] = wanted
                return cached - num_computed_tokens, not self._inside
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if not num_external_tokens:
            return
        wanted, tables = self._wanted.pop(request.request_id), blocks.get_block_ids()
        units = [self.tier.find(key) for key, _, _ in wanted]
        for key, _, _ in wanted:
            self.tier.begin_load(key)
        self._note(
            Job(
                request.request_id,
                True,
                [key for key, _, _ in wanted],
                [unit for unit in units if unit is not None],
                [tables[g][number] for _, g, number in wanted],
                self._inside,
            )
        )

    def request_finished_all_groups(self, request: Any, block_ids: Sequence[Sequence[int]]) -> tuple[bool, None]:
        if request.status in vllm.ENDED_BY_ITSELF:
            self._store_as(request.request_id, list(self._to_send(request, block_ids)))
        self._wanted.pop(request.request_id, None)
        return self._let_go(request.request_id)

    def results(self) -> Any:
        failed = {self._jobs[id].rid for id in self._ended if self._jobs[id].loads and self._jobs[id].failed}
        output = super().results()
        output.invalid_block_ids, output.failed_recving = set(), failed
        return output

    def complete_whole(self, id: Any, ok: bool) -> None:
        """A transfer has ended; if not well, nothing of it counts."""
        self.complete(id, len(self._jobs[id].blocks) if ok else 0)

    def key(self, hashes: Sequence[Any], g: int, number: int) -> Key:
        """The key of a block, from the hashes of its tokens."""
        return g, hashes[(number + 1) * self._groups[g].block_size // self._hash_size - 1]

    def to_load(self, hashes: Sequence[Any], cached: int, first: int) -> Iterator[tuple[Key, int, int]]:
        """What a hit of so many tokens needs behind the `first` ones: key, group and number of each block."""
        for g, group in enumerate(self._groups):
            stop = cached // group.block_size
            start = stop - 1 if group.kind == "state" else needed(group, cached, cached).start // group.block_size
            for number in range(max(start, first // group.block_size), stop):
                yield self.key(hashes, g, number), g, number

    def _to_send(self, request: Any, block_ids: Sequence[Sequence[int]]) -> Iterator[tuple[Key, int]]:
        computed = request.num_computed_tokens - request.num_in_flight_tokens
        for g, group in enumerate(self._groups):
            for number in owed(group, computed):
                yield self.key(request.block_hashes, g, number), block_ids[g][number]


class HybridPeerScheduler(PeerScheduler, HybridConnected):
    """A hybrid scheduler with a HybridPeerConnector. Nothing can fail that is loaded `inside` the batch.

    A state that is loaded inside is counted here, which the engine forgets: see vllm-loaded-state-uncounted.
    If `short`, the last token of a prompt is not loaded, since it is computed again: see vllm-full-load-behind-window.
    """

    partial_loads = False
    _connector: HybridPeerConnector

    def __init__(
        self,
        blocks: int,
        block_size: int,
        budget: int,
        running: int,
        inside: bool = False,
        short: bool = True,
        **options: Any,
    ) -> None:
        self._short = short
        if inside:
            self.fails, self.loses = "stores", False
        super().__init__(blocks, block_size, budget, running, inside=inside, **options)
        self.tiers = {TIER: UNITS_PER_BLOCK * self._units}
        for g in self._states if inside else ():
            manager = self._scheduler.kv_cache_manager.coordinator.single_type_managers[g]
            manager.get_num_blocks_to_allocate = counting_loads(manager)

    def connect(self, config: Any) -> HybridPeerConnector:
        _, wide, hash_size = self._caches(self.blocks, self.block_size)
        units, inside = UNITS_PER_BLOCK * self._units, self._stand[0]
        self._connector = HybridPeerConnector(
            units, self.groups, hash_size, wide, inside, self._short, config.kv_transfer_config
        )
        return self._connector

    def complete(self, id: Any, ok: bool) -> None:  # type: ignore[override]
        self._connector.complete_whole(id, ok)

    def offer(self, tokens: list[int], extra_key: int | None) -> Sequence[Sequence[int | None]]:  # type: ignore[override]
        hashes = vllm.make_request("offered", tokens, self._hasher, extra_key, False).block_hashes
        connector, wide = self._connector, self._wide
        taken = {(g, n): key for key, g, n in connector.to_load(hashes, len(tokens) // wide * wide, 0)}
        return [
            [
                connector.tier.receive(taken[g, n]) if (g, n) in taken else None
                for n in range(len(tokens) // group.block_size)
            ]
            for g, group in enumerate(self.groups)
        ]


def counting_loads(manager: Any) -> Any:
    """The manager's count of the blocks of a state, with one more for a state that is loaded in front of the batch."""
    count = manager.get_num_blocks_to_allocate

    def counted(rid: str, tokens: int, hit: Sequence[Any], total: int, local: int, *given: Any, **named: Any) -> int:
        return int(count(rid, tokens, hit, total, local, *given, **named)) + (total > local)

    return counted


make_window = partial(HybridPeerScheduler, groups=WINDOW)
make_windows = partial(HybridPeerScheduler, groups=WINDOWS)
make_state = partial(HybridPeerScheduler, groups=(FULL, STATE))
make_state_window = partial(HybridPeerScheduler, groups=(*WINDOW, STATE))
make_window_failing = partial(HybridPeerScheduler, groups=WINDOW, policy_on_failure="fail")
make_state_failing = partial(HybridPeerScheduler, groups=(FULL, STATE), policy_on_failure="fail")
make_async_window = partial(HybridPeerScheduler, groups=WINDOW, asynchronous=True)
make_async_state = partial(HybridPeerScheduler, groups=(FULL, STATE), asynchronous=True)
make_window_inside = partial(HybridPeerScheduler, groups=WINDOW, inside=True)
# One block for the state that it hits in the pool, one for the state that is loaded behind it.
make_state_inside = partial(HybridPeerScheduler, groups=(FULL, STATE), inside=True, spare=2)
make_window_full = partial(HybridPeerScheduler, groups=WINDOW, short=False)
make_window_in_place = partial(HybridPeerScheduler, groups=WINDOW, requeued=False)
