"""Faults of kv_manager with groups: refusals that are not needed, and refusals that leave something behind."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.variants.groups import DefersTwins, SlidesAtReserve
from kvlockstep.reference.kv_manager.groups.request import Request, touched


@fault("kv-window-slides-then-takes", law="atomicity", seen=("mutant",))
class SlidesThenTakes(SlidesAtReserve):
    """A reservation slides its window and takes blocks for a group; a refusal for the next keeps these."""

    def reserve(self, rid: str, n: int) -> bool:
        if super().reserve(rid, n):
            return True
        request, pool = self._live[rid], self._pool(0)
        table, end = request.tables[0], touched(self.groups[0], request.computed, request.computed + n).stop
        while len(table) < end and pool.room():
            table.append(pool.take())
        return False


@fault("kv-twin-of-earlier-step", law="admission_honesty", seen=("mutant",))
class TwinOfEarlierStep(DefersTwins):
    """An admission waits as long as a request that begins alike is live, not only in its step."""

    def _scheduled(self) -> list[Request]:
        return list(self._live.values())

    def launch(self) -> None:
        waited_for = list(self._step)
        super().launch()
        self._step += waited_for


@fault("kv-twin-of-other-key", law="admission_honesty", seen=("mutant",))
class TwinOfOtherKey(DefersTwins):
    """An admission waits for a request with the same tokens under another key, which it cannot hit."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        first = tokens[: self.block_size]
        if len(first) == self.block_size and any(r.tokens[: len(first)] == first for r in self._scheduled()):
            return None
        return super().admit(rid, tokens, extra_key, n)
