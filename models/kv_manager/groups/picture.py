"""A state of a kv_manager with groups as a picture: the blocks of each pool, and a lane of slots for each group."""

from __future__ import annotations

from kvlockstep.models.core.picture import Picture, Table, numbers
from kvlockstep.models.kv_manager.groups.judge import GroupedJudge
from kvlockstep.models.requests.groups.picture import cells, counters, lanes
from kvlockstep.models.requests.picture import key_text, phase


def picture_of_groups(judge: GroupedJudge) -> Picture:
    """Blocks by pool, the requests, a lane of slots for each group, the counters of each pool."""
    requests = [(r.name, numbers(r.tokens), phase(r), key_text(r.extra_key)) for r in judge.live.values()]
    requests += [(r.name, numbers(r.tokens), "preempted", key_text(r.extra_key)) for r in judge.preempted.values()]
    tables = (
        Table("requests", ("request", "tokens", "phase", "key"), tuple(requests)),
        *lanes(judge, judge.adapter, judge.live),
        counters(judge, {"avail": judge.groups.avail, "free_now": judge.groups.free_now}),
    )
    return Picture("block", cells(judge, judge.adapter, list(judge.live)), tables)
