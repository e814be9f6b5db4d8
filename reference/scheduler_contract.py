"""What a target of `kv_scheduler` offers: a scheduler together with the KV manager that it drives."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

END_TOKEN = 0
"""A sampled token that ends its request."""

PADDING = -1
"""A draft that stands for none."""

NO_DRAFTS: Mapping[str, int] = MappingProxyType({})
"""What `update` hears of accepted drafts where there are none."""


class Item(NamedTuple):
    """The part of a request that a batch computes: positions [start, start + n).

    `slots` are the physical slots of [0, start + n), as the engine's worker knows them: it reads all of them and
    writes the last n. `tokens` are the ids that it feeds at [start, start + n), as many of them as the scheduler
    knows. `samples`: a token is expected of it. The last `drafts` of the n tokens are guesses: those that were drafted
    for the request, or PADDING, which is never accepted.
    """

    rid: str
    start: int
    n: int
    slots: Sequence[int]
    tokens: Sequence[int]
    samples: bool
    drafts: int = 0


class Batch(NamedTuple):
    """What a scheduler has decided for one forward. `preempted` requests have given up all their slots.

    `copies` are (source, target) slots to be copied before the forward.
    """

    items: Sequence[Item]
    preempted: Sequence[str] = ()
    copies: Sequence[tuple[int, int]] = ()


@runtime_checkable
class KVSchedulerTarget(Protocol):
    """Factory `make(blocks, block_size, budget, running)`: at most `budget` tokens and `running` requests a batch.

    Slots are integers, the block of a slot is slot // block_size; `avail` and `total` count slots. A request ends by
    END_TOKEN or by its `max_tokens`-th sampled token; together with its prompt they fit into the pool.

    `schedule` is called with at most `overlap` - 1 batches in flight, and its batch is launched at once: it writes
    its KV whatever comes after. `update` brings the sampled tokens of the oldest batch, also of requests that ended or
    were aborted meanwhile, and answers those that have ended now. `abort` comes when the trait `aborts` says. `queues`
    names every queue with the requests in it. `slots` are those a request holds now; none if it waits. What has ended
    may hold its slots, and stand in a queue, until its last batch is back. `free_slots` as in kv_manager.

    With `drafts`, `draft(rid, tokens)` offers guesses behind a request's last token, for its next batch, and `update`
    has a second argument, the number of drafts that were right where there were any: the sampled token follows them.
    """

    def add(self, rid: str, tokens: list[int], extra_key: int | None, max_tokens: int, priority: int) -> None: ...
    def schedule(self) -> Batch: ...
    def update(self, sampled: Mapping[str, int]) -> Collection[str]: ...
    def abort(self, rid: str) -> None: ...
    def queues(self) -> Mapping[str, Sequence[str]]: ...
    def slots(self, rid: str) -> list[int]: ...
    def avail(self) -> int: ...
    def free_slots(self) -> Iterable[int] | None: ...


@dataclass(frozen=True)
class SchedulerTraits:
    """What a kv_scheduler target declares of itself; read from attributes of the same names.

    `overlap`: batches that may be in flight. `policy`: "fcfs" or "priority" (the smaller number first) if nobody is
    admitted before an older request that waits, else None. `preempts`: False for a scheduler that never takes slots
    back. `mixes`: False if prompts and decodes never share a batch.
    `max_length`: longest request in tokens, prompt and output, None for the pool. `drafts`: most drafts that a
    request may have in a batch. `aborts`: "any" time; "before_schedule", where a batch might be scheduled next, for
    an engine that reads its messages there; None for one that has no `abort`.
    `can_reset`: it has `reset`, which drops every content; live requests wait anew.
    """

    block_size: int
    total: int
    overlap: int = 1
    policy: str | None = None
    preempts: bool = True
    mixes: bool = True
    prefix_cache: bool = True
    extra_key: bool = False
    can_reset: bool = False
    max_length: int | None = None
    drafts: int = 0
    aborts: str | None = "any"


SCHEDULER_OPTIONAL = {"reset": "can_reset", "abort": "aborts", "draft": "drafts"}
