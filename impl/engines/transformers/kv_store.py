"""kv_store on states of the `transformers` package that slide (5.20 and later): windows of KV and of convolutions.

The static sliding layer keeps the latest tokens [request, head, position, dim] of K and of V, and the layer of linear
attention the latest inputs of a convolution [request, dim, position]. Each block is a request with layers of its own.
It is judged as moves of rows to the front of the block; what comes behind them are the rows that are there. Source:
transformers/cache_utils.py.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from kvlockstep.reference.kv_store.shifts import Shifts, shifts_of

try:
    import torch
    import transformers
    from transformers.cache_utils import LinearAttentionLayer, StaticSlidingWindowLayer
except ImportError as error:
    raise ImportError(
        f"the transformers target needs torch and transformers >= 5.20 ({error}); "
        "get it with: pip install 'kvlockstep[engines]'"
    ) from error

from kvlockstep.impl.engines.row_store import RowCopies


class SlidStates(RowCopies):
    """A store whose blocks slide: of each block that is named rows move to its front."""

    engine = "transformers"
    version = transformers.__version__
    copies = ""
    shifts = 8
    interpreted = False

    def launch(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        found = shifts_of(list(zip(sources.tolist(), targets.tolist(), strict=True)), self.block_size)
        assert found is not None, "the judge moves rows to the front of their blocks alone"
        rows = [plane.view(self._blocks, self.block_size, -1) for plane in self.rows()]
        for keys, values in zip(rows[0::2], rows[1::2], strict=True):
            for block in found.by:
                self.slide(keys[block], values[block], found.by[block], found)

    @abstractmethod
    def slide(self, keys: torch.Tensor, values: torch.Tensor, by: int, shifts: Shifts) -> None:
        """Moves rows of a block [position, word] of K and of V to its front, by so many places."""


class SlidingStates(SlidStates):
    """StaticSlidingWindowLayer: full, or becoming full with this update."""

    def slide(self, keys: torch.Tensor, values: torch.Tensor, by: int, shifts: Shifts) -> None:
        size, kept = self.block_size, shifts.rows + by
        layer: Any = StaticSlidingWindowLayer(size, size)
        layer.keys, layer.values = keys[None, None], values[None, None]
        layer.device, layer.is_initialized = keys.device, True
        # A window that has been slid before has seen more tokens than it has places.
        layer.cumulative_length_int = size + 3 if kept == size else kept
        layer.cumulative_length.fill_(kept)
        layer.update(*(rows[None, None, shifts.rows :].clone() for rows in (keys, values)))


class ConvStates(SlidStates):
    """LinearAttentionLayer: its state slides, or is that of the first tokens with zeros in front."""

    def slide(self, keys: torch.Tensor, values: torch.Tensor, by: int, shifts: Shifts) -> None:
        for rows in (keys, values):
            layer: Any = LinearAttentionLayer()
            wanted = rows.clone()
            wanted[: shifts.rows] = rows[by : by + shifts.rows]
            slides = shifts.rows + by == self.block_size
            zeros = int(wanted.any(1).cumsum(0).eq(0).sum())
            tokens = wanted[-by:] if slides else wanted[min(zeros, self.block_size - 1) :]
            layer.lazy_initialization(conv_states=tokens.T[None], conv_kernel_size=self.block_size)
            layer.conv_states[0], layer.has_previous_state[0] = rows.T[None], slides
            layer.update_conv_state(tokens.T[None].clone())
