"""Calls of a radix_cache: their arguments are overwritten afterwards, and some of their results are kept."""

from __future__ import annotations

import functools
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any

from kvlockstep.models.core.bounded import bounded
from kvlockstep.models.core.op import Op
from kvlockstep.models.core.whole import whole
from kvlockstep.properties.radix_cache import View

SCRIBBLE = -7
KEPT_ANSWERS = 3


class Caller:
    """Calls one system, and keeps the handles it gives, by our names. `buffers`: see RadixCacheScope."""

    def __init__(self, system: Any, buffers: bool) -> None:
        self._system = system
        self._buffers = buffers
        self._handles: dict[str, Any] = {}
        self._answers: deque[Any] = deque(maxlen=KEPT_ANSWERS)

    def perform(self, op: Op, slots: Sequence[int]) -> Any:
        """Executes the operation with the slots that it names and returns its result as plain values."""
        system, args, handles = self._system, op.args, self._handles
        name: Any = args.get("handle")
        match op.name:
            case "match_prefix" | "match_request":
                return self._matched(name, self._given(getattr(system, op.name), args["tokens"]))
            case "lock" | "unlock":
                return getattr(system, op.name)(handles[name])
            case "insert_prefix":
                return whole(self._given(system.insert_prefix, args["tokens"], slots))
            case "cache_finished":
                finishing = functools.partial(system.cache_finished, handles[name])
                return whole(self._given(finishing, args["tokens"], slots))
            case "cache_unfinished":
                caching = functools.partial(system.cache_unfinished, handles[name])
                into = args.get("into") or name
                return self._matched(into, self._given(caching, args["tokens"], slots))
            case "allocate":
                return self._kept_answer(system.allocate(args["n"]))
            case "evict":
                return _plain(system.evict(args["n"]))
            case "free":
                return self._given(system.free, slots)
            case _:
                return system.reset()

    def observe(self) -> View:
        """Everything observable, as comparable plain values."""
        system = self._system
        free, evictable, protected = system.sizes()
        entries = {prefix: (tuple(bounded(slots)), locks) for prefix, (slots, locks) in system.entries().items()}
        free_slots, order = _ints(system.free_slots()), _ints(system.eviction_order())
        answers = tuple([tuple(_ints(slots)) for slots in self._answers])
        return View(entries, free_slots, order, (free, evictable, protected), system.render(), answers)

    def _given(self, call: Any, *sequences: Sequence[int]) -> Any:
        """Calls with copies of the sequences that are overwritten afterwards: a target that keeps them shows."""
        given = [array("q", s) if self._buffers else list(s) for s in sequences]
        try:
            return call(*given)
        finally:
            for mine in given:
                _scribble(mine)

    def _kept_answer(self, slots: Any) -> tuple[int, ...]:
        """Returns the slots of a result, and keeps the result, which must not change later."""
        self._answers.append(slots)
        return tuple(_ints(slots))

    def _matched(self, name: str, match: Any) -> tuple[int, tuple[int, ...]]:
        length, slots, self._handles[name] = match
        return whole(length), _plain(slots)


def _plain(slots: Any) -> tuple[int, ...]:
    """Returns the slots of a result and overwrites the result, which exposes a target that still uses it."""
    plain = tuple(_ints(slots))
    _scribble(slots)
    return plain


def _ints(slots: Any) -> list[int]:
    return [whole(slot) for slot in bounded(slots)]


def _scribble(sequence: Any) -> None:
    try:
        for i in range(len(sequence)):
            sequence[i] = SCRIBBLE
    except (TypeError, ValueError):
        return
