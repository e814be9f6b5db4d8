"""What can happen to a radix_cache: requests that match, lock, allocate, cache and go; evictions; misuse."""

from __future__ import annotations

import functools
import itertools
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvlockstep.models.model import Factory, Goal, LockstepModel, Scope, guarded
from kvlockstep.models.op import NotEnabled, Op, Pick, command
from kvlockstep.properties import radix_cache as laws
from kvlockstep.properties.law import Refused, Step
from kvlockstep.properties.radix_cache import Grip, Held, Prefix, View, evicted, is_live, path
from kvlockstep.properties.slot_prefix_cache import stamps
from kvlockstep.reference.radix_cache import RadixCache

SPOILS = ("twice", "free", "unknown", "across", "short")
CACHINGS = ("cache_finished", "cache_unfinished")
SCRIBBLE = -7
KEPT_ANSWERS = 3


@dataclass(frozen=True)
class RadixCacheScope(Scope):
    """Sequences of up to `longest` tokens from the vocabulary `tokens`, `handles` handles at a time, named h0, h1, ...

    `locks`: how often each may be locked. `buffers`: tokens and slots are passed as arrays of 64-bit integers, not as
    lists. With `exhaustive` every sequence is proposed, else mostly related ones, lengths around multiples of a page.
    """

    pages: int
    page_size: int
    longest: int
    handles: int
    tokens: tuple[int, ...] = (1, 2)
    locks: int = 2
    buffers: bool = True
    exhaustive: bool = False


