"""Variants of kv_manager: managers that keep the contract in a way of their own. No law may blame them."""

from __future__ import annotations

import re
from typing import Any

from kvlockstep.impl.variants.fetching import FETCHING_VARIANTS
from kvlockstep.impl.variants.group_loading import GROUP_LOADING_VARIANTS
from kvlockstep.impl.variants.groups import GROUP_VARIANTS
from kvlockstep.impl.variants.loading import LOADING_VARIANTS
from kvlockstep.reference.kv_manager.contract import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvlockstep.reference.kv_manager.manager import Key, KVManager, Request


class LastFreedFirst(KVManager):
    """Takes the block that was freed last."""

    def _take(self, n: int) -> list[int]:
        self._free.reverse()
        taken = super()._take(n)
        self._free.reverse()
        return taken


class EvictsMostRecent(KVManager):
    """Evicts the idle block that was released last."""

    def _take(self, n: int) -> list[int]:
        self._idle = dict(reversed(self._idle.items()))
        taken = super()._take(n)
        self._idle = dict(reversed(self._idle.items()))
        return taken


class FlushesUnderPressure(KVManager):
    """Evicts every idle block as soon as one is needed."""

    def _take(self, n: int) -> list[int]:
        if n > len(self._free):
            self.evict_all()
        return super()._take(n)


class CachesNothingOnAbort(KVManager):
    """Drops what an aborted request had published."""

    def abort(self, rid: str) -> None:
        table = self._live[rid].table
        super().abort(rid)
        for block in table:
            if block in self._idle:
                self._evict(block)


