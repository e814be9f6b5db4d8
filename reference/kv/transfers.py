"""Transfers: whole blocks of KV on their way between the pool and a tier, or between two tiers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple


class Transfer(NamedTuple):
    """Blocks that are copied together: a "store" from the pool to a tier, a "load" back, or a "move" between tiers.

    `pairs` are (source, target), with several pools (pool, source, target). On the side of the pool they are block
    numbers, slot // block_size; on the side of `tier` they are units, from 0 up to the tier's size. A move goes from
    the tier `source` to `tier`, and its pairs are (unit, unit). `id` names the transfer until its end has been heard;
    later it may name another one. `rids` are the requests that a load, or a move, is for.

    Of a kv_scheduler a transfer that is reported right after `schedule` runs behind the batch that `schedule` decided:
    a store reads what the batch has written. One that is `before` runs in front of that batch. `after` names transfers
    that the worker has waited for before it submits this one. One that is `waited` has ended by itself before the call
    returned that submitted it, and the target has heard of that. The copy engine takes any time for all others, and the
    order in which they end is nobody's promise.
    """

    id: Hashable
    kind: Literal["store", "load", "move"]
    tier: str
    pairs: Sequence[tuple[int, int] | tuple[str, int, int]]
    rids: Sequence[str] = ()
    before: bool = False
    after: Sequence[Hashable] = ()
    waited: bool = False
    source: str | None = None


class TierUnits(NamedTuple):
    """The units of one tier, each in one list: `free`, `cached` (a hit may find it) or `storing`.

    The last ones are targets of a store or a move. `pinned` are those of the `cached` that are not evicted now.
    """

    free: Sequence[int]
    cached: Sequence[int]
    storing: Sequence[int]
    pinned: Sequence[int] = ()


@dataclass(frozen=True)
class Fetching:
    """The answer of an admission whose prefix is on its way between tiers: nothing is held, and it is to ask again."""


class Loading(NamedTuple):
    """The answer of an admission that loads: `cached` tokens are computed once its loads have ended well."""

    cached: int
