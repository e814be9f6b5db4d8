"""What the judge asks, writes, reads and checks where a request has one table; each method is part of an operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kvlockstep.models.kv_manager import refusals
from kvlockstep.models.kv_manager.forward import copy, write_and_read
from kvlockstep.models.kv_manager.session import Session
from kvlockstep.models.kv_manager.settling import catch_up, settle
from kvlockstep.models.requests.adapter import as_state, not_checked, number, pairs
from kvlockstep.models.requests.answers import copies_text
from kvlockstep.models.requests.request import Request
from kvlockstep.models.requests.transfers.places import Block
from kvlockstep.properties.kv_manager import laws


class OneTable(Session):
    """The parts of a judge that know tables and pools; the judge of groups has its own. `unit` is what copies count."""

    grouped = False
    unit = "slot"

    def prepare(self) -> None:
        """Makes what `settle` needs, once the session is there."""

    @property
    def sizes(self) -> list[int]:
        """Numbers of tokens at whose multiples something begins."""
        return [self.traits.block_size]

    def settle(self) -> None:
        """Checks what holds between two steps."""
        settle(self)

    def catch_up(self) -> None:
        """Checks what the last settling has passed over, if no step has begun since."""
        catch_up(self)

    def copies_of(self, method: Callable[..., Any], *args: Any) -> list[Any] | None:
        """Calls a method that returns copies, or None."""
        return pairs(method, *args)

    def copies_text(self, due: Sequence[Any]) -> str:
        """The copies of a step as the end of a trace line."""
        return copies_text(due)

    def copy(self, due: Sequence[Any], when: str = "") -> None:
        """Makes copies in the KV memory."""
        copy(self, due, when)

    def write_and_read(self) -> None:
        """Writes and reads the KV of a forward."""
        if self.ask != "late" and not self.tables.sparing and not self.stale:
            # Behind the copies, whose sources may be free already (rule 10). Before the reads: what is read from a
            # block that was freed in this step is wrong content, and not only a free block that is held.
            self.poison(self.tables.free())
        write_and_read(self)

    def admitted(self, answer: Any, n: int) -> tuple[Any, int]:
        """Takes the answer of an admission: the cached tokens, and how many of the `n` further ones it took."""
        return answer, n

    def reserved(self, request: Request, answer: Any, n: int) -> int:
        """Takes the answer of a reservation that was granted: how many of the `n` tokens it took."""
        return n

    def check_refused_admission(self, request: Request, before: Any) -> None:
        refusals.check_admission(self, request, before)

    def check_refused_reservation(self, request: Request, n: int, before: Any, appended: bool) -> None:
        refusals.check_reservation(self, request, n, before, appended)

    def check_unchanged(self, before: Any, what: str) -> None:
        refusals.check_unchanged(self, before, what)

    def check_evicted(self) -> None:
        """Checks what holds right after `evict_all`."""
        self.follow_transfers()
        free_now = number(self.adapter.free_now)
        held = self.occupancy.held_slots
        self.checks.check(laws.eviction_complete, free_now, held, self.traits.total, self.limbo())

    def check_reset(self) -> None:
        """Checks what holds right after `reset`, and forgets what the memory has."""
        avail, free_now = number(self.adapter.avail), number(self.adapter.free_now)
        self.checks.check(laws.reset_complete, avail, free_now, self.traits.total, self.limbo(set()))
        slots = self.occupancy.all_slots()
        if self.transfers is not None:
            slots = self.transfers.unpoisoned(slots)
            self.transfers.reset()
        self.memory.reset(slots)

    def blocks_to_write(self, name: str) -> Iterable[Block]:
        """The blocks that this step writes for a request, with tiers only."""
        request, table = self.live[name], self.tables.entries(name)
        return self._blocks(table[request.computed : request.computed + request.pending])

    def blocks_copied(self, due: Sequence[Any]) -> Iterable[Block]:
        """The blocks that copies write, with tiers only."""
        return self._blocks([target for _, target in due])

    def begins(self, name: str) -> None:
        """A request begins with its hit, and what was loaded for it is there, with tiers only."""
        if self.transfers is not None:
            self.transfers.started(name, self.live[name].hit)

    def _blocks(self, slots: Sequence[int]) -> list[int]:
        return list(dict.fromkeys(slot // self.traits.block_size for slot in slots))

    def table_of(self, name: str) -> Any:
        """The tables of a request for the fingerprint of a state."""
        return tuple(as_state(self.tables.entries, name))

    def lacking(self) -> dict[str, str]:
        """The laws that this target does not expose enough for: id to reason."""
        return not_checked(laws.LAWS, self.traits, self.tables.shows_free)
