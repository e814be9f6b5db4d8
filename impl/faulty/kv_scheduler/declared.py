"""Faults of kv_scheduler: traits that say of a scheduler what is not so."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.kv_scheduler.overlap import OverlapScheduler
from kvlockstep.reference.kv_scheduler.scheduler import KVScheduler


@fault("sched-preempts-undeclared", law="as_declared", seen=("shape: wrong declaration",))
class SaysNoPreemption(KVScheduler):
    """A scheduler that preempts is declared as one that does not."""

    preempts = False


@fault("sched-preempts-in-flight", law="as_declared", seen=("vllm#49674",))
class PreemptsInFlight(OverlapScheduler):
    """A scheduler that preempts requests with a batch in flight is declared as one that does not."""

    preempts_in_flight = False


@fault("sched-mixes-undeclared", law="as_declared", seen=("shape: wrong declaration",))
class SaysNoMixing(KVScheduler):
    """A scheduler that puts prompts beside decodes is declared as one that does not."""

    mixes = False
