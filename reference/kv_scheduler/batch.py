"""Batches: what a scheduler decides for one forward, and the tokens that mean something to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from kvlockstep.reference.kv_manager.groups.contract import Step

END_TOKEN = 0
"""A sampled token that ends its request."""

PAD_DRAFT = -1
"""A draft that stands for none."""

NO_DRAFTS: Mapping[str, int] = MappingProxyType({})
"""The accepted drafts of a batch without drafts, as `update` gets them."""


class Item(NamedTuple):
    """The part of a request that a batch computes: positions [start, start + n).

    `slots` are the physical slots of [0, start + n), as the engine's worker knows them: it reads all of them and
    writes the last n. `tokens` are the ids that it feeds at [start, start + n), as many of them as the scheduler
    knows. `samples`: the item samples a token. The last `drafts` of the n tokens are guesses: the drafts that were
    offered for the request, even if the scheduler does not know their ids, or PAD_DRAFT, which is never accepted.

    With the trait `groups`, `slots` is empty and `groups` has one entry for each: the slots of [0, start + n) in an
    attention group, None where the worker has none (any more), or the `Step` of a state.
    """

    rid: str
    start: int
    n: int
    slots: Sequence[int]
    tokens: Sequence[int]
    samples: bool
    drafts: int = 0
    groups: Sequence[Sequence[int | None] | Step] = ()


class Batch(NamedTuple):
    """Batch that a scheduler has decided for one forward. `preempted` requests have given up all their slots.

    `copies` are (source, target) slots to be copied before the forward; with groups they are blocks, and with several
    pools (pool, source, target).
    """

    items: Sequence[Item]
    preempted: Sequence[str] = ()
    copies: Sequence[tuple[int, int] | tuple[str, int, int]] = ()
