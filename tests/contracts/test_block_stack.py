"""The block_stack on torch: in lockstep with the reference, without waiting for the device; and its laws bite."""

from __future__ import annotations

import gc

import pytest
import torch
from driving import explore, walk
from hypothesis import given
from hypothesis import strategies as st
from watched import watched

from kvlockstep.impl.block_stack import BlockStack
from kvlockstep.models.block_stack import BlockStackModel
from kvlockstep.reference.block_stack import BlockStack as Reference
from kvlockstep.reference.errors import CaptureActive, InvalidArgument, NotHeld, OutOfSlots, UnknownSlot


def test_agrees_with_the_reference(device):
    steps = 5_000 if device == "cpu" else 2_000
    outcome = walk(BlockStackModel, lambda blocks: BlockStack(blocks, device), steps, seed=3)
    assert outcome.failure is None
    assert not [goal.id for goal in BlockStackModel.goals if not outcome.reach[goal.id]]


@pytest.mark.parametrize("scope", BlockStackModel.small_scopes, ids=lambda scope: f"{scope.blocks} blocks")
def test_agrees_with_the_reference_in_every_state(scope):
    outcome = watched(explore, BlockStackModel, BlockStack, scope)
    assert outcome.failure is None
    assert outcome.exhausted
    # A state is an order of some of the blocks, in a capture or not.
    assert outcome.states == 2 * [1, 2, 5, 16, 65][scope.blocks]


@given(st.permutations(range(9)), st.booleans())
def test_blocks_come_back_in_the_order_of_their_release(order, as_tensor):
    stack = BlockStack(9)
    assert stack.acquire(9).tolist() == list(range(9))
    assert stack.num_free == 0
    stack.release(torch.tensor(order) if as_tensor else order)
    assert stack.free_blocks().tolist() == list(order)
    assert [stack.acquire(1).item() for _ in range(9)] == list(order)[::-1]


def test_is_an_int32_tensor_on_its_device(device):
    stack = BlockStack(5, device)
    taken = stack.acquire(3)
    assert (taken.dtype, taken.device.type, taken.tolist()) == (torch.int32, device, [2, 3, 4])
    address = stack.stack.data_ptr()
    stack.release(taken)
    assert stack.stack.data_ptr() == address
    assert stack.free_blocks().tolist() == [0, 1, 2, 3, 4]


@pytest.fixture
def no_reading(monkeypatch):
    """Reading a tensor back fails the test: on a device it would wait."""

    def refuse(*_):
        raise AssertionError("a tensor was read back")

    for name in ("tolist", "item", "cpu", "numpy", "__int__", "__bool__", "__index__", "__iter__"):
        monkeypatch.setattr(torch.Tensor, name, refuse)


def test_nothing_is_read_back(no_reading):
    stack = BlockStack(8)
    first, second = stack.acquire(3), stack.acquire(2)
    stack.release(first)
    stack.release([3])
    assert stack.num_free == 7
    with pytest.raises(NotHeld):
        stack.release(first)
    with pytest.raises(NotHeld):
        stack.release(second)
    with pytest.raises(OutOfSlots):
        stack.acquire(8)


def test_a_slice_is_read_back(no_reading):
    stack = BlockStack(8)
    with pytest.raises(AssertionError, match="read back"):
        stack.release(stack.acquire(3)[:1])


