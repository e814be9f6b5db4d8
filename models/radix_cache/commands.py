"""Commands of radix_cache: requests that match, lock, allocate, cache and go; evictions; misuse."""

from __future__ import annotations

from kvlockstep.models.core.lazy_view import LazyViewModel
from kvlockstep.models.core.op import NotEnabled, Op, Pick, command
from kvlockstep.models.radix_cache.operations import OPERATIONS
from kvlockstep.models.radix_cache.scope import SCOPES, SMALL_SCOPES, RadixCacheScope
from kvlockstep.models.radix_cache.sequences import amount, any_sequence, computed_sequence
from kvlockstep.properties.radix_cache import Prefix, is_live

SPOILS = ("twice", "free", "unknown", "across", "short")
CACHINGS = ("cache_finished", "cache_unfinished")


class RadixCommands(LazyViewModel[RadixCacheScope]):
    """The commands, and how they choose handles and sequences."""

    scope_type = RadixCacheScope
    operations = OPERATIONS
    scopes = SCOPES
    small_scopes = SMALL_SCOPES

    @command(4)
    def serve(self, pick: Pick) -> Op:
        """Serves a request from its match to its end in one operation, or until it has locked its match."""
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
        return Op("allocate", n=amount(pick, self.scope, pages))

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
        """Caches the computed part of a running request; its new handle replaces the old one, or not."""
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
        return Op("evict", n=amount(pick, self.scope, pages))

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

    def _rather_insert(self, pick: Pick) -> bool:
        return bool(self.held.slots) and not self.scope.exhaustive and pick((True, True, True, False))

    def _insert(self, pick: Pick, handle: str | None) -> Op:
        return self._caching("insert_prefix", pick, handle)

    def _caching(self, operation: str, pick: Pick, handle: str | None) -> Op:
        """A caching call, or first the slots for it."""
        room = self.view.free or self.view.order
        if room and not self.held.slots and not self.scope.exhaustive and pick((True, True, True, False)):
            return Op("allocate", n=pick((3, 2, 1, 5)) * self.scope.page_size)
        tokens = computed_sequence(pick, self.scope, self.view.entries, self._matched(handle), len(self.held.slots))
        return Op(operation, tokens=tokens, handle=handle)

    def _longer(self, handle: str | None, by: int) -> list[int]:
        """Returns the tokens that the handle names, and more tokens behind them."""
        return list(self._matched(handle)) + [self.scope.tokens[-1]] * by

    def _matched(self, handle: str | None) -> Prefix:
        return self.held.grips[handle].prefix if handle else ()

    def _sequence(self, pick: Pick) -> list[int]:
        locked = [grip.prefix for grip in self.held.grips.values() if grip.locks]
        return any_sequence(pick, self.scope, self.view.entries, locked)
