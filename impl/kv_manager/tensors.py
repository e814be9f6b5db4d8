"""KV memory on torch tensors: K and V of several layers behind the four calls that a KV oracle makes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

POISON = -1
TORN = -2
_WORD = 1 << 64


def _mixes(planes: int) -> tuple[list[int], list[int], list[int]]:
    """Per plane an odd factor, its inverse modulo 2**64, and an offset, as signed 64-bit numbers."""
    factors = [0x9E3779B97F4A7C15 + 2 * 0x5851F42D4C957F2D * plane for plane in range(planes)]
    inverses = [pow(factor, -1, _WORD) for factor in factors]
    offsets = [0xD1342543DE82EF95 * (plane + 1) for plane in range(planes)]
    return _signed(factors), _signed(inverses), _signed(offsets)


def _signed(words: Sequence[int]) -> list[int]:
    return [(word + _WORD // 2) % _WORD - _WORD // 2 for word in words]


class KVTensors:
    """K and V of `layers` layers for `slots` slots. A kv_manager offers one as its attribute `memory`.

    `kv`, int64 [slots, layers, 2], holds in every plane (layer, K or V) the stamp under that plane's own invertible
    mix, so a write or copy that misses a plane, or takes one plane for another, shows when the slot is read.
    A slot reads as 0 until it is written.
    """

    def __init__(self, slots: int, layers: int = 2, device: str | torch.device = "cpu") -> None:
        planes = _mixes(2 * layers)
        factor, inverse, offset = (torch.tensor(p, device=device).view(1, layers, 2) for p in planes)
        self._factor, self._inverse, self._offset = factor, inverse, offset
        self._poison = self._mix(torch.tensor([POISON], device=device))
        self._torn = torch.tensor(TORN, device=device)
        self._device = device
        self.kv = offset.repeat(slots, 1, 1)

    def write(self, slots: Sequence[int], stamps: Sequence[int]) -> None:
        """Stores stamps[i] in every plane of slots[i]; the last of equal slots wins on CPU only."""
        if slots:
            self.kv[self._index(slots)] = self._mix(self._index(stamps))

    def read(self, slots: Sequence[int]) -> list[int]:
        """The stamps in these slots, TORN where the planes of a slot disagree."""
        if not slots:
            return []
        stamps = ((self.kv[self._index(slots)] - self._offset) * self._inverse).flatten(1)
        first = stamps[:, 0]
        answer: list[int] = torch.where((stamps == first[:, None]).all(1), first, self._torn).tolist()
        return answer

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies every plane of slot to slot; all sources are read before any target is written."""
        if pairs:
            source, target = self._index(pairs).unbind(1)
            self.kv[target] = self.kv[source]

    def poison(self, slots: Sequence[int]) -> None:
        """Marks freed slots: they read as POISON."""
        if slots:
            self.kv[self._index(slots)] = self._poison

    def _mix(self, stamps: torch.Tensor) -> torch.Tensor:
        return stamps.view(-1, 1, 1) * self._factor + self._offset

    def _index(self, numbers: Sequence[int] | Sequence[tuple[int, int]]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)
