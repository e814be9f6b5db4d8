"""kv_store on SGLang's `causal_conv1d_update` over trees of drafts (0.5.23): the window that each draft leaves.

The kernel keeps for each draft the last tokens up to it: itself, its parent, the parent of that, and what is missing of
the state. The window of the draft that is accepted becomes the state; here that is done by indexing. So a state that
moves by some tokens has accepted a path of as many drafts, with other drafts beside it. Source:
sglang/kernels/ops/mamba/causal_conv1d_triton.py, called in sglang/srt/layers/attention/linear/gdn_backend.py.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kvlockstep.impl.engines.sglang.kernels.conv_states import ENGINE, convolving
from kvlockstep.impl.engines.shifted_states import NULL, STATE, ConvStates
from kvlockstep.reference.kv_store.shifts import Shifts

WIDEST = 3  # the tokens of a state, for the widest convolution that the kernel computes over trees
NONE, OTHER = -1, 1


class Tree(NamedTuple):
    """Drafts in the order of their depth: of each the first child and the next sibling, and those that are accepted."""

    children: list[int]
    siblings: list[int]
    path: list[int]


def tree_of(depth: int, most: int, odd: int) -> Tree:
    """A path of `depth` drafts below `most`, with a sibling beside each but the first, and a child of the last sibling.

    The bits of `odd` say at which depths the sibling comes first.
    """
    children, siblings = [NONE] * (2 * most), [NONE] * (2 * most)
    path, beside = [0], 0
    for step in range(1, most):
        first = 2 * step - 1
        parent = path[-1] if step < depth else beside
        children[parent], siblings[first] = first, first + 1
        turned = odd >> step & 1
        beside = first + 1 - turned
        if step < depth:
            path.append(first + turned)
    return Tree(children[: 2 * most - 1], siblings[: 2 * most - 1], path)


class AcceptedStates(ConvStates):
    """A store whose blocks are conv states, each of which becomes the window of a draft."""

    engine = "sglang"
    version = ENGINE.version
    shifts = 2

    def shift(self, state: torch.Tensor, shifts: Shifts) -> None:
        size = self._length(shifts, WIDEST)
        wanted = {line: state[line, :, :size].clone() for line in shifts.by}
        for line, by in shifts.by.items():
            wanted[line][:, : shifts.rows] = state[line, :, by : by + shifts.rows]
        # A longer path than a state leaves nothing of what was there.
        depths = [by if shifts.rows + by == size else size + (self._calls + by) % 2 for by in shifts.by.values()]
        self._verify(state, [NULL, *shifts.by, NULL], size, wanted, [1, *depths, 1])

    def _verify(
        self, state: torch.Tensor, lines: list[int], size: int, wanted: dict[int, torch.Tensor], depths: list[int]
    ) -> None:
        most = max(depths)
        trees = [tree_of(depth, most, self._calls + i) for i, depth in enumerate(depths)]
        dim, count = state.shape[1], 2 * most - 1
        tokens = torch.full((len(lines), dim, count), OTHER, dtype=STATE, device=state.device)
        for i, (line, tree) in enumerate(zip(lines, trees, strict=True)):
            last = tree.path[-size:]
            if line != NULL:
                tokens[i, :, last] = wanted[line][:, size - len(last) :]
        windows = torch.full((len(lines), count, dim, size), OTHER, dtype=STATE, device=state.device)
        convolving.causal_conv1d_update(
            *(tokens, state, torch.ones(dim, size + 1, dtype=STATE, device=state.device)),
            conv_state_indices=self._index(lines).to(torch.int32),
            intermediate_conv_window=windows,
            intermediate_state_indices=self._index(range(len(lines))).to(torch.int32),
            retrieve_next_token=torch.tensor([tree.children for tree in trees], device=state.device),
            retrieve_next_sibling=torch.tensor([tree.siblings for tree in trees], device=state.device),
            retrieve_parent_token=torch.full((len(lines), count), NONE, device=state.device),
            pad_slot_id=NULL,
        )
        for i, (line, tree) in enumerate(zip(lines, trees, strict=True)):
            if line != NULL:
                state[line, :, :size] = windows[i, tree.path[-1]]
