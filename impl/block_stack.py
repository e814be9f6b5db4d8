"""block_stack on a device: the free list is an int32 tensor, of which the host keeps a mirror and never has to wait.

Blocks that are released as the tensor that acquire returned are known on the host already; any other device tensor is
read back once, which waits for the device.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from kvlockstep.reference.errors import CaptureActive, InvalidArgument, NotHeld, OutOfSlots, UnknownSlot

Blocks = npt.NDArray[np.int32] | npt.NDArray[np.int64]
FEW = 64
RELEASED = -1


class _Issued(NamedTuple):
    """Content of a tensor that acquire returned, valid while its counter is `version`; `alive` ends with the tensor.

    As long as the stack's `generation` is the same, every block of it is held.
    """

    alive: weakref.ref[torch.Tensor]
    version: int
    blocks: Blocks
    generation: int


class BlockStack:
    """`blocks` numbered blocks; the free ones form a stack, with the highest number on top at first. Source: seed 003.

    `stack`, int32 [blocks] on `device`, has the free blocks in its first `top` (int32 [1]) places. Their addresses
    never change, so captured graphs may read them, and pop by `acquire_captured`. Raises InvalidArgument if `blocks`
    is negative.

    A tensor of `acquire` is released once; if nothing else was released block by block since, all of it is held, and
    nothing has to be checked. Any other release is checked block by block and begins a new generation.
    """

    def __init__(self, blocks: int, device: str | torch.device = "cpu") -> None:
        if blocks < 0:
            raise InvalidArgument(f"blocks={blocks}: a stack cannot have a negative size")
        with torch.inference_mode(False):  # an inference tensor could not be written to outside of inference mode
            self.stack = torch.arange(blocks, dtype=torch.int32, device=device)
            self.top = torch.full((1,), blocks, dtype=torch.int32, device=device)
        self._mirror = np.arange(blocks, dtype=np.int32)
        self._top = blocks
        self._held = bytearray(blocks)
        self._flags = np.frombuffer(self._held, np.bool_)
        self._generation = 0
        self._issued: dict[int, _Issued] = {}
        self._capturing = False
        self._ahead = False

    @property
    def num_free(self) -> int:
        """Number of free blocks, from the host's mirror; waits for the device only after a replay."""
        self._catch_up()
        return self._top

    def acquire(self, n: int) -> torch.Tensor:
        """Takes the `n` topmost blocks: int32 [n] on the device, in stack order (the former top comes last).

        Raises CaptureActive during a capture, InvalidArgument if `n` is negative, OutOfSlots if fewer are free.
        """
        self._between_captures("acquire")
        self._catch_up()
        if n < 0:
            raise InvalidArgument(f"acquire: n={n} is negative")
        top = self._top
        if n > top:
            raise OutOfSlots(f"acquire: n={n}, but only {top} of {len(self._held)} blocks are free")
        taken = self._mirror[top - n : top].copy()
        self._top = top - n
        self._mark(taken, True)
        blocks = self.stack[top - n : top].clone()
        self.top.fill_(top - n)
        self._remember(blocks, taken)
        return blocks

    def release(self, blocks: Sequence[int] | torch.Tensor) -> None:
        """Pushes held blocks back in the order given, all or none.

        Raises CaptureActive during a capture, UnknownSlot for a foreign block, NotHeld for a free or repeated one.
        """
        self._between_captures("release")
        self._catch_up()
        issued = self._issued_as(blocks)
        if issued is not None and issued.generation == self._generation:
            self._issued[id(blocks)] = _Issued(issued.alive, issued.version, issued.blocks, RELEASED)
            returned = issued.blocks
        else:
            numbers = self._on_host(blocks) if issued is None else issued.blocks.tolist()
            self._check_held(numbers)
            returned = np.array(numbers, np.int64)
            self._generation += 1
        self._mark(returned, False)
        top, end = self._top, self._top + len(returned)
        self.stack[top:end] = self._on_device(blocks)
        self._mirror[top:end] = returned
        self._top = end
        self.top.fill_(end)

    def acquire_captured(self, wanted: torch.Tensor, taken: torch.Tensor, status: torch.Tensor) -> None:
        """Takes blocks on the device, wanted[i] for request i, in this order; the one way inside of a graph capture.

        `wanted` int32 [request]; `taken` int32 [request, most] gets the blocks in stack order, then -1; `status` int32
        [request] gets 0 (none wanted), 1 (served) or 2 (refused). From the first request on that does not fit all are
        refused; so is one that wants a negative number or more than `most`, but the others go on. `wanted` is read, and
        the blocks are taken, whenever it runs: after each replay call `replayed`.
        """
        if self.stack.is_cuda:
            from kvlockstep.impl.kernels import acquire  # noqa: PLC0415

            if not (wanted.is_contiguous() and taken.is_contiguous() and status.is_contiguous()):
                raise InvalidArgument("acquire_captured: wanted, taken and status must be contiguous")
            acquire(self.stack, self.top, wanted, taken, status)
        else:
            _acquire_on_cpu(self.stack, self.top, wanted, taken, status)
        self._ahead = True

    def replayed(self) -> None:
        """A graph with `acquire_captured` in it was launched: the mirror is behind until it is needed again."""
        self._ahead = True

    def begin_capture(self) -> None:
        """A graph capture starts. Raises CaptureActive if one is active already."""
        self._between_captures("begin_capture")
        self._catch_up()
        self._capturing = True

    def end_capture(self) -> None:
        """The graph capture is over. Raises InvalidArgument if none is active."""
        if not self._capturing:
            raise InvalidArgument("end_capture: no capture is active")
        self._capturing = self._ahead = False  # what was captured has not run

    def free_blocks(self) -> torch.Tensor:
        """The free blocks, bottom of the stack first, int32 [num_free]: a view, good until the next operation."""
        return self.stack[: self.num_free]

    def _between_captures(self, operation: str) -> None:
        if self._capturing or (self.stack.is_cuda and torch.cuda.is_current_stream_capturing()):
            raise CaptureActive(f"{operation}: a graph capture is active; call it between captures")

    def _catch_up(self) -> None:
        """Takes over what graphs have popped since the mirror was last right."""
        if not self._ahead or self._capturing:
            return
        top = int(self.top.item())
        self._mark(self._mirror[top : self._top], True)
        self._top = top
        self._ahead = False

    def _mark(self, blocks: Blocks, held: bool) -> None:
        if len(blocks) >= FEW:
            self._flags[blocks] = held
            return
        for block in blocks.tolist():
            self._held[block] = held

    def _check_held(self, blocks: list[int]) -> None:
        seen: set[int] = set()
        for block in blocks:
            if not 0 <= block < len(self._held):
                raise UnknownSlot(f"release: block {block} is not one of 0..{len(self._held) - 1}")
            if not self._held[block] or block in seen:
                raise NotHeld(f"release: block {block} is free already or given twice")
            seen.add(block)

    def _remember(self, tensor: torch.Tensor, blocks: Blocks) -> None:
        if tensor.is_inference():
            return  # without a version counter a later write to it would go unnoticed
        key = id(tensor)
        alive = weakref.ref(tensor, lambda _: self._issued.pop(key, None))
        self._issued[key] = _Issued(alive, tensor._version, blocks, self._generation)

    def _issued_as(self, blocks: Sequence[int] | torch.Tensor) -> _Issued | None:
        issued = self._issued.get(id(blocks))
        if issued is None or not isinstance(blocks, torch.Tensor) or issued.version != blocks._version:
            return None
        return issued

    def _on_host(self, blocks: Sequence[int] | torch.Tensor) -> list[int]:
        if not isinstance(blocks, torch.Tensor):
            return [int(block) for block in blocks]
        read: list[int] = blocks.tolist()
        return read

    def _on_device(self, blocks: Sequence[int] | torch.Tensor) -> torch.Tensor:
        if isinstance(blocks, torch.Tensor):
            return blocks
        pinned = torch.tensor(blocks, dtype=torch.int32, pin_memory=self.stack.is_cuda)
        return pinned.to(self.stack.device, non_blocking=True)


def _acquire_on_cpu(
    stack: torch.Tensor, top: torch.Tensor, wanted: torch.Tensor, taken: torch.Tensor, status: torch.Tensor
) -> None:
    """Does the work of the kernel on a CPU: it takes the blocks when it runs, and does nothing else."""
    most = taken.shape[1]
    asked = torch.where((wanted < 0) | (wanted > most), 0, wanted)
    after = asked.cumsum(0)
    served = (after <= top) & (asked > 0)
    nth = torch.arange(most)
    mine = served[:, None] & (nth < asked[:, None])
    place = (top - after)[:, None] + nth
    taken.copy_(torch.where(mine, stack[place.clamp(0, max(len(stack) - 1, 0))] if len(stack) else -1, -1))
    status.copy_(torch.where(served, 1, torch.where(wanted == 0, 0, 2)))
    top -= torch.where(served, asked, 0).sum()