def test_the_device_is_never_waited_for():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    stack = BlockStack(64, "cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for n in (1, 5, 64):
            taken = stack.acquire(n)
            stack.release(taken)
            held = stack.acquire(2)
            stack.release([62, 63])
            with pytest.raises(NotHeld):
                stack.release(held)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sorted(stack.free_blocks().tolist()) == list(range(64))


def test_a_tensor_that_was_written_to_is_taken_as_it_is():
    stack = BlockStack(4)
    taken = stack.acquire(2)
    taken[0] = 0
    with pytest.raises(NotHeld, match="block 0"):
        stack.release(taken)
    taken[0] = 3
    with pytest.raises(NotHeld, match="block 3"):
        stack.release(taken)
    taken[1] = 2
    stack.release(taken)
    assert stack.free_blocks().tolist() == [0, 1, 3, 2]


def test_a_later_tensor_is_not_taken_for_one_that_is_gone():
    stack = BlockStack(64)
    for n in (2, 3, 2, 3) * 2:
        taken = stack.acquire(n)
        stack.release(taken)
        del taken
        gc.collect()
    assert not stack._issued
    assert stack.free_blocks().tolist() == list(range(64))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_works_without_version_counters(mode):
    with mode():
        stack = BlockStack(4)
        taken = stack.acquire(2)
        taken.copy_(taken.flip(0))
        stack.release(taken)
    assert stack.free_blocks().tolist() == [0, 1, 3, 2]


def test_may_be_made_in_inference_mode_and_used_outside():
    with torch.inference_mode():
        stack = BlockStack(4)
        taken = stack.acquire(2)
    stack.release(taken)
    stack.release(stack.acquire(4)[[3, 2, 1, 0]])
    assert stack.free_blocks().tolist() == [3, 2, 1, 0]


def test_errors_name_the_argument_and_the_state():
    with pytest.raises(InvalidArgument, match="blocks=-1"):
        BlockStack(-1)
    stack = BlockStack(3)
    with pytest.raises(InvalidArgument, match="n=-1"):
        stack.acquire(-1)
    with pytest.raises(OutOfSlots, match="n=4, but only 3 of 3"):
        stack.acquire(4)
    with pytest.raises(UnknownSlot, match="block 3"):
        stack.release([3])
    with pytest.raises(InvalidArgument, match="no capture"):
        stack.end_capture()
    stack.begin_capture()
    for operation in (lambda: stack.acquire(0), lambda: stack.release([]), stack.begin_capture):
        with pytest.raises(CaptureActive):
            operation()
    assert stack.free_blocks().tolist() == [0, 1, 2]


class DoubleRelease(Reference):
    def release(self, blocks):
        self._between_captures("release")
        self._stack.extend(blocks)


class SharesTop(Reference):
    def acquire(self, n):
        taken = super().acquire(n)
        return [*taken[:-1], taken[0]] if n > 1 else taken


class NegativeAcquire(Reference):
    def acquire(self, n):
        if n < 0:
            self._between_captures("acquire")
            return []
        return super().acquire(n)


class LosesABlock(Reference):
    def release(self, blocks):
        super().release(blocks)
        if len(blocks) > 1:
            self._stack[-1] = self._stack[-2]


class Queue(Reference):
    def release(self, blocks):
        super().release(blocks)
        if not self._capturing:
            self._stack = [
                *self._stack[len(self._stack) - len(blocks) :],
                *self._stack[: len(self._stack) - len(blocks)],
            ]


class ReleasesPart(Reference):
    def release(self, blocks):
        self._between_captures("release")
        for block in blocks:
            super().release([block])


class OffByOne(Reference):
    def acquire(self, n):
        if n and n == len(self._stack):
            self._between_captures("acquire")
            raise OutOfSlots
        return super().acquire(n)


class IgnoresCapture(Reference):
    def _between_captures(self, operation):
        if operation == "begin_capture":
            super()._between_captures(operation)


class WrongError(Reference):
    def end_capture(self):
        if self._capturing:
            super().end_capture()
            return
        raise UnknownSlot


FAULTS = {
    "no_double_free": DoubleRelease,
    "no_aliasing": SharesTop,
    "accounting": NegativeAcquire,
    "conservation": LosesABlock,
    "structure": Queue,
    "atomicity": ReleasesPart,
    "admission_honesty": OffByOne,
    "graph_contract": IgnoresCapture,
    "agreement": WrongError,
}


@pytest.mark.parametrize("law", FAULTS)
def test_each_law_catches_a_fault(law):
    outcome = walk(BlockStackModel, FAULTS[law], 20_000)
    assert outcome.failure is not None
    assert outcome.failure.law == law


def test_every_law_has_a_fault():
    assert {law.id for law in BlockStackModel.own_laws} <= FAULTS.keys()
