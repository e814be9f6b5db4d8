"""Judge of a kv_scheduler with groups: the operations of SchedulerJudge over tables by group and pools by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from kvlockstep.models.core.taking import taken
from kvlockstep.models.kv_scheduler.forward import start_item
from kvlockstep.models.kv_scheduler.groups import goals
from kvlockstep.models.kv_scheduler.groups.items import (
    Told,
    cells_read,
    cells_written,
    check_tables,
    hit_blocks,
)
from kvlockstep.models.kv_scheduler.groups.settling import settle
from kvlockstep.models.kv_scheduler.job import Job
from kvlockstep.models.kv_scheduler.judge import SchedulerJudge
from kvlockstep.models.kv_scheduler.session import blocks_of_longest
from kvlockstep.models.requests.adapter import as_state, listed
from kvlockstep.models.requests.answers import units_of
from kvlockstep.models.requests.groups import in_flight
from kvlockstep.models.requests.groups.answers import Copy, GroupQuestions, copies_text
from kvlockstep.models.requests.groups.memory import GroupMemory
from kvlockstep.models.requests.groups.places import GroupPlaces
from kvlockstep.models.requests.groups.progress import Progress
from kvlockstep.models.requests.groups.reading import copy, keep, read, read_state, save, write
from kvlockstep.models.requests.groups.session import lacking, listening_to_groups, of_pool
from kvlockstep.models.requests.groups.settled import NOT_SETTLED
from kvlockstep.models.requests.transfers.delivery import Owed
from kvlockstep.models.requests.transfers.places import Block
from kvlockstep.models.requests.transfers.traits import TransferTraits
from kvlockstep.models.requests.transfers.transfers import Transfers
from kvlockstep.properties import kv_scheduler as laws
from kvlockstep.reference.kv.memory import VOID
from kvlockstep.reference.kv_manager.groups.contract import owed
from kvlockstep.reference.kv_scheduler.contract import Item


class GroupedSchedulerJudge(SchedulerJudge):
    """`kv` is the KV memory, `groups` asks the scheduler.

    `seen` are the blocks of each pool that were ever held; `progress` keeps what the goals are about. `told` has what
    the worker was told with the last item of each request, `most_blocks` the longest table of each attention group.
    """

    grouped = True

    def prepare(self) -> None:
        traits = self.traits
        self.groups = GroupQuestions(self.adapter, traits)
        self.kv = GroupMemory(traits.groups, self.goals_met)
        self.seen: dict[str, set[int]] = {pool: set() for pool in self.groups.pools}
        self.progress = Progress(self.groups.groups, self.groups.pools, self.kv, self.goals_met)
        self.settled = NOT_SETTLED
        self.told: dict[str, Told] = {}
        self.most_blocks = self._most_blocks()
        self.places = GroupPlaces(self.kv, self.groups.pools, max(group.block_size for group in traits.groups))
        if traits.tiers:
            known = TransferTraits.of(traits)
            self.transfers = Transfers(self.adapter, known, self.places, self.checks, self.goals_met)
        self.listening = listening_to_groups(self)

    @property
    def sizes(self) -> list[int]:
        return sorted({size for group in self.traits.groups for size in (group.block_size, group.reach) if size})

    def _most_blocks(self) -> dict[int, int]:
        """The blocks of the longest table in each attention group."""
        groups = self.groups.groups
        most = {g: blocks_of_longest(self.traits, groups[g].block_size) for g in self.groups.attention}
        return {g: blocks for g, blocks in most.items() if blocks is not None}

    def copied_blocks(self, copies: Sequence[Any]) -> Iterable[Block]:
        return [self.places.block(pool, target) for pool, _, target in self._due(copies)]

    def written_blocks(self, item: Item) -> Iterable[Block]:
        return dict.fromkeys(self.places.block(*place) for _, place, _ in cells_written(self, item))

    def used_blocks(self, item: Item) -> Iterable[Block]:
        return {self.places.block(*place) for _, place, _ in (*cells_read(self, item), *cells_written(self, item))}

    def read_cells(self, item: Item) -> Iterable[Any]:
        return [(place, offset) for _, place, offset in cells_read(self, item)]

    def written_cells(self, item: Item) -> Iterable[Any]:
        return [(place, offset) for _, place, offset in cells_written(self, item)]

    def note_loaded(self, item: Item, loaded: set[Block]) -> None:
        in_flight.note_loaded(self, hit_blocks(self, item), loaded)

    def settle(self) -> None:
        settle(self)

    def copies_text(self, due: Sequence[Any]) -> str:
        return copies_text(self._due(due))

    def check_tables(self, item: Item) -> None:
        check_tables(self, item)

    def launch(self, items: Sequence[Item], copies: Sequence[Any], void: Collection[str]) -> None:
        """Makes the copies, reads the states of the items, writes them and saves their states, then reads them."""
        copy(self, self._due(copies))
        in_flight.poison(self, self.groups.free())
        self.kv.begin_forward()
        # The worker's tables: that the scheduler holds the same slots was checked with the items.
        tables = {item.rid: self.told[item.rid].tables for item in items}
        sound = [item for item in items if item.rid not in void]
        steps = [(item, g, step) for item in sound for g, step in self.told[item.rid].steps.items()]
        for item in items:
            job = self.live[item.rid]
            resumed, fresh = job.preempted, job.fresh
            start_item(self, job, item)
            if fresh:
                self.progress.hit(job.request, resumed)
        # Before anything is saved: a state is rewritten where it stands.
        for item, g, step in steps:
            read_state(self, self.live[item.rid].request, g, step)
        for item in items:
            if item.rid in void:
                self.kv.mark(cells_written(self, item), VOID)
            else:
                write(self, self.live[item.rid].request, tables[item.rid], item.start + item.n, covered=True)
        for item, g, step in steps:
            save(self, self.live[item.rid].request, g, step, item.start + item.n)
        self.evaluated[laws.write_isolation.id] += len(items) > 1
        for item in sound:
            read(self, self.live[item.rid].request, tables, item.start + item.n, covered=True)
        for item in items:
            self.live[item.rid].request.computed = item.start + item.n - item.drafts
        self.kv.end_forward()
        self.checks.subject = None

    def full_blocks(self, extra_key: int | None, tokens: Sequence[int]) -> list[list[Any]]:
        return [self.kv.blocks_of(g, extra_key, tokens) for g in range(len(self.groups.groups))]

    def offered_units(self, found: Any, blocks: Sequence[int]) -> list[list[int | None]]:
        what = "a unit or None for each full block of each group"
        return taken(
            lambda: [units_of(row, n) for row, n in zip(found, blocks, strict=True)], found, self.adapter.offer, what
        )

    def owed_by(self, job: Job, tokens: Sequence[int], beyond: int) -> list[Owed]:
        parts = []
        for g, row in enumerate(self.full_blocks(job.request.extra_key, tokens)):
            group = self.groups.groups[g]
            # What a window has left, or a state has gone on from, behind the end is not owed.
            left = owed(group, len(tokens) + beyond).start if group.kind != "state" or not beyond else len(row)
            numbers = range(max(owed(group, len(tokens)).start, left), owed(group, len(tokens)).stop)
            contents = [self.places.identity(row[number]) for number in numbers]
            where = f" in {self.groups.names[g]}"
            parts.append(Owed(job.request.name, contents, group.block_size, numbers.start, where))
            self.goals_met["sent_behind_window"] += group.kind != "state" and 0 < numbers.start < numbers.stop
        return parts

    def keep(self, items: Sequence[Item]) -> None:
        for item in items:
            if item.drafts:
                self.progress.drafted(item.start, self.live[item.rid].request.computed, item.start + item.n)
            for g, step in self.told[item.rid].steps.items():
                keep(self, self.live[item.rid].request, g, step)

    def schedule(
        self, tokens: Sequence[int], accept: int = 0, drafts: Sequence[int] = (), lost: int | None = None
    ) -> Any:
        before = self.goals_met["rejected_drafts"]
        answer = super().schedule(tokens, accept, drafts, lost)
        self.goals_met["state_behind_draft"] += self.goals_met["rejected_drafts"] > before and bool(self.groups.states)
        return answer

    def held_by(self, name: str) -> Sequence[int]:
        """The slots that a request holds in attention groups, and the blocks of its states."""
        tables, held = self.groups.tables([name])[name], self.groups.held([name])[name]
        slots = [slot for table in tables.values() for slot in table if slot is not None]
        return [*slots, *(block for g in self.groups.states for block in held[g] or ())]

    def check_reset(self) -> None:
        avail, free, limbo = self.groups.avail(), self.groups.free(), in_flight.limbo_of(self, {})
        for pool, total in self.groups.pools.items():
            now = len(free[pool]) if self.groups.shows_free else avail[pool]
            observed = avail[pool], now, total, limbo[pool]
            self.checks.check(laws.reset_complete, *observed, name=of_pool(self, pool))
        in_flight.reset(self)

    @property
    def shows_free(self) -> bool:
        return self.groups.shows_free

    def table_of(self, name: str) -> Any:
        attention = set(self.groups.attention)
        return tuple(
            tuple(as_state(listed, self.adapter.slots if g in attention else self.adapter.held, name, g) or ())
            for g in range(len(self.groups.groups))
        )

    def contents_of_memory(self) -> Any:
        return self.kv.contents()

    def lacking(self) -> dict[str, str]:
        return lacking(laws, self)

    def unreachable(self) -> set[str]:
        return goals.unreachable(self)

    def _due(self, copies: Sequence[Any]) -> list[Copy]:
        return self.groups.pooled(copies, self.adapter.schedule)
