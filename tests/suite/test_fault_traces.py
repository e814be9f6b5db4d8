"""The shortest trace of each fault shows it, and the law named with the fault is one of those that see it.

`kvlockstep score --fault ID --traces tests/data/faults` writes the trace of a fault.
"""

from __future__ import annotations

from statistics import median

import pytest
from places import FAULT_TRACES

from kvlockstep.core.trace import load_trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import run_ops
from kvlockstep.impl.faulty import FAULTS
from kvlockstep.impl.kv_manager.fenced import FencedGroupManager
from kvlockstep.impl.kv_scheduler.checkpointed import CheckpointedStates
from kvlockstep.impl.kv_scheduler.committed import CommittedStates
from kvlockstep.impl.kv_scheduler.fenced_groups import FencedStates, FencedWindow
from kvlockstep.impl.kv_scheduler.flying_states import OverlapStates
from kvlockstep.impl.kv_scheduler.grouped import OverlapWindow
from kvlockstep.impl.kv_scheduler.overlap import OverlapScheduler
from kvlockstep.impl.variants.group_loading import LoadsInside
from kvlockstep.impl.variants.groups import GROUP_VARIANTS
from kvlockstep.impl.variants.scheduler_groups import GROUP_VARIANTS as SCHEDULER_GROUPS
from kvlockstep.models.registry import model_of
from kvlockstep.reference.kv_manager.groups.geometries import StatePool
from kvlockstep.reference.kv_manager.groups.tiered import TieredGroupManager
from kvlockstep.reference.kv_scheduler.grouped import StatePool as StateScheduler
from kvlockstep.reference.kv_scheduler.peered_groups import PeeredGroups, PeeredState, PeeredStates
from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler
from kvlockstep.reference.kv_scheduler.tiered_groups import TieredGroups, TieredPools, TieredStates
from kvlockstep.runs.fault_scores import LONGEST, MEDIAN_LENGTH
from kvlockstep.runs.score import laws_that_see
from kvlockstep.targets import resolve

# The target that is right where a fault is not one over the reference.
GEOMETRIES = {made: f"variant:{name}" for name, made in {**GROUP_VARIANTS, **SCHEDULER_GROUPS}.items()}
OTHERS = {TieredScheduler: "tiered", OverlapScheduler: "overlap", StatePool: "groups", StateScheduler: "groups"}
TIERED_GROUPS = {
    LoadsInside: "variant:waits-for-states",
    FencedGroupManager: "fenced-groups",
    TieredGroupManager: "tiered-groups",
    FencedWindow: "fenced-window",
    FencedStates: "fenced-groups",
    TieredPools: "variant:tiered-pools",
    TieredStates: "tiered-groups",
    StateScheduler: "groups",
    PeeredState: "peered-state",
    PeeredStates: "peered-groups",
    PeeredGroups: "peered-window",
    TieredGroups: "tiered-window",
}
RIGHT = {
    OverlapWindow: "grouped-overlap",
    OverlapStates: "grouped-overlap-state",
    CheckpointedStates: "grouped-checkpoints",
    CommittedStates: "grouped-commits",
    **TIERED_GROUPS,
    **OTHERS,
    **GEOMETRIES,
}


@pytest.fixture(params=FAULTS.values(), ids=lambda fault: f"{fault.contract}-{fault.id}")
def fault(request):
    return request.param


@pytest.fixture
def trace(fault):
    return load_trace(FAULT_TRACES / fault.contract / f"{fault.id}.jsonl", fault.contract)


@pytest.fixture
def target(fault):
    return resolve(fault.contract, f"fault:{fault.id}")


def test_shows_the_fault_and_the_reference_passes_it(fault, trace, target):
    right = next((name for kind, name in RIGHT.items() if issubclass(fault.make, kind)), "reference")
    clean = resolve(fault.contract, right).factory
    with Watchdog(0.5).watching() as watchdog:
        again = run_ops(model_of(fault.contract), target.factory, trace.scope, trace.ops, watchdog)
        assert run_ops(model_of(fault.contract), clean, trace.scope, trace.ops, watchdog) is None
    assert again is not None
    assert again.law == trace.law
    assert len(trace.ops) <= LONGEST
    assert fault.law == again.law or fault.law in laws_that_see(target, trace)


def test_half_of_the_traces_are_short():
    traces = [load_trace(path, path.parent.name) for path in FAULT_TRACES.rglob("*.jsonl")]
    assert median(len(trace.ops) for trace in traces) <= MEDIAN_LENGTH


def test_every_trace_belongs_to_a_fault():
    found = {path.relative_to(FAULT_TRACES).with_suffix("").as_posix() for path in FAULT_TRACES.rglob("*.jsonl")}
    assert found == {f"{fault.contract}/{fault.id}" for fault in FAULTS.values()}