def _scopes() -> Iterable[RadixCacheScope]:
    sizes = [(4, 1, 5, 2), (3, 2, 7, 2), (6, 1, 7, 3), (8, 2, 13, 3), (5, 4, 18, 2), (12, 1, 9, 4), (4, 16, 50, 2)]
    sizes += [(10, 4, 26, 3), (1, 1, 2, 1), (20, 2, 24, 4), (6, 16, 66, 3), (2, 2, 5, 1), (24, 1, 16, 4), (0, 1, 1, 1)]
    vocabularies = ((1, 2), (1, 2, 3), (0, 257, 2**31 - 1), (1,))
    for i, (pages, page_size, longest, handles) in enumerate(sizes):
        for j, tokens in enumerate((vocabularies[i % 3], vocabularies[(i + 1) % 4])[: pages // 2 or 1]):
            yield RadixCacheScope(pages, page_size, longest, handles, tokens, buffers=(i + j) % 3 > 0)


class RadixCacheModel(LockstepModel[RadixCacheScope]):
    contract = "radix_cache"
    laws = laws.LAWS
    reference_type = RadixCache
    scope_type = RadixCacheScope
    scopes = tuple(_scopes())
    small_scopes = (
        RadixCacheScope(2, 1, 2, 2, (1,), exhaustive=True),
        RadixCacheScope(3, 1, 3, 1, locks=1, exhaustive=True),
        RadixCacheScope(2, 2, 5, 1, (1,), exhaustive=True),
        RadixCacheScope(2, 2, 3, 1, locks=1, exhaustive=True),
    )
    goals = (
        Goal("hit", "all of a sequence is cached"),
        Goal("partial_hit", "a part of a sequence is cached"),
        Goal("miss", "nothing of a sequence is cached, though there are entries"),
        Goal("unaligned", "a match is asked for a sequence that does not fill its last page"),
        Goal("full_prompt_hit", "a request whose whole prompt is cached matches all but the page of its last token"),
        Goal("split", "a match ends inside what was cached at once"),
        Goal("split_locked", "a match ends inside a run that another handle has locked"),
        Goal("unlock_after_split", "a handle is unlocked whose run was split since it was locked"),
        Goal("branch", "an insert branches off inside what was cached at once"),
        Goal("shared_lock", "an entry is locked through two handles"),
        Goal("locked_twice", "a handle is locked twice"),
        Goal("eviction", "pages are evicted on demand"),
        Goal("eviction_pressure", "an allocation evicts"),
        Goal("partial_eviction", "an eviction leaves a part of what was cached at once"),
        Goal("cascade", "an eviction goes on to the parent of what it evicted"),
        Goal("lock_protects", "pages are evicted while less recently used ones are locked"),
        Goal("refused_eviction", "more is to be evicted than can be"),
        Goal("refused_allocation", "more is to be allocated than there is"),
        Goal("cached_again", "a prefix that was evicted is cached again"),
        Goal("duplicates", "a finished request has computed what was cached meanwhile"),
        Goal("duplicates_behind_match", "such duplicates lie behind a prefix that the request had matched"),
        Goal("rest", "a finished request has a last page that is not full"),
        Goal("published", "a running request caches what it has computed"),
        Goal("published_duplicates", "a running request is given other slots for what it has computed"),
        Goal("stale", "a handle is used that was evicted, all of it"),
        Goal("stale_in_part", "a handle is used of which the end was evicted"),
        Goal("stale_cached_again", "a handle is used that was evicted and cached again"),
        Goal("stale_after_reset", "a handle is used after a reset"),
        Goal("reset_locked", "a reset takes locks with it"),
        Goal("double_unlock", "a handle is unlocked more often than locked"),
        Goal("not_locked", "a request is cached with a handle that is not locked"),
        Goal("unknown_slot", "a slot that is not there is named"),
        Goal("not_held", "a slot is named that the caller does not hold, or twice"),
        Goal("malformed", "slots that are not whole pages, the wrong number of them, or a bad number of tokens"),
    )

    def __init__(self, scope: RadixCacheScope, factory: Factory) -> None:
        self._answers: dict[int, deque[Any]] = {}
        super().__init__(scope, factory)
        self._handles: dict[int, dict[str, Any]] = {id(self.reference): {}, id(self.target): {}}
        self._split_since: set[str] = set()

    def factory_arguments(self, scope: RadixCacheScope) -> dict[str, Any]:
        return {"pages": scope.pages, "page_size": scope.page_size}

    @command(4)
    def serve(self, pick: Pick) -> Op:
        """A request from its match to its end at one go, or until it has locked what it matched."""
        if self.scope.exhaustive:
            raise NotEnabled
        hold = pick((None, True))
        entries = list(self.view.entries) if hold else []
        tokens = [*pick(entries), self.scope.tokens[0]] if entries else self._sequence(pick)
        return Op("serve", tokens=tokens, handle=self._name(pick), hold=hold)

    @command(4)
    def match_prefix(self, pick: Pick) -> Op:
        """The longest cached prefix of a sequence is looked up."""
        return Op("match_prefix", tokens=self._sequence(pick), handle=self._name(pick))

    @command(2)
    def match_request(self, pick: Pick) -> Op:
        """The longest cached prefix of a prompt is looked up that leaves a token to compute."""
        tokens = self._sequence(pick)
        longest = len(tokens) == self.scope.longest and tokens[-1] == self.scope.tokens[0] if tokens else True
        if self.scope.exhaustive and not longest:
            raise NotEnabled  # as match_prefix of a sequence one shorter
        return Op("match_request", tokens=tokens, handle=self._name(pick))

    @command(3)
    def lock(self, pick: Pick) -> Op:
        """A request protects what it has matched."""
        names = [name for name, grip in self.held.grips.items() if grip.locks < self.scope.locks]
        some = [name for name in names if self.held.grips[name].prefix]
        if some and not self.scope.exhaustive and pick((True, True, False)):
            names = some
        return Op("lock", handle=pick(names))

    @command(2)
    def unlock(self, pick: Pick) -> Op:
        """A request is done without caching anything."""
        return Op("unlock", handle=pick(self._locked()))

    @command(4)
    def allocate(self, pick: Pick) -> Op:
        """A request gets slots; where there are none, held ones are put to use."""
        pages = (len(self.view.free) + len(self.view.order)) // self.scope.page_size
        if not pages and self._rather_insert(pick):
            return self._insert(pick, None)
        return Op("allocate", n=self._amount(pick, pages))

    @command(1)
    def free(self, pick: Pick) -> Op:
        """A request gives pages back."""
        pages = len(self.held.slots) // self.scope.page_size
        return Op("free", pages=pick(range(1, pages + 1)))

    @command(2)
    def insert_prefix(self, pick: Pick) -> Op:
        """A sequence is cached in held slots, those of a matched prefix before them or not."""
        live = [name for name, grip in self.held.grips.items() if is_live(grip, self.view.entries, self.held)]
        handle = pick([None, *live])
        return self._insert(pick, handle)

    @command(4)
    def cache_finished(self, pick: Pick) -> Op:
        """A request that has computed all its tokens is cached and ends."""
        return self._caching("cache_finished", pick, pick(self._locked()))

    @command(2)
    def cache_unfinished(self, pick: Pick) -> Op:
        """A running request is cached as far as it has come; its new handle takes the place of the old one, or not."""
        free = [name for name in self._names() if name not in self.held.grips or not self.held.grips[name].locks]
        handle = pick(self._locked() if free else self._locked_once())
        op = self._caching("cache_unfinished", pick, handle)
        if op.name != "cache_unfinished":
            return op
        return op.but(into=pick([*free, *([None] if self.held.grips[handle].locks == 1 else [])]))

    @command(2)
    def evict(self, pick: Pick) -> Op:
        """Pages are evicted; now and then everything is forgotten."""
        if pick((False, True) if self.scope.exhaustive else (False,) * 9 + (True,)):
            return Op("reset")
        pages = len(self.view.order) // self.scope.page_size
        if not pages and self._rather_insert(pick):
            return self._insert(pick, None)
        return Op("evict", n=self._amount(pick, pages))

    @command(2)
    def misuse_handle(self, pick: Pick) -> Op:
        """A handle is used that is stale or not locked, perhaps for a sequence that is longer by a page."""
        name = pick([name for name in self.held.grips if self._useless(name)])
        operation = pick(("cache_finished", "unlock") if self.scope.exhaustive else (*CACHINGS, "unlock"))
        if operation == "unlock":
            return Op("unlock", handle=name)
        return Op(operation, tokens=self._longer(name, min(len(self.held.slots), self.scope.page_size)), handle=name)

    @command(2)
    def misuse_slots(self, pick: Pick) -> Op:
        """Slots are named that are not the caller's or not whole pages, or a number is out of range."""
        kind = pick(("caching", "free", "number"))
        if kind == "caching":
            handle = pick([None, *self._locked_once()])
            operation = "insert_prefix" if handle is None else pick(CACHINGS[: 1 + (not self.scope.exhaustive)])
            spoil = pick(SPOILS)
            pages = 2 if spoil == "twice" else 1
            return Op(operation, tokens=self._longer(handle, pages * self.scope.page_size), handle=handle, spoil=spoil)
        if kind == "free":
            return Op("free", pages=1 if self.scope.exhaustive else pick((2, 1)), spoil=pick(SPOILS))
        bad = [Op("allocate", n=-1), Op("evict", n=-1)]
        bad += [Op("match_request", tokens=[], handle=n) for n, grip in self.held.grips.items() if not grip.locks]
        for name in self._locked():
            other = [token + 1 for token in self.held.grips[name].prefix]
            bad += [Op(operation, tokens=other, handle=name) for operation in CACHINGS[: 2 * bool(other)]]
        return pick(bad)

    def step(self, op: Op) -> Any:
        if op.name == "serve":
            return self._serve(op, self.step)
        self._require_meaning(op, self.view)
        return super().step(op)

    def redo(self, op: Op) -> None:
        if op.name == "serve":
            self._serve(op, self.redo)
            return
        outcome = guarded(self.perform, self.reference, op)
        guarded(self.perform, self.target, op)
        self.held = self.holds_after(self.held, op, outcome)
        self._view: View | None = None

    def _serve(self, op: Op, do: Callable[[Op], Any]) -> Any:
        """The operations of a whole request, each judged by itself; the last answer."""
        tokens, handle = op.args["tokens"], op.args["handle"]
        do(Op("match_request", tokens=tokens, handle=handle))
        if not tokens:
            return None
        do(Op("lock", handle=handle))
        if op.args.get("hold"):
            return len(self.held.grips[handle].prefix)
        needed = _whole(len(tokens), self.scope.page_size) - len(self.held.grips[handle].prefix)
        do(Op("allocate", n=max(0, needed - len(self.held.slots))))
        if needed > len(self.held.slots):
            return do(Op("unlock", handle=handle))
        return do(Op("cache_finished", tokens=tokens, handle=handle))

    @property
    def view(self) -> View:
        """What the reference shows; looked at only when asked for, since repeating a path asks for little of it."""
        view: View | None = self._view
        if view is None:
            view = self._view = self.observe(self.reference)
        return view

    @view.setter
    def view(self, view: View) -> None:
        self._view = view

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
            matched = len(grip.prefix) if grip else 0
            if _whole(len(args["tokens"]), size) - matched > len(self.held.slots):
                raise NotEnabled
            mine = grip is None or tuple(args["tokens"][:matched]) == grip.prefix
            live = grip is None or is_live(grip, before.entries, self.held)
            if op.name == "insert_prefix" and not (mine and live):
                raise NotEnabled

    def perform(self, system: Any, op: Op) -> Any:
        args, handles = op.args, self._handles[id(system)]
        name: Any = args.get("handle")
        match op.name:
            case "match_prefix" | "match_request":
                return self._matched(handles, name, self._given(getattr(system, op.name), args["tokens"]))
            case "lock" | "unlock":
                return getattr(system, op.name)(handles[name])
            case "insert_prefix":
                return int(self._given(system.insert_prefix, args["tokens"], self._slots(op)))
            case "cache_finished":
                finishing = functools.partial(system.cache_finished, handles[name])
                return int(self._given(finishing, args["tokens"], self._slots(op)))
            case "cache_unfinished":
                caching = functools.partial(system.cache_unfinished, handles[name])
                into = args.get("into") or name
                return self._matched(handles, into, self._given(caching, args["tokens"], self._slots(op)))
            case "allocate":
                return self._kept_answer(system, system.allocate(args["n"]))
            case "evict":
                return _plain(system.evict(args["n"]))
            case "free":
                return self._given(system.free, self._slots(op))
            case _:
                return system.reset()

    def _given(self, call: Any, *sequences: Sequence[int]) -> Any:
        """Calls with copies of the sequences that are overwritten afterwards: a target that keeps them shows."""
        given = [array("q", s) if self.scope.buffers else list(s) for s in sequences]
        try:
            return call(*given)
        finally:
            for mine in given:
                _scribble(mine)

    def _kept_answer(self, system: Any, slots: Any) -> tuple[int, ...]:
        """The slots of an answer, which the caller keeps and looks at again: it must not change."""
        self._answers.setdefault(id(system), deque(maxlen=KEPT_ANSWERS)).append(slots)
        return tuple(_ints(slots))

    def _matched(self, handles: dict[str, Any], name: str, match: Any) -> tuple[int, tuple[int, ...]]:
        length, slots, handles[name] = match
        return int(length), _plain(slots)

    def _slots(self, op: Op) -> list[int]:
        """The slots that this operation names: of the match, then held ones, the longest held first; or spoilt ones."""
        args, size, held = op.args, self.scope.page_size, self.held
        if op.name == "free":
            slots = list(held.slots[: args["pages"] * size])
        else:
            grip = held.grips.get(args["handle"])
            matched = grip.slots if grip else ()
            slots = [*matched, *held.slots[: max(0, _whole(len(args["tokens"]), size) - len(matched))]]
        return _spoilt(slots, args["spoil"], self.view, held) if args.get("spoil") else slots

    def observe(self, system: Any) -> View:
        free, evictable, protected = system.sizes()
        entries = {prefix: (tuple(slots), locks) for prefix, (slots, locks) in system.entries().items()}
        free_slots, order = _ints(system.free_slots()), _ints(system.eviction_order())
        answers = tuple([tuple(_ints(slots)) for slots in self._answers.get(id(system), ())])
        return View(entries, free_slots, order, (free, evictable, protected), system.render(), answers)

    def nothing_held(self) -> Held:
        return Held(self.scope.page_size, self.scope.pages * self.scope.page_size, 0, 0, (), {}, {}, {}, {})

    def holds_after(self, held: Held, op: Op, outcome: Any) -> Held:
        if isinstance(outcome, Refused):
            return held
        held = held._replace(clock=held.clock + 1)
        match op.name:
            case "match_prefix" | "match_request":
                return _after_match(held, op, outcome)
            case "lock":
                return _locked(held, op.args["handle"], 1)
            case "unlock":
                return _unlocked(held, op.args["handle"])
            case "allocate":
                return held._replace(slots=(*held.slots, *outcome))
            case "free":
                return held._replace(slots=_without(held.slots, self._slots(op)))
            case "insert_prefix" | "cache_finished" | "cache_unfinished":
                return self._after_caching(held, op, outcome)
            case "reset":
                grips = {name: grip._replace(locks=0) for name, grip in held.grips.items()}
                return held._replace(resets=held.resets + 1, slots=(), grips=grips, born={}, used={}, stamps={})
        return held

    def _after_caching(self, held: Held, op: Op, outcome: Any) -> Held:
        tokens, size = tuple(op.args["tokens"]), self.scope.page_size
        name, slots = op.args["handle"], self._slots(op)
        matched = len(held.grips[name].prefix) if name else 0
        whole = len(tokens) // size * size
        there = outcome if isinstance(outcome, int) else _taken_from(slots, outcome[1], matched)
        new = path(tokens, size)[there // size :]
        mine = set(held.slots)
        written = [pair for pair in zip(slots[matched:], stamps(tokens)[matched:], strict=False) if pair[0] in mine]
        held = held._replace(
            stamps={**held.stamps, **dict(written)},
            born={**held.born, **dict.fromkeys(new, held.clock)},
            used={**held.used, **dict.fromkeys(path(tokens, size), held.clock)},
        )
        if op.name == "insert_prefix":
            return held._replace(slots=_without(held.slots, slots[outcome:whole]))
        if op.name == "cache_finished":
            return _unlocked(held._replace(slots=_without(held.slots, slots[matched:])), name)
        length, found = outcome
        prefix = tokens[:length]
        grip = Grip(prefix, found, 1, held.born.get(prefix, 0), held.resets)
        kept = _without(held.slots, slots[matched:whole])
        held = _locked(held, name, -1)
        return held._replace(slots=kept, grips={**held.grips, op.args.get("into") or name: grip})

    def notice(self, step: Step) -> None:
        reach, name = self.reach, step.op.name
        if isinstance(step.outcome, Refused):
            reach[self._refusal(step)] += 1
            return
        if name == "cache_unfinished":
            self._split_since.discard(step.op.args.get("into") or step.op.args["handle"])
        if name in ("match_prefix", "match_request"):
            self._split_since.discard(step.op.args["handle"])
            self._notice_match(step)
        elif name in ("insert_prefix", "cache_finished", "cache_unfinished"):
            self._notice_caching(step)
        elif name == "lock":
            grip = step.held.grips[step.op.args["handle"]]
            reach["locked_twice"] += grip.locks > 1
            reach["shared_lock"] += bool(grip.prefix) and step.before.entries[grip.prefix][1] > grip.locks - 1
            self._split_since.discard(step.op.args["handle"])
        elif name == "reset":
            reach["reset_locked"] += any(grip.locks for grip in step.held_before.grips.values())
            self._split_since.clear()
        if name in ("unlock", "cache_finished"):
            reach["unlock_after_split"] += step.op.args["handle"] in self._split_since
        if gone := evicted(step):
            self._notice_eviction(step, gone)

    def _notice_match(self, step: Step) -> None:
        reach, op, entries, size = self.reach, step.op, step.before.entries, self.scope.page_size
        tokens, length = tuple(op.args["tokens"]), step.outcome[0]
        asked = len(tokens) - (op.name == "match_request")
        reach["unaligned"] += asked % size > 0
        if entries and asked >= size:
            reach["hit" if length == asked // size * size else "partial_hit" if length else "miss"] += 1
        if op.name == "match_request":
            reach["full_prompt_hit"] += len(tokens) % size == 0 and tokens in entries and length == len(tokens) - size
        if self._inside_run(tokens[:length], entries, step.held_before):
            reach["split"] += 1
            self._notice_split(step, tokens[:length])

    def _notice_caching(self, step: Step) -> None:
        reach, op, size = self.reach, step.op, self.scope.page_size
        tokens, held = tuple(op.args["tokens"]), step.held_before
        new = [p for p in path(tokens, size) if p not in step.before.entries]
        reach["cached_again"] += any(p in held.born for p in new)
        there = len(path(tokens, size)) * size - len(new) * size
        if new and self._inside_run(tokens[:there], step.before.entries, held):
            reach["branch"] += 1
            self._notice_split(step, tokens[:there])
        matched = len(held.grips[op.args["handle"]].prefix) if op.args["handle"] else 0
        if op.name == "cache_finished":
            reach["duplicates"] += there > matched
            reach["duplicates_behind_match"] += there > matched > 0
            reach["rest"] += len(tokens) % size > 0
        elif op.name == "cache_unfinished":
            reach["published"] += bool(new)
            reach["published_duplicates"] += there > matched

    def _notice_split(self, step: Step, prefix: Prefix) -> None:
        longer = len(prefix) + self.scope.page_size
        below = [p for p in step.before.entries if p[: len(prefix)] == prefix and len(p) == longer]
        if any(step.before.entries[p][1] for p in below):
            self.reach["split_locked"] += 1
        for name, grip in step.held_before.grips.items():
            if grip.locks and len(grip.prefix) > len(prefix) and grip.prefix[: len(prefix)] == prefix:
                self._split_since.add(name)

    def _inside_run(self, prefix: Prefix, entries: Mapping[Prefix, Any], held: Held) -> bool:
        """Whether the prefix ends between two pages that were cached at once and have not been split there."""
        size = self.scope.page_size
        below = [p for p in entries if p[:-size] == prefix]
        return bool(prefix) and len(below) == 1 and held.born[below[0]] == held.born[prefix]

    def _notice_eviction(self, step: Step, gone: Sequence[Prefix]) -> None:
        reach, held, size = self.reach, step.held_before, self.scope.page_size
        after = step.after.entries
        reach["eviction" if step.op.name == "evict" else "eviction_pressure"] += 1
        reach["partial_eviction"] += any(p[:-size] in after and held.born[p[:-size]] == held.born[p] for p in gone)
        reach["cascade"] += any(p[:-size] in gone and held.born[p[:-size]] != held.born[p] for p in gone)
        newest = max(held.used[p] for p in gone)
        reach["lock_protects"] += any(locks and held.used[p] < newest for p, (_, locks) in after.items())

    def _refusal(self, step: Step) -> str:
        error, name, held = step.outcome.error, step.op.name, step.held_before
        grip = held.grips.get(step.op.args.get("handle"))
        if error == "StaleHandle" and grip is not None:
            entries, size = step.before.entries, self.scope.page_size
            if grip.epoch != held.resets:
                return "stale_after_reset"
            if grip.prefix in entries:
                return "stale_cached_again"
            return "stale_in_part" if any(p in entries for p in path(grip.prefix, size)) else "stale"
        named = {
            ("OutOfSlots", "evict"): "refused_eviction",
            ("OutOfSlots", "allocate"): "refused_allocation",
            ("NotLocked", "unlock"): "double_unlock",
            ("NotLocked", "cache_finished"): "not_locked",
            ("NotLocked", "cache_unfinished"): "not_locked",
        }
        single = {"UnknownSlot": "unknown_slot", "NotHeld": "not_held", "InvalidArgument": "malformed"}
        return named.get((error, name)) or single.get(error, error)

    def fingerprint(self) -> Any:
        # Clocks become ranks, and only where they can decide something: among pages without locks. Which page it is
        # decides nothing, so pages are left out; nor which token or handle it is, so states that differ by renaming
        # those are one state, in which all tokens and handles are tried. Handles that a reset made stale are all alike.
        view, held = self.view, self.held
        unlocked = sorted({held.used[p] for p, (_, locks) in view.entries.items() if not locks})
        rank = {used: i for i, used in enumerate(unlocked)}
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

    def _locked(self) -> list[str]:
        return [name for name, grip in self.held.grips.items() if grip.locks]

    def _locked_once(self) -> list[str]:
        return [name for name, grip in self.held.grips.items() if grip.locks == 1]

    def _useless(self, name: str) -> bool:
        grip = self.held.grips[name]
        return not grip.locks or not is_live(grip, self.view.entries, self.held)

    def _name(self, pick: Pick) -> str:
        grips = self.held.grips
        return pick([name for name in self._names() if name not in grips or not grips[name].locks])

    def _names(self) -> list[str]:
        return [f"h{i}" for i in range(min(self.scope.handles, len(self.held.grips) + 1))]

    def _amount(self, pick: Pick, pages: int) -> int:
        """Tokens of 0 to one page more than there are, around multiples of the page."""
        size = self.scope.page_size
        if self.scope.exhaustive:
            amounts: list[int] = sorted({1, *range(0, (pages + 1) * size + 1, size)})
            return pick(amounts)
        k = pick([*(k for k in (2, 1, 3, pages) if 0 < k <= pages), pages + 1, 0])
        return max(0, k * size - pick((0, size - 1) if size > 1 else (0,)))

    def _rather_insert(self, pick: Pick) -> bool:
        return bool(self.held.slots) and not self.scope.exhaustive and pick((True, True, True, False))

    def _insert(self, pick: Pick, handle: str | None) -> Op:
        return self._caching("insert_prefix", pick, handle)

    def _caching(self, operation: str, pick: Pick, handle: str | None) -> Op:
        """A caching call, or first the slots for it."""
        room = self.view.free or self.view.order
        if room and not self.held.slots and not self.scope.exhaustive and pick((True, True, True, False)):
            return Op("allocate", n=pick((3, 2, 1, 5)) * self.scope.page_size)
        return Op(operation, tokens=self._computed(pick, handle), handle=handle)

    def _computed(self, pick: Pick, handle: str | None) -> list[int]:
        """A sequence that begins with what the handle matched and for the rest of which enough slots are held."""
        scope, size = self.scope, self.scope.page_size
        matched = self.held.grips[handle].prefix if handle else ()
        room = max(len(matched), min(scope.longest, len(matched) + len(self.held.slots)))
        if scope.exhaustive:
            every = _all_sequences(scope.tokens, room, size)
            return list(pick([s for s in every if s[: len(matched)] == matched]))
        others = [p for p in self.view.entries if len(matched) < len(p) and p[: len(matched)] == matched]
        extend = pick((True, False)) if others else False
        base = list(pick(others)) if extend else list(matched)
        base = base[:room]
        return base + [pick(scope.tokens) for _ in range(_length(pick, room - len(base), size))]

    def _longer(self, handle: str | None, by: int) -> list[int]:
        """What the handle names, and so many tokens behind it."""
        return list(self.held.grips[handle].prefix if handle else ()) + [self.scope.tokens[-1]] * by

    def _sequence(self, pick: Pick) -> list[int]:
        scope = self.scope
        if scope.exhaustive:
            return list(pick(_all_sequences(scope.tokens, scope.longest, scope.page_size)))
        size = scope.page_size
        locked = [g.prefix[:-size] for g in self.held.grips.values() if g.locks and len(g.prefix) > size]
        revisit = pick((True, False, False)) if locked else False
        if revisit:
            return list(pick(locked))
        entries = list(self.view.entries)
        fresh = pick((False, True, False, False)) if entries else True
        if fresh:
            return [pick(scope.tokens) for _ in range(max(1, _length(pick, scope.longest, size)))]
        base = list(pick(entries))
        if pick((False, True)):
            base = base[: 1 + _length(pick, len(base) - 1, size)]
        return base + [pick(scope.tokens) for _ in range(_length(pick, scope.longest - len(base), size))]


def _whole(tokens: int, page_size: int) -> int:
    """Slots of the whole pages that so many tokens take."""
    return -(-tokens // page_size) * page_size


def _length(pick: Pick, most: int, page_size: int) -> int:
    """From 0 to `most`, around multiples of the page."""
    if most <= 0:
        return 0
    pages = most // page_size
    return max(0, min(most, pick((1, 2, 1, pages, 0)) * page_size + pick((0, 0, 0, 1, -1))))


def _plain(slots: Any) -> tuple[int, ...]:
    """The slots of an answer; the answer is overwritten: a target that still uses it shows."""
    plain = tuple([int(slot) for slot in slots])
    _scribble(slots)
    return plain


def _ints(slots: Any) -> list[int]:
    return [int(slot) for slot in slots]


def _scribble(sequence: Any) -> None:
    try:
        for i in range(len(sequence)):
            sequence[i] = SCRIBBLE
    except (TypeError, ValueError):
        return


def _spoilt(slots: list[int], spoil: str, view: View, held: Held) -> list[int]:
    """Slots that the caller must not name, whole pages where that is not what is wrong."""
    size = held.page_size
    if spoil == "short":
        return slots[:-1] if slots else [0] * (size - 1)
    kept = slots[: len(slots) - size]
    last = {
        "unknown": [held.total + i for i in range(size)],
        "free": view.free[:size] or [i for slots, _ in list(view.entries.values())[:1] for i in slots],
        "twice": slots[-2 * size : -size] or list(held.slots[:size]) or list(range(size)),
        "across": slots[-size:][::-1] if size > 1 else [-1],
    }[spoil]
    return kept + last


def _without(slots: Sequence[int], gone: Iterable[int]) -> tuple[int, ...]:
    lost = set(gone)
    return tuple([slot for slot in slots if slot not in lost])


def _taken_from(given: Sequence[int], found: Sequence[int], matched: int) -> int:
    """The length up to which a request has been given other slots than its own."""
    pairs = list(zip(found, given, strict=False))
    others = [i for i in range(matched, len(pairs)) if pairs[i][0] != pairs[i][1]]
    return others[-1] + 1 if others else matched


def _after_match(held: Held, op: Op, outcome: tuple[int, tuple[int, ...]]) -> Held:
    length, slots = outcome
    prefix = tuple(op.args["tokens"][:length])
    grip = Grip(prefix, slots, 0, held.born.get(prefix, 0), held.resets)
    used = {**held.used, **dict.fromkeys(path(prefix, held.page_size), held.clock)}
    return held._replace(grips={**held.grips, op.args["handle"]: grip}, used=used)


def _locked(held: Held, name: str, by: int) -> Held:
    grip = held.grips[name]
    return held._replace(grips={**held.grips, name: grip._replace(locks=grip.locks + by)})


def _unlocked(held: Held, name: str) -> Held:
    """A lock less, and its path used once more, after what the same operation has used."""
    held = _locked(held, name, -1)
    clock = held.clock + 1
    used = {**held.used, **dict.fromkeys(path(held.grips[name].prefix, held.page_size), clock)}
    return held._replace(used=used, clock=clock)


@functools.cache
def _all_sequences(tokens: tuple[int, ...], longest: int, page_size: int) -> list[Prefix]:
    """Every sequence of whole pages, each also with 1 to page_size - 1 tokens behind it."""
    wholes = range(0, longest + 1, page_size)
    rests = [(n, min(page_size - 1, longest - n)) for n in wholes]
    every = ((p, most) for n, most in rests for p in itertools.product(tokens, repeat=n))
    return [p + tokens[:1] * i for p, most in every for i in range(most + 1)]


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
