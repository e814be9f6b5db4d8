"""A state of a kv_scheduler as a picture."""

from __future__ import annotations

from collections.abc import Mapping

from kvlockstep.models.core.picture import Picture, Table, numbers, text
from kvlockstep.models.kv_scheduler.job import Job
from kvlockstep.models.kv_scheduler.judge import SchedulerJudge
from kvlockstep.models.requests.picture import answer_of, key_text, picture_of_requests, table_text


def picture(judge: SchedulerJudge) -> Picture:
    """Slots by request, the requests, the queues and the batches in flight."""
    tables = {name: answer_of(judge.adapter.slots, name) for name in judge.live}
    requests = [
        (
            name,
            numbers(job.request.tokens),
            job_text(job),
            key_text(job.request.extra_key),
            table_text(tables[name]),
        )
        for name, job in judge.live.items()
    ]
    return picture_of_requests(judge, tables, requests, (), queues_and_flights(judge))


def job_text(job: Job) -> str:
    """How far a request is."""
    return f"{job.request.computed} computed, {job.delivered} delivered" + (", preempted" if job.preempted else "")


def queues_and_flights(judge: SchedulerJudge) -> tuple[Table, ...]:
    """The queues with their requests, and the batches in flight with their tokens."""
    queues = answer_of(judge.adapter.queues)
    waiting = queues.items() if isinstance(queues, Mapping) else [("error", [queues])]
    flights = tuple((str(n), text(flight.sampled)) for n, flight in enumerate(judge.flights))
    return (
        Table("queues", ("queue", "requests"), tuple((str(queue), numbers(rids)) for queue, rids in waiting)),
        Table("batches in flight", ("batch", "tokens sampled in it"), flights),
    )