class HitsHalf(KVManager):
    """Uses only half of the blocks of a long hit."""

    def _lookup(self, tokens: list[int], extra_key: int | None) -> list[int]:
        hit = super()._lookup(tokens, extra_key)
        return hit if len(tokens) < 7 * self.block_size else hit[: (len(hit) + 1) // 2]


class PublishesAtFinish(KVManager):
    """Publishes the blocks of a request only when it finishes."""

    def commit(self, rid: str, n: int) -> None:
        request = self._live[rid]
        request.computed += n
        request.base = list(request.table)

    def finish(self, rid: str) -> None:
        request = self._live[rid]
        computed, request.computed = request.computed, 0
        KVManager.commit(self, rid, computed)
        super().finish(rid)


class PublishesAtAdmission(KVManager):
    """Publishes a prompt at admission, so an equal prompt of the same step can hit it (rule 2)."""

    early_publish = True
    can_withdraw = False

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached is not None:
            self._publish(self._live[rid], cached, min(cached + n, len(tokens)))
        return cached

    def _publish(self, request: Request, start: int, stop: int) -> None:
        for i in range(start // self.block_size, stop // self.block_size):
            key = (request.extra_key, tuple(request.tokens[: (i + 1) * self.block_size]))
            if key not in self._cached:
                self._cached[key] = request.table[i]
                self._key_of[request.table[i]] = key


class SwapsDuplicates(KVManager):
    """Replaces a duplicate at commit by the block that is published already (rule 3)."""

    def commit(self, rid: str, n: int) -> None:
        request = self._live[rid]
        published = request.computed // self.block_size
        super().commit(rid, n)
        for i in range(published, request.computed // self.block_size):
            block = self._cached[(request.extra_key, tuple(request.tokens[: (i + 1) * self.block_size]))]
            if block != request.table[i]:
                self._hold(block)
                self._drop(request.table[i])
                request.table[i] = block
        request.base = list(request.table)


class CopiesAtFork(KVManager):
    """Copies the partial block at the fork instead of at the next write."""

    copies_at_reserve = False

    def fork(self, rid: str, child: str) -> list[tuple[int, int]] | None:
        parent = self._live[rid]
        size, full = self.block_size, parent.computed // self.block_size
        partial = self._blocks_for(parent.computed) - full
        if partial > len(self._free) + len(self._idle):
            return None
        for block in parent.table[:full]:
            self._hold(block)
        table = parent.table[:full] + self._take(partial)
        self._live[child] = Request(list(parent.tokens), parent.extra_key, table, parent.computed, list(table))
        pairs = zip(parent.table[full : full + partial], table[full:], strict=True)
        return [(s * size + i, t * size + i) for s, t in pairs for i in range(parent.computed % size)]


class SourceFreedEarly(KVManager):
    """Releases the source of a pending copy before the copy runs, in the same step (rule 10)."""

    def reserve(self, rid: str, n: int) -> bool:
        before = len(self._due)
        accepted = super().reserve(rid, n)
        for _, source, _ in self._due[before:]:
            self._drop(source)
        return accepted

    can_withdraw = False

    def launch(self) -> None:
        self._due.clear()


class OwnsWholePrompt(KVManager):
    """Takes the blocks of the whole prompt at admission, whatever the first chunk."""

    whole_prompt = True

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        return super().admit(rid, tokens, extra_key, len(tokens))


class GivesBackRejectedTail(KVManager):
    """Frees the blocks behind rejected drafts at commit."""

    def commit(self, rid: str, n: int) -> None:
        super().commit(rid, n)
        request = self._live[rid]
        keep = self._blocks_for(max(request.computed, 1))
        for block in reversed(request.table[keep:]):
            self._drop(block)
        del request.table[keep:]
        request.base = list(request.table)


class FreesLater(KVManager):
    """Frees a finished request's blocks at the next admission or reservation; avail counts them before."""

    can_withdraw = can_fork = can_evict_all = False

    def reset(self) -> None:
        super().reset()
        self._later: list[list[int]] = []

    def finish(self, rid: str) -> None:
        self._later.append(self._live.pop(rid).table)

    def _sort_out(self) -> None:
        for table in self._later:
            for block in reversed(table):
                self._drop(block)
        self._later.clear()

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        self._sort_out()
        return super().admit(rid, tokens, extra_key, n)

    def reserve(self, rid: str, n: int) -> bool:
        self._sort_out()
        return super().reserve(rid, n)

    def avail(self) -> int:
        live = {block for request in self._live.values() for block in request.table}
        return (self._blocks - len(live)) * self.block_size

    def free_slots(self) -> Any:
        return None


class OffsetNumbers(KVManager):
    """Numbers blocks from 5 on, and returns numpy integers and tuples."""

    def __init__(self, blocks: int, block_size: int) -> None:
        import numpy  # noqa: PLC0415  the other variants do without

        self._numpy = numpy
        super().__init__(blocks, block_size)

    def slots(self, rid: str) -> Any:
        return tuple(self._numpy.int64(slot + 5 * self.block_size) for slot in super().slots(rid))

    def copies(self) -> Any:
        shift = 5 * self.block_size
        return tuple((source + shift, target + shift) for source, target in super().copies())

    def free_slots(self) -> Any:
        return {slot + 5 * self.block_size for slot in super().free_slots() or ()}

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> Any:
        cached = super().admit(rid, tokens, extra_key, n)
        return None if cached is None else self._numpy.int64(cached)

    def reserve(self, rid: str, n: int) -> Any:
        return self._numpy.bool_(super().reserve(rid, n))


class ByToken(KVManager):
    """Manages single tokens, whatever block size it is given."""

    def __init__(self, blocks: int, block_size: int) -> None:
        super().__init__(blocks * block_size, 1)


class OneTokenADecode(KVManager):
    """Supports no drafts, no chunks and no extra keys."""

    tokens_per_decode = 1
    chunk = False
    extra_key = False


class AlignedChunks(KVManager):
    """Wants chunks of an even number of tokens."""

    chunk_align = 2


class ShortRequests(KVManager):
    """Limits requests to 12 tokens."""

    max_length = 12


class KeepsAhead(KVManager):
    """Takes one block ahead, even past the longest request, and declares it as lookahead."""

    lookahead_blocks = 1
    can_withdraw = can_fork = False

    def __init__(self, blocks: int, block_size: int) -> None:
        super().__init__(blocks, block_size)
        self.max_length = max(block_size, blocks * block_size // 2)

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached is not None:
            self._take_ahead(rid)
        return cached

    def reserve(self, rid: str, n: int) -> bool:
        before = len(self._live[rid].table)
        accepted = super().reserve(rid, n)
        if accepted and len(self._live[rid].table) > before:
            self._take_ahead(rid)
        return accepted

    def _take_ahead(self, rid: str) -> None:
        if self._free:
            self._live[rid].table += self._take(1)


class NamesNoFreeSlots(KVManager):
    """Does not say which slots are free."""

    def free_slots(self) -> Any:
        return None


class Announces(KVManager):
    """Sends events under the keys of its own cache, and joins consecutive blocks in one event."""

    event_listener = "set"

    def reset(self) -> None:
        super().reset()
        self._events: list[Event] = [AllBlocksCleared()]

    def commit(self, rid: str, n: int) -> None:
        before = len(self._cached)
        super().commit(rid, n)
        for key in tuple(self._cached)[before:]:
            self._announce(key)

    def events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _evict(self, block: int) -> None:
        key = self._key_of[block]
        super()._evict(block)
        self._announce_removal(key)

    def _announce(self, key: Key) -> None:
        extra_key, tokens = key
        before = len(tokens) - self.block_size
        parent = (extra_key, tokens[:before]) if before else None
        self._say(BlockStored((key,), parent, tokens[before:], self.block_size, extra_key))

    def _say(self, event: BlockStored) -> None:
        last = self._events[-1] if self._events else None
        if isinstance(last, BlockStored) and last.keys[-1] == event.parent:
            self._events[-1] = last._replace(keys=last.keys + event.keys, tokens=last.tokens + event.tokens)
        else:
            self._events.append(event)

    def _announce_removal(self, key: Key) -> None:
        self._events.append(BlockRemoved((key,)))


class AnnouncesCopies(Announces):
    """Keeps and announces every copy of a block; a lookup hits it until the last copy is gone."""

    event_listener = "counting"

    def reset(self) -> None:
        super().reset()
        self._copies: dict[Key, list[int]] = {}

    def commit(self, rid: str, n: int) -> None:
        super().commit(rid, n)
        request = self._live[rid]
        for i in range((request.computed - n) // self.block_size, request.computed // self.block_size):
            block = request.table[i]
            key = (request.extra_key, tuple(request.tokens[: (i + 1) * self.block_size]))
            if block not in self._key_of:
                self._key_of[block] = key
                self._announce(key)
            self._copies.setdefault(key, [])
            if block not in self._copies[key]:
                self._copies[key].append(block)

    def _evict(self, block: int) -> None:
        key = self._key_of[block]
        self._copies[key].remove(block)
        self._cached[key] = block
        super()._evict(block)
        if self._copies[key]:
            self._cached[key] = self._copies[key][0]


VARIANTS: dict[str, Any] = (
    {
        re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower(): manager
        for name, manager in list(globals().items())
        if isinstance(manager, type) and issubclass(manager, KVManager) and manager is not KVManager
    }
    | GROUP_VARIANTS
    | GROUP_LOADING_VARIANTS
    | LOADING_VARIANTS
    | FETCHING_VARIANTS
)
"""Name to factory; LastFreedFirst is `last-freed-first`."""
