"""Content of the units: what a load reads, by key and epoch."""

from __future__ import annotations

from collections.abc import Mapping

from kvlockstep.reference.kv_tier.contract import Key

# So many bytes of a chunk that a tier holds itself: longer than a header of its file, so that a cut may fall anywhere.
CHUNK_BYTES = 96


class Content:
    """The units' content. Chunks of another key, or of before a reset, differ."""

    def __init__(self) -> None:
        self._units: dict[int, str] = {}

    @staticmethod
    def chunk(key: Key, epoch: int) -> str:
        """Returns the content of a unit that holds this chunk. An epoch below 0 stands for bytes that nobody knows."""
        if epoch < 0:
            return "unknown bytes"
        extra = "" if key.extra_key is None else f"/{key.extra_key}"
        return f"chunk {key.hash}{extra}" + (f" after {epoch} resets" if epoch else "")

    @classmethod
    def data(cls, key: Key, epoch: int) -> bytes:
        """The bytes of a chunk, for a tier that holds them."""
        text = f"{cls.chunk(key, epoch)};".encode()
        return (text * (CHUNK_BYTES // len(text) + 1))[:CHUNK_BYTES]

    def of(self, unit: int) -> str:
        """Returns the content of a unit."""
        return self._units.get(unit, "nothing")

    def fill(self, units: Mapping[Key, int], epochs: Mapping[Key, int]) -> None:
        """Fills each unit with its chunk of this epoch."""
        for key, unit in units.items():
            self._units[unit] = self.chunk(key, epochs[key])
