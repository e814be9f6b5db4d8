"""Judge of a kv_manager with groups: the operations of ManagerJudge over tables by group and pools by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.kv_manager.groups import goals, reading, refusals
from kvlockstep.models.kv_manager.groups.answers import ManagerQuestions
from kvlockstep.models.kv_manager.groups.settling import settle
from kvlockstep.models.kv_manager.judge import ManagerJudge
from kvlockstep.models.requests.adapter import as_state, listed
from kvlockstep.models.requests.answers import Answer
from kvlockstep.models.requests.checks import Checks
from kvlockstep.models.requests.groups import in_flight
from kvlockstep.models.requests.groups.answers import copies_text
from kvlockstep.models.requests.groups.content import Place
from kvlockstep.models.requests.groups.memory import GroupMemory
from kvlockstep.models.requests.groups.occupied import occupied_in
from kvlockstep.models.requests.groups.own_memory import memory_of
from kvlockstep.models.requests.groups.places import GroupPlaces
from kvlockstep.models.requests.groups.progress import Progress
from kvlockstep.models.requests.groups.reading import copy
from kvlockstep.models.requests.groups.session import lacking, listening_to_groups, of_pool
from kvlockstep.models.requests.groups.settled import NOT_SETTLED, Occupied
from kvlockstep.models.requests.request import Request
from kvlockstep.models.requests.transfers.places import Block
from kvlockstep.properties.kv_manager import laws
from kvlockstep.properties.kv_manager import loading as laws_of_loads
from kvlockstep.properties.law import ERROR_CONTRACT, Law, counted
from kvlockstep.reference.kv_manager.groups.contract import Admitted, needed


class GroupedJudge(ManagerJudge):
    """`kv` is the KV memory, `groups` asks the manager.

    `seen` are the blocks of each pool that were ever held; `progress` keeps what the goals are about.
    """

    grouped = True
    unit = "block"
    reading: Sequence[Law[[Any]]] = ()

    def __init__(self, adapter: Any, ask: str, checks: Checks | None = None) -> None:
        super().__init__(adapter, memory_of, ask, checks)

    def prepare(self) -> None:
        self.groups = self.questions = ManagerQuestions(self.adapter, self.traits, self.checks, self.ask)
        if self.groups.rolling and self.traits.tiers:
            raise Divergence(ERROR_CONTRACT.id, "a rolling group has no blocks for a tier: declare no tiers")
        self.kv: GroupMemory = self.memory
        self.listening = listening_to_groups(self)
        self.seen: dict[str, set[int]] = {pool: set() for pool in self.groups.pools}
        self.progress = Progress(self.groups.groups, self.groups.pools, self.kv, self.goals_met)
        self.settled = NOT_SETTLED
        self.coming_back: set[str] = set()
        self.reading = (laws_of_loads.failure_visible, laws_of_loads.load_before_read) if self.transfers else ()

    def places_of_kv(self) -> GroupPlaces:
        groups = self.traits.groups
        pools = self.traits.pools or {groups[0].pool}
        return GroupPlaces(self.memory, pools, max(group.block_size for group in groups))

    @property
    def sizes(self) -> list[int]:
        return sorted({size for group in self.traits.groups for size in (group.block_size, group.reach) if size})

    def settle(self) -> None:
        settle(self)

    def spare(self, every: int) -> bool:
        return False

    def copies_of(self, method: Callable[..., Any], *args: Any) -> list[Any] | None:
        return self.groups.copies(method, *args)

    def copies_text(self, due: Sequence[Any]) -> str:
        return copies_text(due)

    def copy(self, due: Sequence[Any], when: str = "") -> None:
        copy(self, due)
        self.goals_met["copies"] += bool(due)

    def write_and_read(self) -> None:
        if self.ask != "late":
            in_flight.poison(self, self.groups.free())
        reading.write_and_read(self)

    def forward(self, accept: int | dict[str, int] | None, abort: Sequence[str], reverse: bool | None) -> Answer:
        before = self.goals_met["rejected_drafts"]
        scheduled = [self.live[name] for name in self.scheduled]
        drafted = [(r, r.computed, r.computed + r.pending) for r in scheduled if r.drafts]
        answer = super().forward(accept, abort, reverse)
        for request, start, stop in drafted:
            if request.name in self.live:
                self.progress.drafted(start, request.computed, stop)
        self.goals_met["state_behind_draft"] += self.goals_met["rejected_drafts"] > before and bool(self.groups.states)
        return answer

    def fork(self, name: str, child: str) -> Answer:
        answer = super().fork(name, child)
        self.goals_met["state_forked"] += bool(self.groups.states) and not answer.refused
        return answer

    def admit(self, name: str, tokens: Sequence[int], extra_key: int | None, n: int) -> Answer:
        answer = super().admit(name, tokens, extra_key, n)
        if name in self.live:
            self.progress.hit(self.live[name], resumed=False)
        return answer

    def resume(self, name: str, n: int) -> Answer:
        answer = super().resume(name, n)
        if name in self.live:
            self.progress.hit(self.live[name], resumed=True)
        elif name in self.loading:
            self.coming_back.add(name)
        return answer

    def ready(self, name: str) -> Answer:
        answer = super().ready(name)
        if name in self.live:
            self.progress.hit(self.live[name], resumed=name in self.coming_back)
        return answer

    def blocks_to_write(self, name: str) -> Iterable[Block]:
        request, tables = self.live[name], self.groups.tables([name])[name]
        positions = range(request.computed, request.computed + request.pending)
        for g, table in tables.items():
            size, slots = self.groups.groups[g].block_size, (table[p] for p in positions if p < len(table))
            yield from self._blocks_in(g, {slot // size for slot in slots if slot is not None})
        for g in self.groups.states:
            yield from self._blocks_in(g, [block for _, block in self.groups.state(name, g).saves])

    def blocks_copied(self, due: Sequence[Any]) -> Iterable[Block]:
        return [self.places.block(pool, target) for pool, _, target in due]

    def begins(self, name: str) -> None:
        if self.transfers is None:
            return
        hit, loaded = self.live[name].hit, self.transfers.loaded_for(name)
        tables, held = self.groups.tables([name])[name], self.groups.held([name])[name]
        blocks: dict[int, list[Place]] = {}
        for g, group in enumerate(self.groups.groups):
            if group.kind == "state":
                numbers = held[g] or self._state_source(name, g)
            else:
                table, positions = tables[g], needed(group, hit, hit)
                slots = (table[p] for p in positions if p < len(table))
                numbers = {slot // group.block_size for slot in slots if slot is not None}
            if hit and numbers:
                blocks[g] = [(group.pool, number) for number in numbers]
        in_flight.note_loaded(self, blocks, loaded)

    def _state_source(self, name: str, g: int) -> set[int]:
        """The block of the state that a launched request goes on from."""
        source = self.groups.state(name, g).source if name in self.scheduled else None
        return set() if source is None else {source}

    def admitted(self, answer: Any, n: int) -> tuple[Any, int]:
        if not isinstance(answer, Admitted):
            return answer, n
        self._check_cut("admit", answer.n, n)
        return answer.cached, answer.n

    def reserved(self, request: Request, answer: Any, n: int) -> int:
        if isinstance(answer, bool) or not isinstance(answer, int) or answer == n:
            return n
        if request.drafts:
            raise Divergence(
                ERROR_CONTRACT.id, f"reserve took {counted(answer, 'token')} of a decode with drafts, not all {n}"
            )
        self._check_cut("reserve", answer, n)
        return answer

    def check_refused_admission(self, request: Request, before: Any) -> None:
        refusals.check_admission(self, request, before)

    def check_refused_reservation(self, request: Request, n: int, before: Any, appended: bool) -> None:
        refusals.check_reservation(self, request, n, before, appended)

    def check_unchanged(self, before: Any, what: str) -> None:
        refusals.check_unchanged(self, before, what)

    def check_evicted(self) -> None:
        self.follow_transfers()
        occupied = self.occupied()
        limbo, free_now = in_flight.limbo_of(self, occupied), self.groups.free_now()
        for pool, total in self.groups.pools.items():
            found = occupied[pool]
            observed = free_now[pool], len(found.blocks), total, found.unsure + limbo[pool]
            self.checks.check(laws.eviction_complete, *observed, name=of_pool(self, pool))

    def check_reset(self) -> None:
        avail, free_now, limbo = self.groups.avail(), self.groups.free_now(), in_flight.limbo_of(self, {})
        for pool, total in self.groups.pools.items():
            observed = avail[pool], free_now[pool], total, limbo[pool]
            self.checks.check(laws.reset_complete, *observed, name=of_pool(self, pool))
        in_flight.reset(self)

    def occupied(self) -> dict[str, Occupied]:
        """What requests hold in each pool now, those included that wait for a load."""
        tables, held = self.groups.tables(self.holding()), self.groups.held(self.holding())
        return occupied_in(self, self.live, tables, held)

    def table_of(self, name: str) -> Any:
        groups = range(len(self.groups.groups))
        attention = set(self.groups.attention)
        return tuple(
            tuple(as_state(listed, self.adapter.slots if g in attention else self.adapter.held, name, g) or ())
            for g in groups
        )

    def lacking(self) -> dict[str, str]:
        return lacking(laws, self)

    def unreachable(self) -> set[str]:
        return goals.unreachable(self)

    def _blocks_in(self, g: int, numbers: Iterable[int]) -> Iterable[Block]:
        places: GroupPlaces = self.places
        return places.blocks(self.groups.groups[g].pool, numbers)

    def _check_cut(self, what: str, taken: int, n: int) -> None:
        if not self.traits.cuts_chunks or not 1 <= taken <= n:
            raise Divergence(ERROR_CONTRACT.id, f"{what} took {counted(taken, 'token')} of {n}")
        self.goals_met["chunk_cut"] += taken < n
