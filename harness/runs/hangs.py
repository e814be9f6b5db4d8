"""The second look at a call that was cut off: was it the target, or a slow machine, or a first call?"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import NamedTuple

from kvlockstep.core.profiles import Profile
from kvlockstep.core.trace import Trace
from kvlockstep.properties.law import TERMINATION
from kvlockstep.runs.play_trace import play_here, replay_trace
from kvlockstep.runs.supervising import ends_processes, supervises
from kvlockstep.targets.registry import Target

# The time that a first call may take which imports or compiles something, in limits of a step.
PATIENCE = 3


class Retry(NamedTuple):
    """Retry of a driver after a call was cut off: the reason, and True to run in this process."""

    why: str
    in_process: bool = False


def retry_of_hang(target: Target, trace: Trace, profile: Profile) -> Retry | None:
    """The reason to run a driver again whose call was cut off.

    None if no call was cut off, or if it is the target's fault.
    """
    if trace.law != TERMINATION.id:
        return None
    patient = replace(profile, step_seconds=PATIENCE * profile.step_seconds)
    if replay_trace(target, trace, patient) is None:
        if supervises(target) and not ends_processes(trace):
            # Every child is new, and pays for its first call again, until this process has paid for it.
            play_here(target, trace, patient)
        return Retry("did when repeated with more time")
    if not supervises(target) or ends_processes(trace):
        return None
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    # A forked child has none of its parent's threads: what waits for one of them hangs there and nowhere else.
    if threads and play_here(target, trace, profile) is None:
        return Retry(f"did beside the threads of this process: {', '.join(threads)}", in_process=True)
    return None
