"""What the adapters of prefills of conv states share: requests of several lengths, and the state that each ends with.

A prefill leaves the last tokens of its request in its state. A request that is shorter than the state shifts what is
there, if the state counts, or else has zeros in front. It is judged as moves of rows within a block, so the tokens are
those that the block has afterwards.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch

from kvlockstep.impl.engines.shifted_states import NULL, ConvStates
from kvlockstep.reference.kv_store.shifts import Shifts

WIDEST = 4  # the tokens of a state, for the widest convolution of the engines
CHUNK = 8  # a program of the kernels has so many tokens


class Prefill(NamedTuple):
    """The prefill of one state tensor [line, dim, token]: tokens [token, dim] of all requests, the lengths and lines of
    these, whether the state of each counts, and the convolution's weight [dim, width]. Some lines are NULL.
    """

    state: torch.Tensor
    tokens: torch.Tensor
    lengths: list[int]
    lines: torch.Tensor
    counts: torch.Tensor
    weight: torch.Tensor

    def starts(self) -> torch.Tensor:
        """Where each request begins in the tokens, and where the last one ends, int32."""
        ends = [sum(self.lengths[:i]) for i in range(len(self.lengths) + 1)]
        return torch.tensor(ends, dtype=torch.int32, device=self.state.device)


class PrefilledStates(ConvStates):
    """A store whose blocks are conv states. A request shifts its state, replaces all of it, or has zeros in front."""

    shifts = 3

    @abstractmethod
    def prefill(self, prefill: Prefill) -> None:
        """Launches the kernel."""

    def shift(self, state: torch.Tensor, shifts: Shifts) -> None:
        self.prefill(self._prefill(state, shifts))

    def _prefill(self, state: torch.Tensor, shifts: Shifts) -> Prefill:
        length = self._length(shifts, WIDEST)
        dim = state.shape[1]
        pads = [torch.ones(n, dim, dtype=state.dtype, device=state.device) for n in (1, 1 + self._calls % CHUNK)]
        requests, counts = [pads[0]], [True]
        for line, by in shifts.by.items():
            wanted = state[line, :, :length].T.clone()
            wanted[: shifts.rows] = state[line, :, by : by + shifts.rows].T
            tokens, counted = self._tokens_of(wanted, by if by + shifts.rows == length else 0, line)
            requests.append(tokens)
            counts.append(counted)
        requests.append(pads[1])
        return Prefill(
            state,
            torch.cat(requests),
            [len(tokens) for tokens in requests],
            self._index([NULL, *shifts.by, NULL]).to(torch.int32),
            torch.tensor([*counts, True], device=state.device),
            torch.ones(dim, length + 1, dtype=state.dtype, device=state.device),
        )

    def _tokens_of(self, wanted: torch.Tensor, by: int, line: int) -> tuple[torch.Tensor, bool]:
        """The tokens that leave this state [token, dim], and whether the state before them counts.

        With `by` they are the last ones of a state that is shifted so far.
        """
        if by and (self._calls + line) % 2:
            return wanted[-by:], True
        zeros = int(wanted.view(torch.int16).any(1).cumsum(0).eq(0).sum())
        if 0 < zeros < len(wanted):
            return wanted[zeros:], False
        more = (5 * self._calls + 3 * line) % (2 * CHUNK)
        filler = torch.ones(more, wanted.shape[1], dtype=wanted.dtype, device=wanted.device)
        return torch.cat([filler, wanted]), bool(more % 2)
