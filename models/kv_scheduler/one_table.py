"""What the judge asks, writes, reads and checks where a request has one table; each method is part of an operation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from typing import Any

from kvlockstep.models.core.taking import taken
from kvlockstep.models.kv_scheduler.forward import forward
from kvlockstep.models.kv_scheduler.job import Job
from kvlockstep.models.kv_scheduler.session import SchedulerSession
from kvlockstep.models.kv_scheduler.settling import settle
from kvlockstep.models.requests.adapter import as_state, not_checked, number
from kvlockstep.models.requests.answers import copies_text, units_of
from kvlockstep.models.requests.listening import listening_to
from kvlockstep.models.requests.transfers.delivery import Owed
from kvlockstep.models.requests.transfers.places import Block, Places
from kvlockstep.models.requests.transfers.traits import TransferTraits
from kvlockstep.models.requests.transfers.transfers import Transfers
from kvlockstep.properties import kv_scheduler as laws
from kvlockstep.reference.kv_scheduler.contract import Item


class OneTable(SchedulerSession):
    """The parts of a judge that know tables and pools; the judge of groups has its own."""

    grouped = False

    def prepare(self) -> None:
        """Makes what `settle` needs, once the session is there."""
        if self.traits.tiers:
            known, places = TransferTraits.of(self.traits), Places(self.memory, self.traits.block_size)
            self.transfers = Transfers(self.adapter, known, places, self.checks, self.goals_met)
        self.listening = listening_to(self, self.traits.block_size)

    @property
    def sizes(self) -> list[int]:
        """Numbers of tokens at whose multiples something begins."""
        return [self.traits.block_size]

    def settle(self) -> None:
        """Checks what holds between two operations."""
        settle(self)

    def copies_text(self, due: Sequence[Any]) -> str:
        """The copies of a batch as a part of a trace line; nothing if there are none."""
        return copies_text(due)

    def check_tables(self, item: Item) -> None:
        """Checks the slots of an item: there are enough, and they are those that the scheduler holds."""
        self.checks.check(laws.coverage, len(item.slots), item.start + item.n, name=item.rid)
        self.checks.check(laws.held_tables, item.slots, self.tables.entries(item.rid), name=item.rid)

    def launch(self, items: Sequence[Item], copies: Sequence[Any], void: Collection[str]) -> None:
        """Runs a batch whose items were checked."""
        forward(self, items, copies, void)

    def keep(self, items: Sequence[Item]) -> None:
        """Does what the device does when it knows which drafts of its batch are right."""

    def held_by(self, name: str) -> Sequence[int]:
        """The slots that a request holds."""
        return self.tables.entries(name)

    def check_reset(self) -> None:
        """Checks what holds right after `reset`, and forgets what the memory has."""
        avail = number(self.adapter.avail)
        free = len(self.tables.free()) if self.tables.shows_free else avail
        limbo = self.limbo(set()) if self.transfers else 0
        self.checks.check(laws.reset_complete, avail, free, self.traits.total, limbo)
        slots = self.occupancy.all_slots()
        if self.transfers:
            slots = self.transfers.unpoisoned(slots)
            self.transfers.reset()
        self.memory.reset(slots)

    def limbo(self, held: Set[Block]) -> int:
        """How many slots nobody holds that are not available yet: as the scheduler says, or at most so many."""
        if self.transfers:
            return self.transfers.limbo(held)
        return number(self.adapter.limbo) if self.traits.late_release else 0

    def copied_blocks(self, copies: Sequence[Any]) -> Iterable[Block]:
        """The blocks that the copies of a batch write."""
        return dict.fromkeys(pair[-1] // self.traits.block_size for pair in copies)

    def written_blocks(self, item: Item) -> Iterable[Block]:
        """The blocks that an item writes."""
        return dict.fromkeys(slot // self.traits.block_size for slot in item.slots[item.start :])

    def used_blocks(self, item: Item) -> Iterable[Block]:
        """The blocks that an item reads or writes."""
        return {slot // self.traits.block_size for slot in item.slots}

    def read_cells(self, item: Item) -> Iterable[Any]:
        """The cells that an item reads and does not write."""
        return item.slots[: item.start]

    def written_cells(self, item: Item) -> Iterable[Any]:
        """The cells that an item writes."""
        return item.slots[item.start : item.start + item.n]

    def note_loaded(self, item: Item, loaded: set[Block]) -> None:
        """Counts the goals of a request that starts, for which these blocks were loaded."""
        self.goals_met["part_loaded"] += 0 < len(loaded) < item.start // self.traits.block_size

    def full_blocks(self, extra_key: int | None, tokens: Sequence[int]) -> list[list[Any]]:
        """The contents of the full blocks of these tokens, by group; here of the only one."""
        return [[list(stamps) for stamps in self.memory.blocks_of(extra_key, tokens, self.traits.block_size)]]

    def offered_units(self, found: Any, blocks: Sequence[int]) -> list[list[int | None]]:
        """The answer to an offer of so many blocks of each group. Raises Divergence for any other answer."""
        what = "a unit or None for each full block"
        return [taken(lambda: units_of(found, blocks[0]), found, self.adapter.offer, what)]

    def owed_by(self, job: Job, tokens: Sequence[int], beyond: int) -> list[Owed]:
        """What a durable scheduler owes of a request that has ended behind these tokens, in each group.

        It has computed `beyond` tokens more, behind which it may have left what it would owe else.
        """
        size = self.traits.block_size
        return [Owed(job.request.name, self.memory.blocks_of(job.request.extra_key, tokens, size), size)]

    @property
    def shows_free(self) -> bool:
        """True as long as the scheduler says what is free."""
        return self.tables.shows_free

    def table_of(self, name: str) -> Any:
        """The tables of a request for the fingerprint of a state."""
        return tuple(as_state(self.tables.entries, name))

    def contents_of_memory(self) -> Any:
        """The content of the memory for the fingerprint of a state."""
        return self.memory.contents()

    def lacking(self) -> dict[str, str]:
        """The laws that this target does not expose enough for: id to reason."""
        return not_checked(laws.LAWS, self.traits, self.shows_free)
