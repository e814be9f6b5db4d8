"""What a scheduler does although its traits say that it never does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvlockstep.models.kv_scheduler.job import Job
from kvlockstep.reference.kv_scheduler.contract import Batch


def undeclared(traits: Any, live: Mapping[str, Job], batch: Batch) -> dict[str, str]:
    """Returns what a batch does against a trait that is False, by trait. Call it before anything of it counts."""
    found: dict[str, str] = {}
    taken = [name for name in batch.preempted if name in live and not live[name].fresh]
    if taken and not traits.preempts:
        found["preempts"] = f"{taken[0]} is preempted"
    flying = [name for name in taken if live[name].undelivered]
    if flying and not traits.preempts_in_flight:
        found["preempts_in_flight"] = f"{flying[0]} is preempted with a batch in flight"
    if not traits.mixes:
        jobs = {item.rid: live[item.rid] for item in batch.items if item.rid in live}
        # What goes back behind a failed load is computed again, in whatever batch.
        decode = next((name for name, job in jobs.items() if job.decodes and not (job.fresh or job.lost)), None)
        prompt = next((name for name, job in jobs.items() if job.fresh or not job.decodes), None)
        if decode and prompt:
            found["mixes"] = f"a batch has a prompt, of {prompt}, beside a decode, of {decode}"
    return found
