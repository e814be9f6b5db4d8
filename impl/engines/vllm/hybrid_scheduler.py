"""kv_scheduler with groups on vLLM's own Scheduler and AsyncScheduler (0.33.0), over its hybrid KV cache manager.

The calls are those of the adapter with one group (scheduler.py), the groups those of hybrid.py and states.py. What the
worker knows of each group's table it learns from SchedulerOutput alone. A window slides in the scheduler's table when
slots are allocated; the worker is not told, and its row still names the block, which nothing reads any more.

The state of a request is moved before the forward from the column of its last step to the column of its last token,
which the worker works out by itself: vllm/v1/worker/mamba_utils.py, preprocess_mamba. With drafts: saves/drafts.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from kvlockstep.impl.engines.vllm.hybrid import NULL, cache_config
from kvlockstep.impl.engines.vllm.scheduler import VllmScheduler
from kvlockstep.impl.engines.vllm.states import UNITS, group_spec
from kvlockstep.reference.kv_manager.groups.contract import Group, Step
from kvlockstep.reference.kv_scheduler.contract import Item

FULL = Group("full", 1)
STATE = Group("state", 1, units=UNITS)


class VllmHybridScheduler(VllmScheduler):
    """One scheduler over `groups`, whose block sizes and chunks count in blocks of the factory, and windows in tokens.

    The pool is as small as the engine allows at its start for requests of `blocks` blocks (kv_cache_planning.py,
    _max_memory_usage_bytes_from_groups), and has `spare` blocks more. `retention` is how the cache keeps checkpoints,
    in blocks, as in hybrid.py. With `fine` there are two hashes to a block.
    """

    def __init__(
        self,
        blocks: int,
        block_size: int,
        budget: int,
        running: int,
        groups: tuple[Group, ...],
        retention: int | None = None,
        fine: bool = False,
        spare: int = 0,
        **options: Any,
    ) -> None:
        self.groups = tuple(_sized(group, block_size) for group in groups)
        self._retention = None if retention is None else retention * block_size
        self._fine = fine
        self._columns: dict[tuple[str, int], int] = {}
        self._by_group: dict[str, list[list[int]]] = {}
        self.max_length = blocks * block_size
        self._units = spare
        super().__init__(
            blocks, block_size, budget, running, listener=_listener(self.groups, self._retention, fine), **options
        )
        self.total = self._units * self.groups[0].block_size

    def slots(self, rid: str, group: int = 0) -> list[int | None]:  # type: ignore[override]
        return self._named(self._scheduler.kv_cache_manager.get_block_ids(rid)[group], group)

    def held(self, rid: str, group: int) -> list[int]:
        """The blocks of the table: each has a reference of the request."""
        return [block for block in self._scheduler.kv_cache_manager.get_block_ids(rid)[group] if block != NULL]

    def avail(self) -> int:
        return int(self._pool.get_num_free_blocks())

    def free_slots(self) -> Iterable[int] | None:
        queue = self._pool.free_block_queue.get_all_free_blocks()
        return [block.block_id for block in queue if block.block_hash is None]

    def _configure(self, config: Any) -> None:
        vars(config.cache_config).update(block_size=self._wide, mamba_cache_mode=self._mode)
        for spec in map(self._spec, self.groups):
            self._units += -(-spec.max_memory_usage_bytes(config) // spec.page_size_bytes)
        config.cache_config.num_gpu_blocks = self._units + 1

    def _caches(self, blocks: int, block_size: int) -> tuple[Any, int, int]:
        hash_size = math.gcd(*(group.block_size for group in self.groups))
        caches = cache_config(self._units, [self._spec(group) for group in self.groups], self._retention)
        return caches, self._wide, max(1, hash_size // 2) if self._fine else hash_size

    @property
    def _mode(self) -> str:
        """What the engine derives for its states, which are cached only where prefixes are."""
        return "align" if self._states and self.prefix_cache else "none"

    def _spec(self, group: Group) -> Any:
        """The engine's own description of a group."""
        return group_spec(group, self._mode, self.drafts)

    @property
    def _wide(self) -> int:
        """The tokens of a block of every group."""
        return math.lcm(*(group.block_size for group in self.groups))

    @property
    def _states(self) -> list[int]:
        return [g for g, group in enumerate(self.groups) if group.kind == "state"]

    def _block_copies(self, output: Any) -> list[tuple[int, int]]:
        return [(copy.src_block_id, copy.dst_block_id) for copy in output.kv_cache_block_copies or ()]

    def _tell_worker(self, output: Any) -> None:
        for rid in output.finished_req_ids | output.preempted_req_ids:
            self._forget(rid)
        for new in output.scheduled_new_reqs:
            self._forget(new.req_id)
            self._by_group[new.req_id] = [list(blocks) for blocks in new.block_ids]
        cached = output.scheduled_cached_reqs
        for rid, tables in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if rid in cached.resumed_req_ids:
                self._forget(rid)
                self._by_group[rid] = [list(blocks) for blocks in tables]
            elif tables is not None:
                for table, blocks in zip(self._by_group[rid], tables, strict=True):
                    table += blocks

    def _forget(self, rid: str) -> None:
        self._by_group.pop(rid, None)
        for g in self._states:
            self._columns.pop((rid, g), None)

    def _worker_slots(self, rid: str, stop: int) -> list[int]:
        return []

    def _item(self, output: Any, rid: str, fed: Sequence[int] | None, rejected: int) -> Item:
        item = super()._item(output, rid, fed, rejected)
        stop = item.start + item.n
        tables = [
            self._step(g, item) if g in self._states else self._named(table, g)[:stop]
            for g, table in enumerate(self._by_group[rid])
        ]
        return item._replace(groups=tables)

    def _step(self, g: int, item: Item) -> Step:
        """What the worker does with a state for an item."""
        table, size = self._by_group[item.rid][g], self.groups[g].block_size
        stop = item.start + item.n
        column = self._columns.get((item.rid, g), (item.start - 1) // size)
        last = self._columns[item.rid, g] = -(-stop // size) - 1
        return Step(table[column] if item.start else None, [(stop, table[last])])

    def _named(self, blocks: Sequence[int], g: int) -> list[int | None]:
        size = self.groups[g].block_size
        return [None if block == NULL else block * size + i for block in blocks for i in range(size)]


def _listener(groups: Sequence[Group], retention: int | None, fine: bool) -> str | None:
    """The listener that can predict every hit; none if a group skips blocks, or hits may end within a block."""
    skips = retention is not None or any(group.kind == "state" for group in groups)
    return None if skips or fine or len({group.block_size for group in groups}) > 1 else "counting"


def _sized(group: Group, block_size: int) -> Group:
    """A group with its sizes in tokens."""
    reach = group.reach * block_size if group.kind == "chunked" else group.reach
    return group._replace(block_size=group.block_size * block_size, reach=reach)


WINDOW = FULL, Group("window", 1, reach=3)
WINDOWS = FULL, Group("window", 1, reach=2), Group("window", 1, reach=5)
CHUNKED = FULL, Group("chunked", 1, reach=2)
TWO_SIZES = Group("full", 2), Group("window", 1, reach=5)

make_window = partial(VllmHybridScheduler, groups=WINDOW)
make_windows = partial(VllmHybridScheduler, groups=WINDOWS)
make_chunked = partial(VllmHybridScheduler, groups=CHUNKED)
make_two_sizes = partial(VllmHybridScheduler, groups=TWO_SIZES)
make_sparse = partial(VllmHybridScheduler, groups=WINDOW, retention=0)
make_priority_window = partial(VllmHybridScheduler, groups=WINDOW, policy="priority")
make_async_window = partial(VllmHybridScheduler, groups=WINDOW, asynchronous=True)
make_ngram_window = partial(VllmHybridScheduler, groups=WINDOW, drafts=3)
make_async_ngram_window = partial(VllmHybridScheduler, groups=WINDOW, drafts=3, asynchronous=True)
# The slots of the drafter in both windows, which the engine does not reckon with.
make_eagle_window = partial(VllmHybridScheduler, groups=WINDOWS, drafts=3, eagle=True, spare=6)
make_async_eagle_window = partial(make_eagle_window, asynchronous=True)
make_eagle_window_ahead = partial(make_eagle_window, ahead=1)
make_async_eagle_window_ahead = partial(make_async_eagle_window, ahead=1)
make_eagle_window_least = partial(VllmHybridScheduler, groups=WINDOW, drafts=3, eagle=True)
make_state = partial(VllmHybridScheduler, groups=(FULL, STATE))
make_state_window = partial(VllmHybridScheduler, groups=(*WINDOW, STATE))
make_state_sparse = partial(VllmHybridScheduler, groups=(FULL, STATE), retention=0)
make_state_fine = partial(VllmHybridScheduler, groups=(FULL, STATE), fine=True, spare=2)
make_state_fine_least = partial(VllmHybridScheduler, groups=(FULL, STATE), fine=True)
make_window_alone = partial(VllmHybridScheduler, groups=(Group("window", 1, reach=4),))
make_retained = partial(VllmHybridScheduler, groups=WINDOW, retention=3)
make_state_retained = partial(VllmHybridScheduler, groups=(FULL, STATE), retention=2)
make_async_state_fine = partial(VllmHybridScheduler, groups=(FULL, STATE), fine=True, spare=2, asynchronous=True)
make_async_state = partial(VllmHybridScheduler, groups=(*WINDOW, STATE), asynchronous=True)
