"""kv_manager with groups: the simplest manager that keeps every rule of the contract for several kinds of KV.

As in the reference with one group, a full block of computed tokens is published under the whole sequence up to its end.
A state is written in place until the grid publishes it; then the request goes on in another block.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvlockstep.reference.kv.shape import blocks_for
from kvlockstep.reference.kv_manager.groups.contract import Step, needed
from kvlockstep.reference.kv_manager.groups.pool import Pool
from kvlockstep.reference.kv_manager.groups.request import Request
from kvlockstep.reference.kv_manager.groups.tables import GroupTables


class GroupedManager(GroupTables):
    """Meets the contract with the trait `groups`, and every optional method but withdrawals and events."""

    chunk = extra_key = copies_at_reserve = frees_window = True
    can_fork = can_reset = can_evict_all = True
    hash_trust = "tokens+parent"

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = self._lookup(tokens, extra_key)
        request = self._hit(tokens, extra_key, cached)
        n = min(n, len(tokens) - cached)
        need, hit = self._need(request, n), [request.held(g) for g in range(len(self.groups))]
        for name, pool in self._pools.items():
            of_pool = [block for g, blocks in enumerate(hit) if self.groups[g].pool == name for block in blocks]
            if need[name] > pool.room(of_pool):
                return None
        for g, blocks in enumerate(hit):
            for block in blocks:
                self._pool(g).hold(block)
        self._live[rid] = request
        self._grow(request, n)
        return cached

    def append(self, rid: str, token: int) -> None:
        self._live[rid].tokens.append(token)

    def reserve(self, rid: str, n: int) -> bool:
        request = self._live[rid]
        need = self._need(request, n)
        if any(need[name] > pool.room() for name, pool in self._pools.items()):
            return False
        self._grow(request, n)
        return True

    def copies(self) -> list[tuple[Any, ...]]:
        return [due if self.pools else due[1:] for due in self._due]

    def launch(self) -> None:
        for name, source, _ in self._due:
            self._pools[name].drop(source)
        self._due.clear()

    def slots(self, rid: str, group: int) -> list[int | None]:
        size, table = self.groups[group].block_size, self._live[rid].tables[group]
        slots: list[int | None] = []
        for block in table:
            slots += size * [None] if block is None else range(block * size, (block + 1) * size)
        return slots

    def held(self, rid: str, group: int) -> Iterable[int]:
        return self._live[rid].held(group)

    def state(self, rid: str, group: int) -> Step:
        request = self._live[rid]
        return Step(request.states[group], list(request.saves[group].items()))

    def commit(self, rid: str, n: int) -> None:
        request = self._live[rid]
        before, request.computed = request.computed, request.computed + n
        for g, group in enumerate(self.groups):
            if group.kind == "state":
                self._keep_state(g, request)
                continue
            for place in range(before // group.block_size, request.computed // group.block_size):
                if (block := request.tables[g][place]) is not None:
                    self._publish(g, request, place, block)
            self._slide(g, request)

    def _publish(self, g: int, request: Request, place: int, block: int) -> None:
        self._pool(g).publish(self._key(g, request.tokens, request.extra_key, place), block)

    def _keep_state(self, g: int, request: Request) -> None:
        """Keeps the state behind the last accepted token, and publishes it on the grid."""
        size, held = self.groups[g].block_size, request.held(g)
        state = request.states[g] = request.saves[g][request.computed]
        request.saves[g] = {}
        for block in held:
            if block != state:
                self._pool(g).drop(block)
        if request.computed % size == 0:
            self._publish(g, request, request.computed // size - 1, state)

    def _slide(self, g: int, request: Request) -> None:
        """Drops the blocks in front of everything that the next forward reads."""
        group, table = self.groups[g], request.tables[g]
        first = needed(group, request.computed, request.computed).start // group.block_size
        for place, block in enumerate(table[:first]):
            if block is not None:
                table[place] = None
                self._pool(g).drop(block)

    def finish(self, rid: str) -> None:
        request = self._live.pop(rid)
        for g in range(len(self.groups)):
            for block in reversed(request.held(g)):
                self._pool(g).drop(block)

    def abort(self, rid: str) -> None:
        self.finish(rid)

    def preempt(self, rid: str) -> None:
        self.finish(rid)

    def fork(self, rid: str, child: str) -> list[tuple[Any, ...]] | None:
        parent = self._live[rid]
        copied = [g for g, state in enumerate(parent.states) if state is not None]
        if any(sum(self.groups[g].pool == name for g in copied) > pool.room() for name, pool in self._pools.items()):
            return None
        forked = Request(list(parent.tokens), parent.extra_key, parent.computed)
        copies: list[tuple[Any, ...]] = []
        for g, group in enumerate(self.groups):
            forked.tables.append(parent.tables[g][: blocks_for(parent.computed, group.block_size)])
            for block in forked.tables[g]:
                if block is not None:
                    self._pool(g).hold(block)
            forked.states.append(self._pool(g).take() if g in copied else None)
            forked.saves.append({})
            copies += [(group.pool, parent.states[g], forked.states[g])] if g in copied else []
        self._live[child] = forked
        return copies if self.pools else [pair[1:] for pair in copies]

    def evict_all(self) -> None:
        for pool in self._pools.values():
            for block in list(pool.idle):
                pool.evict(block)

    def avail(self, pool: str = "") -> int:
        return self._named(pool).room()

    def free_now(self, pool: str = "") -> int:
        return len(self._named(pool).free)

    def free_slots(self, pool: str = "") -> Iterable[int] | None:
        return list(self._named(pool).free)

    def _named(self, pool: str) -> Pool:
        return self._pools[pool or self.groups[0].pool]
