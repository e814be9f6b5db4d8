"""Managers with groups that keep the contract in a way of their own. No law may blame them."""

from __future__ import annotations

from typing import Any

from kvlockstep.reference.kv_manager.groups.announcing import (
    AnnouncingChunks,
    AnnouncingState,
    AnnouncingStates,
    AnnouncingWindow,
    AnnouncingWindows,
)
from kvlockstep.reference.kv_manager.groups.contract import Admitted
from kvlockstep.reference.kv_manager.groups.geometries import (
    Chunked,
    FullAndFineState,
    FullAndState,
    FullAndWindow,
    TwoPools,
    TwoWindows,
    WindowAlone,
)
from kvlockstep.reference.kv_manager.groups.request import Request
from kvlockstep.reference.kv_manager.groups.rolling import RollingManager


class KeepsABlockMore(FullAndWindow):
    """Keeps one block more of each window than it must."""

    frees_window = False

    def _slide(self, g: int, request: Request) -> None:
        computed, request.computed = request.computed, max(0, request.computed - self.block_size)
        super()._slide(g, request)
        request.computed = computed


class SlidesAtReserve(FullAndWindow):
    """Lets windows slide when slots are reserved, before it looks for room, and not at the commit."""

    frees_window = False

    def commit(self, rid: str, n: int) -> None:
        self._committing = True
        super().commit(rid, n)
        self._committing = False

    def _slide(self, g: int, request: Request) -> None:
        if not self._committing:
            super()._slide(g, request)

    def reserve(self, rid: str, n: int) -> bool:
        self._committing = False
        for g in range(len(self.groups)):
            self._slide(g, self._live[rid])
        return super().reserve(rid, n)


class CannotTell(TwoPools):
    """Names in its tables what it holds, and does not say what it keeps from being taken."""

    def held(self, rid: str, group: int) -> None:  # type: ignore[override]
        return None


class CutsChunks(FullAndState):
    """Ends each chunk of a prompt where a state is published."""

    cuts_chunks = True

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | Admitted | None:  # type: ignore[override]
        cached = self._lookup(tokens, extra_key)
        cut = self._cut(cached, min(n, len(tokens) - cached), len(tokens))
        answer = super().admit(rid, tokens, extra_key, cut)
        return answer if answer is None or cut == min(n, len(tokens) - cached) else Admitted(answer, cut)

    def reserve(self, rid: str, n: int) -> bool | int:  # type: ignore[override]
        request = self._live[rid]
        cut = self._cut(request.computed, n, len(request.tokens))
        return cut if super().reserve(rid, cut) else 0

    def _cut(self, start: int, n: int, known: int) -> int:
        boundary = (start // self.block_size + 1) * self.block_size
        return min(n, boundary - start) if start + n <= known else n


class DefersTwins(FullAndState):
    """Does not admit a request beside one of the same step that begins alike: what that one publishes can be hit."""

    defers_twins = True

    def reset(self) -> None:
        super().reset()
        self._step: list[tuple[int, int | None]] = []

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        if (tokens[0], extra_key) in self._step and len(tokens) >= self.block_size:
            first = tokens[: self.block_size]
            if any(r.tokens[: self.block_size] == first and r.extra_key == extra_key for r in self._scheduled()):
                return None
        cached = super().admit(rid, tokens, extra_key, n)
        if cached is not None:
            self._step.append((tokens[0], extra_key))
        return cached

    def _scheduled(self) -> list[Request]:
        return [request for request in self._live.values() if any(request.saves)]

    def launch(self) -> None:
        super().launch()
        self._step.clear()


class CopiesCheckpoints(FullAndState):
    """Publishes a copy of a state at the commit, and goes on in the block that it has."""

    copies_at_commit = True

    def reset(self) -> None:
        super().reset()
        self._made: list[tuple[int, int]] = []

    def _publish(self, g: int, request: Request, place: int, block: int) -> None:
        pool, key = self._pool(g), self._key(g, request.tokens, request.extra_key, place)
        if self.groups[g].kind != "state":
            super()._publish(g, request, place, block)
        elif key not in pool.cached and pool.room():
            checkpoint = pool.take()
            self._made.append((block, checkpoint))
            pool.publish(key, checkpoint)
            pool.drop(checkpoint)

    def copies(self) -> list[tuple[Any, ...]]:
        made, self._made = self._made, []
        return [*super().copies(), *made]


class RollsOneMore(RollingManager):
    """Rolls in a buffer of more than a block, and keeps one position more than it must."""

    reach = 6

    def slots(self, rid: str, group: int) -> list[int | None]:
        slots, kind, stop = super().slots(rid, group), self.groups[group], self._stop[rid]
        left = stop - kind.reach
        if kind.kind == "rolling" and left >= self._computed[rid]:
            slots[left] = self._slot(rid, group, left % kind.reach)
        return slots


GROUP_VARIANTS = {
    "full-and-window": FullAndWindow,
    "window-alone": WindowAlone,
    "two-windows": TwoWindows,
    "chunked": Chunked,
    "two-pools": TwoPools,
    "full-and-state": FullAndState,
    "full-and-fine-state": FullAndFineState,
    "keeps-a-block-more": KeepsABlockMore,
    "slides-at-reserve": SlidesAtReserve,
    "cannot-tell": CannotTell,
    "cuts-chunks": CutsChunks,
    "defers-twins": DefersTwins,
    "copies-checkpoints": CopiesCheckpoints,
    "rolling": RollingManager,
    "rolls-one-more": RollsOneMore,
    "announces-window": AnnouncingWindow,
    "announces-windows": AnnouncingWindows,
    "announces-chunks": AnnouncingChunks,
    "announces-state": AnnouncingState,
    "announces-states": AnnouncingStates,
}
