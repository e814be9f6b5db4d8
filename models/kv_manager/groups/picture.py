"""A state of a kv_manager with groups as a picture: the blocks of each pool, and a lane of slots for each group."""

from __future__ import annotations

from kvlockstep.models.core.picture import Picture, Table, numbers
from kvlockstep.models.kv_manager.groups.judge import GroupedJudge
from kvlockstep.models.requests.groups.picture import cells, counters, lanes
from kvlockstep.models.requests.picture import key_text, phase


def picture_of_groups(judge: GroupedJudge) -> Picture:
    """Blocks by pool, the requests, a lane of slots for each group, the counters of each pool."""
    requests = [(r.name, numbers(r.tokens), phase(r), key_text(r.extra_key)) for r in judge.live.values()]
    for said, waiting in (("loading", judge.loading), ("preempted", judge.preempted)):
        requests += [(r.name, numbers(r.tokens), said, key_text(r.extra_key)) for r in waiting.values()]
    tables = (
        Table("requests", ("request", "tokens", "phase", "key"), tuple(requests)),
        *lanes(judge, judge.adapter, {**judge.live, **judge.loading}),
        counters(judge, {"avail": judge.groups.avail, "free_now": judge.groups.free_now}),
    )
    return Picture("block", cells(judge, judge.adapter, judge.holding()), tables)
