"""Model of radix_cache: requests that match, lock, allocate, cache and go; evictions; misuse."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from kvlockstep.models.core.model import Factory, Scope
from kvlockstep.models.core.op import NotEnabled, Op
from kvlockstep.models.core.picture import Picture
from kvlockstep.models.radix_cache.calls import Caller
from kvlockstep.models.radix_cache.commands import RadixCommands
from kvlockstep.models.radix_cache.goals import GOALS, GoalCounter
from kvlockstep.models.radix_cache.held import cached, locked, matched, reset, unlocked, without
from kvlockstep.models.radix_cache.picture import picture
from kvlockstep.models.radix_cache.scope import RadixCacheScope
from kvlockstep.models.radix_cache.slots import named_slots, whole
from kvlockstep.properties.law import Refused, Step
from kvlockstep.properties.radix_cache import LAWS, Held, Prefix, View, is_live
from kvlockstep.reference.radix_cache import RadixCache

NAME_SLOTS = ("insert_prefix", "cache_finished", "cache_unfinished", "free")


class RadixCacheModel(RadixCommands):
    contract = "radix_cache"
    laws = LAWS
    reference_type = RadixCache
    goals = GOALS

    def __init__(self, scope: RadixCacheScope, factory: Factory) -> None:
        self._callers: dict[int, Caller] = {}
        super().__init__(scope, factory)
        self._counter = GoalCounter(self.goals_met)

    def factory_arguments(self, scope: RadixCacheScope) -> dict[str, Any]:
        return {"pages": scope.pages, "page_size": scope.page_size}

    def step(self, op: Op) -> Any:
        if op.name == "serve":
            return self._serve(op, self.step)
        self._require_meaning(op, self.view)
        return super().step(op)

    def redo(self, op: Op) -> None:
        if op.name == "serve":
            self._serve(op, self.redo)
            return
        super().redo(op)

    def _serve(self, op: Op, do: Callable[[Op], Any]) -> Any:
        """Executes the operations of a whole request, each judged by itself; returns the last result."""
        tokens, handle = op.args["tokens"], op.args["handle"]
        do(Op("match_request", tokens=tokens, handle=handle))
        if not tokens:
            return None
        do(Op("lock", handle=handle))
        if op.args.get("hold"):
            return len(self.held.grips[handle].prefix)
        needed = whole(len(tokens), self.scope.page_size) - len(self.held.grips[handle].prefix)
        do(Op("allocate", n=max(0, needed - len(self.held.slots))))
        if needed > len(self.held.slots):
            return do(Op("unlock", handle=handle))
        return do(Op("cache_finished", tokens=tokens, handle=handle))

    def _require_meaning(self, op: Op, before: View) -> None:
        """NotEnabled if the operation names what is not there, or would be the harness's mistake, not the target's."""
        name, args = op.args.get("handle"), op.args
        grip = self.held.grips.get(name)
        if op.name in ("match_prefix", "match_request"):
            if name is None or (grip is not None and grip.locks):
                raise NotEnabled
        elif name is not None and grip is None:
            raise NotEnabled
        if op.name in ("lock", "unlock", "cache_finished", "cache_unfinished") and grip is None:
            raise NotEnabled
        if op.name == "cache_unfinished" and grip is not None:
            into = args.get("into") or name
            replaced = self.held.grips.get(into)
            if replaced is not None and replaced.locks > (into == name):
                raise NotEnabled  # the handle that is replaced has a lock, which would be lost
        if args.get("spoil") is not None:
            return
        size = self.scope.page_size
        if op.name == "free" and not 0 <= args["pages"] * size <= len(self.held.slots):
            raise NotEnabled
        if op.name in ("insert_prefix", "cache_finished", "cache_unfinished"):
            length = len(grip.prefix) if grip else 0
            if whole(len(args["tokens"]), size) - length > len(self.held.slots):
                raise NotEnabled
            mine = grip is None or tuple(args["tokens"][:length]) == grip.prefix
            live = grip is None or is_live(grip, before.entries, self.held)
            if op.name == "insert_prefix" and not (mine and live):
                raise NotEnabled

    def perform(self, system: Any, op: Op) -> Any:
        return self._caller(system).perform(op, self._slots(op) if op.name in NAME_SLOTS else ())

    def observe(self, system: Any) -> View:
        return self._caller(system).observe()

    def _caller(self, system: Any) -> Caller:
        caller = self._callers.get(id(system))
        if caller is None:
            caller = self._callers[id(system)] = Caller(system, self.scope.buffers)
        return caller

    def _slots(self, op: Op) -> list[int]:
        return named_slots(op, self.held, self.view)

    def draw(self, view: View) -> Picture:
        return picture(view, self.held)

    def nothing_held(self) -> Held:
        return Held(self.scope.page_size, self.scope.pages * self.scope.page_size, 0, 0, (), {}, {}, {}, {})

    def holds_after(self, held: Held, op: Op, outcome: Any) -> Held:
        if isinstance(outcome, Refused):
            return held
        held = held._replace(clock=held.clock + 1)
        match op.name:
            case "match_prefix" | "match_request":
                return matched(held, op, outcome)
            case "lock":
                return locked(held, op.args["handle"], 1)
            case "unlock":
                return unlocked(held, op.args["handle"])
            case "allocate":
                return held._replace(slots=(*held.slots, *outcome))
            case "free":
                return held._replace(slots=without(held.slots, self._slots(op)))
            case "insert_prefix" | "cache_finished" | "cache_unfinished":
                return cached(held, op, outcome, self._slots(op))
            case "reset":
                return reset(held)
        return held

    def notice(self, step: Step[View, Held]) -> None:
        self._counter.notice(step)

    def fingerprint(self) -> Any:
        # Clocks become ranks, and only where they can decide something: among pages without locks. Which page it is
        # decides nothing, so pages are left out; nor which token or handle it is, so states that differ by renaming
        # those are one state, in which all tokens and handles are tried. Handles that a reset made stale are all alike.
        view, held = self.view, self.held
        times = sorted({held.used[p] for p, (_, locks) in view.entries.items() if not locks})
        rank = {used: i for i, used in enumerate(times)}
        pages = [(p, -1 if locks else rank[held.used[p]], locks) for p, (_, locks) in view.entries.items()]
        grips = [
            (g.prefix, g.locks if is_live(g, view.entries, held) else -1) if g.epoch == held.resets else ((), -2)
            for g in held.grips.values()
        ]
        return _canonical(frozenset(pages), tuple(grips), self.scope.tokens), len(held.slots)

    @classmethod
    def simpler_scopes(cls, scope: RadixCacheScope) -> Iterable[Scope]:
        for name in ("page_size", "pages", "handles", "longest"):
            size = getattr(scope, name)
            for smaller in sorted({1, size // 2, size - 1}):
                if 0 < smaller < size:
                    yield replace(scope, **{name: smaller})


@functools.lru_cache(maxsize=100_000)
def _canonical(pages: frozenset[tuple[Prefix, int, int]], grips: tuple[Any, ...], tokens: tuple[int, ...]) -> Any:
    """The least renaming of tokens, with the handles in order."""
    renamed = []
    for permuted in itertools.permutations(tokens):
        token = dict(zip(tokens, permuted, strict=True))
        renamed.append(
            (
                sorted((tuple([token[t] for t in p]), *rest) for p, *rest in pages),
                sorted((tuple([token[t] for t in p]), *rest) for p, *rest in grips),
            )
        )
    least = min(renamed)
    return tuple(least[0]), tuple(least[1])
