"""Faults of kv_manager with groups: how long a hit is, where several groups must serve it together."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_manager.groups.announcing import AnnouncingState, AnnouncingWindow
from kvlockstep.reference.kv_manager.groups.geometries import FullAndFineState, FullAndWindow
from kvlockstep.reference.kv_manager.groups.request import Request


@fault("kv-window-long-hit", law="coverage", seen=("mutant",))
class LongHit(FullAndWindow):
    """A hit asks for one position of a window less than the next token reads."""

    def _serves(self, g: int, tokens: list[int], extra_key: int | None, cached: int) -> bool:
        full, window = self.groups
        self.groups = full, window._replace(reach=window.reach - 1)
        served = super()._serves(g, tokens, extra_key, cached)
        self.groups = full, window
        return served


@fault("kv-group-drops-a-block-each", law="event_consistency", seen=("vllm#33270",))
class DropsABlockEach(AnnouncingWindow):
    """Each group drops the last block of a hit for the drafter, until none has one: nothing is hit."""

    def _lookup(self, tokens: list[int], extra_key: int | None) -> int:
        length, before = len(tokens) - 1, -1
        while length != before:
            before = length
            for g, group in enumerate(self.groups):
                served = next(c for c in range(length, -1, -1) if self._serves(g, tokens, extra_key, c))
                length = max(0, served - group.block_size)
        return length


@fault("kv-state-at-leaves", law="event_consistency", seen=("sglang#38000",))
class StateAtLeaves(AnnouncingState):
    """A state is found only where no longer prefix has one, so a branch hits nothing of what is there."""

    def _serves(self, g: int, tokens: list[int], extra_key: int | None, cached: int) -> bool:
        served = super()._serves(g, tokens, extra_key, cached)
        return served and not (self.groups[g].kind == "state" and self._goes_on(g, extra_key, tokens[:cached]))

    def _goes_on(self, g: int, extra_key: int | None, prefix: list[int]) -> bool:
        """True if a longer prefix than this one has a state."""
        longer = [list(tokens) for *under, tokens in self._pool(g).cached if under == [g, extra_key]]
        return any(len(tokens) > len(prefix) and tokens[: len(prefix)] == prefix for tokens in longer)


@fault("kv-fine-hit-in-place", law="prefix_soundness", seen=("mutant",))
class FineHitInPlace(FullAndFineState):
    """A block hit in part is copied if others hold it, but not if a longer prefix is hit with it."""

    def _shared(self, g: int, request: Request) -> int | None:
        block = super()._shared(g, request)
        holds = any(other is request for other in self._live.values())
        return block if block is not None and self._pool(g).refs[block] > holds else None
