"""A state of a kv_scheduler with groups as a picture: the blocks of each pool, and a lane of slots for each group."""

from __future__ import annotations

from kvlockstep.models.core.picture import Picture, Table, numbers
from kvlockstep.models.kv_scheduler.groups.judge import GroupedSchedulerJudge
from kvlockstep.models.kv_scheduler.picture import job_text, queues_and_flights
from kvlockstep.models.requests.groups.picture import cells, counters, lanes
from kvlockstep.models.requests.picture import key_text


def picture_of_groups(judge: GroupedSchedulerJudge) -> Picture:
    """Blocks by pool, the requests, a lane of slots for each group, queues, batches in flight, counters of pools."""
    rows = tuple(
        (name, numbers(job.request.tokens), job_text(job), key_text(job.request.extra_key))
        for name, job in judge.live.items()
    )
    tables = (
        Table("requests", ("request", "tokens", "phase", "key"), rows),
        *lanes(judge, judge.adapter, {name: job.request for name, job in judge.live.items()}),
        *queues_and_flights(judge),
        counters(judge, {"avail": judge.groups.avail}),
    )
    return Picture("block", cells(judge, judge.adapter, list(judge.live)), tables)
