"""kv_manager in blocks with groups: one walk finds the prefix that full, window, chunked and state groups all serve."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from kvlockstep.impl.kv_manager.grouped.announcer import Announcer
from kvlockstep.impl.kv_manager.grouped.pools import GroupPool
from kvlockstep.impl.kv_manager.grouped.prefixes import Prefix, PrefixIndex
from kvlockstep.impl.kv_manager.grouped.request import DueCopy, Request
from kvlockstep.impl.slots import slots_of
from kvlockstep.reference.kv_manager.events import Event
from kvlockstep.reference.kv_manager.groups.contract import Group, Step, needed


class GroupedBlockManager:
    """Groups `groups` in `pools`, blocks by name. Meets KVManagerTarget with groups; events are for its subclass.

    Trick: prefixes are one chain for all groups, so a lookup costs one dict access per step, however many groups there
    are; windows slide by an index, so a commit costs what it frees.
    """

    chunk = extra_key = copies_at_reserve = frees_window = True
    can_withdraw = can_fork = can_reset = can_evict_all = True
    hash_trust = "tokens+parent"
    event_listener: str | None = None

    def __init__(self, groups: tuple[Group, ...], pools: Mapping[str, int]) -> None:
        self.groups = groups
        self.block_size = groups[0].block_size
        self.pools = dict(pools) if len(pools) > 1 else None
        self.total = pools[groups[0].pool] * self.block_size
        self._blocks = dict(pools)
        self._attention = [g for g, group in enumerate(groups) if group.kind != "state"]
        self._states = [g for g, group in enumerate(groups) if group.kind == "state"]
        self._windows = [g for g in self._attention if groups[g].kind != "full"]
        self._step = math.gcd(*(group.block_size for group in groups))
        self.reset()

    def reset(self) -> None:
        """Ends every request and forgets everything cached."""
        self._index = PrefixIndex(self.groups, self._step)
        self._announcer = Announcer(self.groups, self._index.per_block) if self.event_listener else None
        self._pools = {name: GroupPool(n, self._index, self._announcer) for name, n in self._blocks.items()}
        self._pool = [self._pools[group.pool] for group in self.groups]
        self._publish = [(g, self._index.per_block[g], self._pool[g].publish) for g in self._attention]
        self._live: dict[str, Request] = {}
        self._due: list[DueCopy] = []

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        """Pins the longest prefix that every group serves, and owns blocks for `n` tokens more."""
        known = array("q", tokens)
        chain, cached = self._index.lookup(known.tobytes(), self._step * known.itemsize, extra_key)
        prefix = chain[-1] if chain else self._index.root(extra_key)
        request = Request(known, prefix, len(chain), cached, len(self.groups))
        hit: Counter[str] = Counter()
        for g, group in enumerate(self.groups):
            blocks = self._hit(request, g, chain)
            hit[group.pool] += self._pool[g].idle_among(blocks)
        n = min(n, len(tokens) - cached)
        need = self._need(request, n)
        if any(need[name] > pool.room - hit[name] for name, pool in self._pools.items()):
            self._index.forget(prefix)
            return None
        prefix.users += 1
        for g, pool in enumerate(self._pool):
            pool.hold(self._held(request, g))
        self._live[rid] = request
        self._grow(rid, request, n)
        return cached

    def append(self, rid: str, token: int) -> None:
        """One more token is known."""
        self._live[rid].tokens.append(token)

    def reserve(self, rid: str, n: int) -> bool:
        """Takes blocks for the next `n` tokens; a shared block that they start in is copied first."""
        request = self._live[rid]
        need = self._need(request, n)
        if any(need[name] > pool.room for name, pool in self._pools.items()):
            return False
        request.kept = [len(table) for table in request.tables]
        self._grow(rid, request, n)
        return True

    def copies(self) -> list[tuple[Any, ...]]:
        """The block copies of this step's copy-on-writes."""
        if self.pools:
            return [(self.groups[due.g].pool, due.source, due.target) for due in self._due]
        return [(due.source, due.target) for due in self._due]

    def launch(self) -> None:
        """The copies have run: their sources may go."""
        for due in self._due:
            self._pool[due.g].release((due.source,))
        self._due.clear()

    def withdraw(self, rid: str) -> None:
        """Takes back the request's admission or reservation of this step."""
        request = self._live[rid]
        if request.kept is None:
            self.finish(rid)
            return
        for due in [due for due in self._due if due.rid == rid]:
            request.tables[due.g][due.place] = due.source
            self._pool[due.g].release((due.target,))
            self._due.remove(due)
        for g, pool in enumerate(self._pool):
            kept, state = request.kept[g], request.states[g]
            pool.release([block for block in request.tables[g][kept:] if block is not None])
            pool.release([block for block in request.saves[g].values() if block != state])
            del request.tables[g][kept:]
            request.saves[g] = {}

    def slots(self, rid: str, group: int) -> list[int | None]:
        """The slots of the request's blocks in a group, None for those that are gone."""
        request, size = self._live[rid], self.groups[group].block_size
        table, slid = request.tables[group], request.slid[group]
        held = slots_of([block for block in table[slid:] if block is not None], size)
        return [*[None] * (slid * size), *held]

    def held(self, rid: str, group: int) -> list[int]:
        """The blocks that the request holds in a group."""
        return self._held(self._live[rid], group)

    def state(self, rid: str, group: int) -> Step:
        """Where this step reads the state of the request, and where it saves it."""
        request = self._live[rid]
        return Step(request.states[group], list(request.saves[group].items()))

    def commit(self, rid: str, n: int) -> None:
        """`n` tokens more are computed: what they complete is published, and windows slide."""
        request = self._live[rid]
        request.computed += n
        step, longer, prefix = self._step, self._index.longer, request.prefix
        steps, tokens = request.computed // step, request.tokens
        published = [(g, per, publish, request.tables[g]) for g, per, publish in self._publish]
        for number in range(request.steps + 1, steps + 1):
            prefix = longer(prefix, tokens[(number - 1) * step : number * step].tobytes())
            blocks = prefix.blocks
            for g, per, publish, table in published:
                if blocks[g] is None and number % per == 0 and (block := table[number // per - 1]) is not None:
                    publish(block, prefix, g)
        prefix.users += 1
        self._index.leave(request.prefix)
        request.prefix, request.steps = prefix, steps
        for g in self._states:
            self._keep_state(request, g)
        for g in self._windows:
            self._slide(request, g)

    def finish(self, rid: str) -> None:
        """Releases the request's blocks, the end of a prefix first; what is published stays until it is taken."""
        request = self._live.pop(rid)
        for g, pool in enumerate(self._pool):
            pool.release(self._held(request, g))
        self._index.leave(request.prefix)

    def abort(self, rid: str) -> None:
        """Releases what the request holds."""
        self.finish(rid)

    def preempt(self, rid: str) -> None:
        """Releases what the request holds; what it computed may still be published when it comes back."""
        self.finish(rid)

    def fork(self, rid: str, child: str) -> list[tuple[Any, ...]] | None:
        """The child shares every attention block, and gets a copy of each state."""
        parent = self._live[rid]
        states = [(g, state) for g, state in enumerate(parent.states) if state is not None]
        need = Counter(self.groups[g].pool for g, _ in states)
        if any(need[name] > pool.room for name, pool in self._pools.items()):
            return None
        forked = Request(parent.tokens[:], parent.prefix, parent.steps, parent.computed, len(self.groups))
        forked.slid = parent.slid.copy()
        forked.prefix.users += 1
        for g in self._attention:
            forked.tables[g] = parent.tables[g][: -(-parent.computed // self.groups[g].block_size)]
            self._pool[g].hold(self._held(forked, g))
        copies: list[tuple[Any, ...]] = []
        for g, source in states:
            (target,) = self._pool[g].take(1)
            forked.states[g] = target
            copies.append((self.groups[g].pool, source, target) if self.pools else (source, target))
        self._live[child] = forked
        return copies

    def evict_all(self) -> None:
        """Drops every published block that no request holds."""
        for pool in self._pools.values():
            pool.evict_all()

    def avail(self, pool: str = "") -> int:
        """Free blocks of a pool, blank or published."""
        return self._named(pool).room

    def free_now(self, pool: str = "") -> int:
        """Blank blocks of a pool."""
        return len(self._named(pool).blank)

    def free_slots(self, pool: str = "") -> Iterable[int] | None:
        """The blank blocks of a pool."""
        return self._named(pool).blank.copy()

    def _named(self, pool: str) -> GroupPool:
        return self._pools[pool or self.groups[0].pool]

    def _held(self, request: Request, g: int) -> list[int]:
        state, saves = request.states[g], request.saves[g]
        if g in self._states:
            return list(dict.fromkeys([*([] if state is None else [state]), *saves.values()]))
        return [block for block in request.tables[g][request.slid[g] :] if block is not None]

    def _hit(self, request: Request, g: int, chain: list[Prefix]) -> list[int]:
        """Puts the blocks that the group reads of a hit into the request, and returns them."""
        group, cached = self.groups[g], request.computed
        if group.kind == "state":
            state = request.states[g] = chain[-1].blocks[g] if chain else None
            return [] if state is None else [state]
        reads = needed(group, cached, cached)
        slid = request.slid[g] = reads.start // group.block_size
        places = range(slid, cached // group.block_size if reads else slid)
        request.tables[g] = [*[None] * slid, *self._index.blocks_at(chain, g, places)]
        return self._held(request, g)

    def _need(self, request: Request, n: int) -> Counter[str]:
        """How many blocks of each pool the next `n` tokens take."""
        need: Counter[str] = Counter()
        end = request.computed + n
        for g in self._attention:
            group = self.groups[g]
            missing = -(-end // group.block_size) - len(request.tables[g])
            need[group.pool] += max(0, missing) + (self._shared(request, g) is not None)
        for g in self._states:
            need[self.groups[g].pool] += len(request.stops(n)) - self._goes_on_in_place(request, g)
        return need

    def _grow(self, rid: str, request: Request, n: int) -> None:
        """Takes what `_need` has counted."""
        end = request.computed + n
        for g in self._attention:
            pool, table, size = self._pool[g], request.tables[g], self.groups[g].block_size
            if (source := self._shared(request, g)) is not None:
                place = request.computed // size
                (target,) = table[place : place + 1] = pool.take(1)
                self._due.append(DueCopy(rid, g, place, source, target))
            table += pool.take(-(-end // size) - len(table))
        for g in self._states:
            stops, state = request.stops(n), request.states[g]
            own = [state] if state is not None and self._goes_on_in_place(request, g) else []
            request.saves[g] = dict(zip(stops, own + self._pool[g].take(len(stops) - len(own)), strict=True))

    def _goes_on_in_place(self, request: Request, g: int) -> bool:
        state = request.states[g]
        return state is not None and self._pool[g].owned(state)

    def _shared(self, request: Request, g: int) -> int | None:
        """The block of the next position, if it has more than one holder."""
        place, table = request.computed // self.groups[g].block_size, request.tables[g]
        block = table[place] if place < len(table) else None
        return block if block is not None and self._pool[g].holders[block] > 1 else None

    def _keep_state(self, request: Request, g: int) -> None:
        """Keeps the state behind the last accepted token; on the grid it is published."""
        held, pool = self._held(request, g), self._pool[g]
        state = request.states[g] = request.saves[g][request.computed]
        request.saves[g] = {}
        pool.release([block for block in held if block != state])
        if request.computed % self.groups[g].block_size == 0:
            pool.publish(state, request.prefix, g)

    def _slide(self, request: Request, g: int) -> None:
        """Releases the blocks in front of everything that the next forward reads."""
        group, table = self.groups[g], request.tables[g]
        first = min(needed(group, request.computed, request.computed).start // group.block_size, len(table))
        for place in range(request.slid[g], first):
            block, table[place] = table[place], None
            if block is not None:
                self._pool[g].release((block,))
        request.slid[g] = max(first, request.slid[g])


class AnnouncingBlockManager(GroupedBlockManager):
    """A GroupedBlockManager that keeps its events until somebody asks for them."""

    event_listener = "set"

    def events(self) -> list[Event]:
        """Returns the blocks published and evicted since the last call, in order, under the number of their prefix."""
        return self._announcer.told() if self._announcer is not None else []
