"""What the adapters of updates of conv states share: a conv state per block, and tokens that leave the rest alone.

A state keeps the inputs of the last tokens, [line, dim, token]. An update shifts it by the tokens that were accepted
and appends the new ones. It is judged as moves of rows within a block: what is appended are the rows that are there.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch

from kvlockstep.impl.engines.row_store import RowCopies
from kvlockstep.impl.interpreted import INTERPRETED
from kvlockstep.reference.kv.shape import KVShape
from kvlockstep.reference.kv_store.shifts import Shifts, shifts_of

NULL = -1
# The interpreter has no bfloat16 constants, which the kernels read beyond a mask.
STATE = torch.float16 if INTERPRETED else torch.bfloat16


class Update(NamedTuple):
    """The update of one state tensor [line, dim, token]: its lines, the tokens accepted of each, the new tokens
    [line, dim, token] and the convolution's weight [dim, width]. Some lines are NULL, with tokens of ones.

    `accepted` is None where nothing is drafted: then the state has width - 1 tokens.
    """

    state: torch.Tensor
    lines: torch.Tensor
    accepted: torch.Tensor | None
    tokens: torch.Tensor
    weight: torch.Tensor


class ConvStates(RowCopies):
    """A store whose blocks are conv states, one for each layer and plane, with a token in each slot."""

    copies = ""
    word = 2

    def __init__(self, blocks: int, block_size: int, host_blocks: int, shape: KVShape, layout: str) -> None:
        super().__init__(blocks, block_size, host_blocks, shape, layout)
        self._calls = 0

    @abstractmethod
    def shift(self, state: torch.Tensor, shifts: Shifts) -> None:
        """Makes the shifts in one state tensor [line, dim, token]."""

    def launch(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        found = self._shifts(sources, targets)
        for rows in self.rows():
            self.shift(rows.view(STATE).view(self._blocks, self.block_size, -1).transpose(1, 2), found)

    def _shifts(self, sources: torch.Tensor, targets: torch.Tensor) -> Shifts:
        """What these pairs of slots are, of one more call."""
        found = shifts_of(list(zip(sources.tolist(), targets.tolist(), strict=True)), self.block_size)
        assert found is not None, "the judge moves rows to the front of their blocks alone"
        self._calls += 1
        return found

    def _length(self, shifts: Shifts, widest: int) -> int:
        """The tokens of a state, up to `widest`, out of which some of these shifts move all that they keep."""
        fitting = sorted({shifts.rows + by for by in shifts.by.values() if shifts.rows + by <= widest})
        return fitting[self._calls % len(fitting)] if fitting else max(shifts.rows, 1)


class ShiftedStates(ConvStates):
    """Conv states that are shifted by updates."""

    shifts = 4

    @abstractmethod
    def update(self, update: Update) -> None:
        """Launches the kernel."""

    def shift(self, state: torch.Tensor, shifts: Shifts) -> None:
        self.update(self._update(state, shifts))

    def _update(self, state: torch.Tensor, shifts: Shifts) -> Update:
        """Tokens that are drafted fill a block. Without drafts lines go on by one distance, where the kernel can."""
        count, by = shifts.rows, {*shifts.by.values()}
        lines = self._index([NULL, *shifts.by, NULL]).to(torch.int32)
        # At most as wide as the convolutions of the engine.
        if len(by) == 1 and self._calls % 2 == 0 and max(by) + count < self.shifts + 2:
            new, width, accepted = max(by), count + max(by) + 1, None
        else:
            new, width = self.block_size - count, count + 2
            accepted = self._index([1, *shifts.by.values(), 1]).to(torch.int32)
        weight = torch.ones(state.shape[1], width, dtype=state.dtype, device=state.device)
        return Update(state, lines, accepted, self._tokens(state, lines, count, new), weight)

    def _tokens(self, state: torch.Tensor, lines: torch.Tensor, first: int, count: int) -> torch.Tensor:
        there = state[lines.long(), :, first : first + count].clone()
        there[lines == NULL] = 1
        return there
