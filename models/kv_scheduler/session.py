"""Session of one kv_scheduler under its users: its requests, its batches in flight, and the last results."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from typing import Any

from kvlockstep.models.kv_scheduler.job import Flight, Job
from kvlockstep.models.requests.adapter import answered, read_traits
from kvlockstep.models.requests.answers import released_text
from kvlockstep.models.requests.checks import Checks, Contents
from kvlockstep.models.requests.listening import Listening
from kvlockstep.models.requests.occupancy import Occupancy
from kvlockstep.models.requests.slot_memory import SlotMemory
from kvlockstep.models.requests.tables import Tables
from kvlockstep.models.requests.transfers.transfers import Transfers
from kvlockstep.properties import kv_scheduler as laws
from kvlockstep.properties import transfers as transfer_laws
from kvlockstep.properties.law import Law
from kvlockstep.reference.kv_manager.traits import Traits
from kvlockstep.reference.kv_scheduler.traits import SchedulerTraits


class SchedulerSession:
    """State of the judge of a scheduler. `budget` tokens and `running` requests are the most that a batch may have.

    Raises Divergence if the adapter's traits cannot be read. `live` has the requests, `flights` the batches that were
    scheduled and not updated, the oldest first. `transfers` are those of a target with tiers, else None. `limits` are
    the most tokens and requests of a batch. `checks` evaluates laws; `goals_met` and `evaluated` count goals and laws.
    """

    _call = staticmethod(answered)

    def __init__(self, adapter: Any, budget: int, running: int, checks: Checks | None = None) -> None:
        self.adapter = adapter
        self.traits = read_traits(adapter, SchedulerTraits)
        size, total = self.traits.block_size, self.traits.total
        self.goals_met: Counter[str] = Counter()
        self.checks = checks = checks or Checks()
        self.evaluated = checks.evaluated
        self.memory = SlotMemory(adapter, Traits(size, total), self.goals_met)
        self.live: dict[str, Job] = {}
        self.flights: deque[Flight] = deque()
        self.used_names: set[str] = set()
        self.longest = self.traits.max_length or self.traits.total
        self._aborted: set[str] = set()
        # Requests that have not started and hold what was loaded for them.
        self.holding: set[str] = set()
        # How many batches in a row were empty while a move for a request was in flight, and nothing else.
        self.waited: Counter[str] = Counter()
        # (first, second): the first one started although the policy puts the second first, and was right to do so.
        self.overtaken: set[tuple[str, str]] = set()
        self.tables = Tables(adapter, size, per_block=False, total=self.traits.total)
        self.occupancy = Occupancy(
            self.tables,
            checks,
            laws,
            block_size=size,
            total=total,
            max_length=self.traits.max_length,
            most_blocks=blocks_of_longest(self.traits, size),
        )
        self.transfers: Transfers | None = None
        self.listening: Listening | None = None
        # The laws of transfers on what requests read.
        self.reading: tuple[Law[[Any]], ...] = (
            (transfer_laws.failure_visible, transfer_laws.load_before_read) if self.traits.tiers else ()
        )
        self.contents = Contents(self.memory, checks, laws, size, self.tables.entry_size, self.reading)
        self.saw_evictable = False
        self.avail: int | None = None
        self._said = ""
        self.limits = budget, running
        self.free_before: int | None = None
        self.settled_free: list[int] | None = None
        self.settled_tables: dict[str, list[int]] | None = None
        self._batches_without_token = 0
        self._arrivals = itertools.count()

    def begin(self) -> None:
        """Begins an operation, which has no answer yet."""
        self.avail = None
        self._said = ""
        self.occupancy.freed = set()

    @property
    def so_far(self) -> str:
        """The answer of the last operation as text, up to the failure if it failed."""
        return " ".join(filter(None, (self._said, released_text(self.occupancy.freed))))

    def poison(self, free: list[int]) -> None:
        """Spoils the content of free slots, but for those that a transfer still reads."""
        self.memory.poison(self.transfers.unpoisoned(free) if self.transfers else free)

    def allows(self, operation: str) -> bool:
        """Returns whether the traits and the batches in flight allow an operation, whatever its arguments are."""
        match operation:
            case "schedule":
                return len(self.flights) < self.traits.overlap and bool(self.live)
            case "update":
                return bool(self.flights)
            case "abort":
                between = self.traits.aborts == "before_schedule" and len(self.flights) < self.traits.overlap
                return between or self.traits.aborts == "any"
            case "draft":
                return bool(self.traits.drafts) and not self.flights
            case "reset":
                return self.traits.can_reset and not self.flights and self._resettable()
            case "poll":
                return self.transfers is not None and not (self.traits.in_steps and self.flights)
            case "complete" | "complete_all":
                return self.transfers is not None and bool(self.transfers.unended)
            case "fail" | "tear":
                return bool(self.traits.fails) and self.transfers is not None and bool(self.transfers.unended)
            case "offer":
                return self.transfers is not None and self.traits.peer is not None
            case "lose":
                return self.transfers is not None and self.transfers.lose_any()
            case "drain":
                return bool(self.live) and not self.flights
        return True  # users add requests at any time

    def _resettable(self) -> bool:
        """Returns whether a reset may come, with the transfers that are in flight and what was loaded."""
        if self.transfers is None or self.traits.reset_in_flight:
            return True
        moving = self.transfers.loading() if self.traits.in_steps else self.transfers.moving
        return not moving and not self.holding

    @property
    def drafts_overlap(self) -> bool:
        """True if batches are scheduled behind drafts that only the device has judged."""
        return self.traits.drafts > 0 and self.traits.overlap > 1

    def draftable(self) -> list[str]:
        """Returns the requests that drafts can be offered for."""
        if not self.allows("draft"):
            return []
        return [
            name for name, job in self.live.items() if not job.fresh and not job.lost and job.request.remaining == 1
        ]


def blocks_of_longest(traits: SchedulerTraits, block_size: int) -> int | None:
    """The blocks of the longest request, with those that batches in flight compute beyond its end.

    The last token is sampled and not computed. Each batch in flight has one token more, and its drafts.
    """
    if traits.max_length is None:
        return None
    tokens = traits.max_length - 1 + traits.overlap * (1 + traits.drafts)
    return -(-tokens // block_size) + traits.lookahead_blocks
