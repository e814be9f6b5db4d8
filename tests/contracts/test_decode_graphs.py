"""Decode graphs: in lockstep with plain lists, on a GPU or as their CPU twin; and what graphs must not do."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from driving import FEW, explore, walk
from watched import watched

from kvlockstep.drivers.hypothesis_machine import machine_for
from kvlockstep.impl.block_stack import BlockStack
from kvlockstep.impl.decode_graphs import DecodeGraphs
from kvlockstep.impl.decode_graphs.captures import begin
from kvlockstep.impl.faulty import faults_of
from kvlockstep.models.decode_graphs import DecodeGraphsModel
from kvlockstep.reference.decode_graphs import DecodeGraphs as Reference
from kvlockstep.reference.decode_graphs.contract import DONE, FULL, REFUSED, DecodeGraphsTarget, StaleGraph
from kvlockstep.reference.errors import CaptureActive, InvalidArgument

BOTH = pytest.mark.parametrize("make", [Reference, DecodeGraphs], ids=["reference", "optimised"])


def test_agrees_with_the_reference_and_reaches_everything(device):
    outcome = walk(DecodeGraphsModel, partial(DecodeGraphs, device=device), 2_500 if device == "cpu" else 5_000)
    assert outcome.failure is None, outcome.failure
    assert not [goal.id for goal in DecodeGraphsModel.goals if not outcome.reach[goal.id]]


@pytest.mark.slow
def test_the_reference_holds_in_every_state_of_a_small_scope():
    outcome = watched(explore, DecodeGraphsModel, Reference, DecodeGraphsModel.small_scopes[1], steps=400_000)
    assert outcome.failure is None
    assert outcome.exhausted
    assert outcome.states > 1000


class TestDecodeGraphsMachine(machine_for(DecodeGraphsModel, DecodeGraphs).TestCase):
    settings = FEW


def test_every_law_names_a_fault():
    assert {law.id for law in DecodeGraphsModel.own_laws} <= {fault.law for fault in faults_of("decode_graphs")}


class FrozenTable(DecodeGraphs):
    """Graphs are bound to a copy of the table."""

    def begin_capture(self, lanes):
        table = self._memory.table
        if self._capture is None:
            self._memory = self._memory._replace(table=table.clone())
        try:
            super().begin_capture(lanes)
        finally:
            self._memory = self._memory._replace(table=table)


class OldPointer(DecodeGraphs):
    """Graphs outlive their table."""

    def widen(self, width):
        graphs = dict(self._graphs)
        super().widen(width)
        self._graphs = graphs


class BehindTheDevice(DecodeGraphs):
    """The mirror is not told of a replay."""

    def replay(self, lanes, rows, stamps):
        super().replay(lanes, rows, stamps)
        self._stack._ahead = False


class OldLanes(DecodeGraphs):
    """The inputs of padded lanes are left as they were."""

    def _numbers(self, numbers):
        new = super()._numbers(numbers)
        padding = [n == self._rows for n in numbers]
        if any(padding) and not all(padding) and len(numbers) <= self._rows:
            old = self._memory.rows[: len(numbers)]
            return torch.where(torch.tensor(padding, device=old.device), old, new)
        return new


@pytest.mark.parametrize("broken", [FrozenTable, OldPointer, BehindTheDevice, OldLanes])
def test_the_same_faults_in_real_graphs_are_caught(broken, device):
    assert walk(DecodeGraphsModel, partial(broken, device=device), 5_000).failure is not None


@BOTH
def test_meets_the_protocol(make):
    assert isinstance(make(2, 2, 4, 2), DecodeGraphsTarget)
    for sizes in ((0, 1, 1, 1), (1, 0, 1, 1), (1, 1, -1, 1), (1, 1, 1, 0)):
        with pytest.raises(InvalidArgument):
            make(*sizes)


@BOTH
def test_a_graph_reads_the_table_of_today(make):
    graphs = make(2, 2, 3, 2)
    graphs.begin_capture(2)
    with pytest.raises(CaptureActive):
        graphs.admit(0, [1])
    graphs.end_capture()
    graphs.admit(1, [1, 2])
    graphs.admit(0, [3, 4])
    graphs.replay(2, [1, 0], [5, 6])
    assert [(status, list(context)) for status, context in graphs.collect()] == [(DONE, [1, 2, 5]), (REFUSED, [3, 4])]
    assert graphs.num_free == 0
    graphs.release(0)
    graphs.replay(2, [1], [7])
    graphs.replay(2, [1], [8])
    assert [(status, list(context)) for status, context in graphs.collect()] == [(FULL, [1, 2, 5, 7])]
    graphs.widen(3)
    with pytest.raises(StaleGraph):
        graphs.replay(2, [1], [8])
    graphs.begin_capture(2)
    graphs.end_capture()
    graphs.replay(2, [1], [8])
    assert list(graphs.collect()[0][1]) == [1, 2, 5, 7, 8]


@pytest.mark.parametrize("free", [0, 3, 256, 300])
def test_a_captured_acquire_never_gives_a_block_twice(free, device):
    stack = BlockStack(300, device)
    stack.acquire(300 - free)
    wanted, status = (torch.zeros(256, dtype=torch.int32, device=device) for _ in range(2))
    taken = torch.zeros(256, 1, dtype=torch.int32, device=device)
    stack.begin_capture()
    capture = begin(partial(stack.acquire_captured, wanted, taken, status), torch.device(device))
    with pytest.raises(CaptureActive):
        stack.acquire(1)
    replay = capture.end()
    stack.end_capture()
    assert stack.num_free == free
    wanted.fill_(1)
    seen: list[int] = []
    for _ in range(2):
        replay()
        stack.replayed()
        seen += [block for block in taken.flatten().tolist() if block >= 0]
        assert (status == 1).sum() + (status == 2).sum() == 256
    assert len(seen) == len(set(seen)) == min(free, 512)
    assert stack.num_free == free - len(seen)
    stack.release(seen)
    assert sorted(stack.free_blocks().tolist()) == list(range(free))
