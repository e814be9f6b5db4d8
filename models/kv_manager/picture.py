"""A state of a kv_manager as a picture."""

from __future__ import annotations

from kvlockstep.models.core.picture import Picture, numbers, text
from kvlockstep.models.kv_manager.judge import ManagerJudge
from kvlockstep.models.requests.picture import answer_of, key_text, phase, picture_of_requests, table_text


def picture(judge: ManagerJudge) -> Picture:
    """Slots by request, the requests, the counters."""
    tables = {name: answer_of(judge.tables.entries, name) for name in judge.holding()}
    requests = [
        (r.name, numbers(r.tokens), phase(r), key_text(r.extra_key), table_text(tables[r.name]))
        for r in judge.live.values()
    ]
    requests += [
        (r.name, numbers(r.tokens), "loading", key_text(r.extra_key), table_text(tables[r.name]))
        for r in judge.loading.values()
    ]
    waiting = [(r.name, numbers(r.tokens), "preempted", key_text(r.extra_key), "") for r in judge.preempted.values()]
    counters = (("free_now", text(answer_of(judge.adapter.free_now))),)
    return picture_of_requests(judge, tables, (*requests, *waiting), counters, ())
