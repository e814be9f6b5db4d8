"""The KV of a slot_prefix_cache in torch tensors, laid out so that a plane that goes missing shows."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

TORN = -2


class KVPlanes:
    """`kv`, int64 [slots, positions, 2, layers] on `device`: K in `kv[:, :, 0]`, V in `kv[:, :, 1]`.

    Each plane (K or V of a layer) holds the stamps under a mask of its own.
    """

    def __init__(self, slots: int, positions: int, layers: int, device: str | torch.device) -> None:
        with torch.inference_mode(False):  # an inference tensor could not be written to outside of inference mode
            self._masks = _plane_masks(2 * layers, device)
            self._planes = self._masks.expand(slots, positions, 2 * layers).clone()
            self.kv = self._planes.view(slots, positions, 2, layers)

    def write(self, slot: int, start: int, stamps: Sequence[int]) -> None:
        """Stores one stamp per position from `start` on, in every plane."""
        written = torch.tensor(stamps, dtype=torch.int64, device=self.kv.device).view(-1, 1)
        self._planes[slot, start : start + len(stamps)] = written ^ self._masks

    def read(self, slot: int, length: int) -> list[int]:
        """The stamps of the first `length` positions, TORN where the planes of a position disagree."""
        planes = (self._planes[slot, :length] ^ self._masks).tolist()
        return [stamps[0] if len(set(stamps)) == 1 else TORN for stamps in planes]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` positions of a slot, all planes at once."""
        self._planes[target, :length] = self._planes[source, :length]


@functools.cache
def _plane_masks(planes: int, device: str | torch.device) -> torch.Tensor:
    """One 64-bit pattern per plane, int64 [planes]."""
    patterns = [(0x9E3779B97F4A7C15 * (plane + 1)) % 2**63 for plane in range(planes)]
    return torch.tensor(patterns, dtype=torch.int64, device=device)
