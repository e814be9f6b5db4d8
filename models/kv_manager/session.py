"""Session of one kv_manager under one scheduler: its requests, the state of the step, and the last results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

from kvlockstep.models.core.op import NotEnabled, require
from kvlockstep.models.kv_manager.questions import Questions
from kvlockstep.models.requests.adapter import number, read_traits
from kvlockstep.models.requests.checks import Checks, Contents
from kvlockstep.models.requests.listening import Listening, listening_to
from kvlockstep.models.requests.occupancy import Occupancy
from kvlockstep.models.requests.request import Memory, Request
from kvlockstep.models.requests.slot_memory import SlotMemory
from kvlockstep.models.requests.tables import Tables
from kvlockstep.models.requests.transfers.places import Places
from kvlockstep.models.requests.transfers.traits import TransferTraits
from kvlockstep.models.requests.transfers.transfers import Transfers
from kvlockstep.properties.kv_manager import laws
from kvlockstep.properties.kv_manager import loading as laws_of_loads
from kvlockstep.reference.kv.transfers import Transfer
from kvlockstep.reference.kv_manager.traits import Traits


class Session:
    """State that the judge and its parts share. Raises Divergence if the adapter's traits cannot be read.

    `memory` makes the KV memory; if it keeps one stamp per block, events are not checked, since that would
    take memory for every prefix ever seen. `ask` is the order of the questions, one of ASK_ORDERS.

    `live`, `preempted` and `scheduled` have the requests; `loading` has those that were admitted and wait for what is
    loaded for them. `transfers` are those of a target with tiers, else None. `admitting` holds from the first admission
    of a step on, after which nothing but admissions is scheduled (rule 1). `checks` evaluates the laws. `goals_met` and
    `evaluated` count goals and laws.
    """

    def __init__(
        self,
        adapter: Any,
        memory: Callable[[Any, Traits, Counter[str]], Memory],
        ask: str = "avail",
        checks: Checks | None = None,
    ) -> None:
        self.adapter = adapter
        self.traits = traits = read_traits(adapter, Traits)
        self.ask = ask
        self.goals_met: Counter[str] = Counter()
        self.live: dict[str, Request] = {}
        self.preempted: dict[str, Request] = {}
        self.loading: dict[str, Request] = {}
        # Of these the ones that may be ready with less than they were promised, since a transfer has failed.
        self.doubtful: set[str] = set()
        # Of the `preempted` those that were told to wait for a fetch, and how often since they first asked.
        self.fetching: Counter[str] = Counter()
        self.saw_loading = False
        self.scheduled: list[str] = []
        self.used_names: set[str] = set()
        self.admitting = False
        self.last_admission: str | None = None
        self.memory: Any = memory(adapter, traits, self.goals_met)
        per_block = self.memory.granularity == "block"
        size, total, longest = traits.block_size, traits.total, traits.max_length
        self.tables = Tables(adapter, size, per_block=per_block, sparing=self.memory.sparing, total=total)
        self.checks = checks or Checks()
        self.evaluated = self.checks.evaluated
        most = None if longest is None else -(-longest // size) + traits.lookahead_blocks
        self.occupancy = Occupancy(
            self.tables, self.checks, laws, block_size=size, total=total, max_length=longest, most_blocks=most
        )
        self.places: Any = self.places_of_kv()
        self.transfers: Transfers | None = None
        if traits.tiers and not per_block:
            # Between two operations no batch is in flight that a load would have to wait for.
            known = TransferTraits.of(traits, ordered=True)
            self.transfers = Transfers(adapter, known, self.places, self.checks, self.goals_met)
        reading = (laws_of_loads.failure_visible, laws_of_loads.load_before_read) if self.transfers else ()
        self.contents = Contents(self.memory, self.checks, laws, size, self.tables.entry_size, reading)
        self.questions: Any = Questions(adapter, self.tables, self.checks, ask)
        self.listening: Listening | None = None
        if not per_block:
            self.listening = listening_to(self, size)
        # The tables at the beginning of a step. Empty once an operation of the step was accepted: from then on nobody
        # knows them, since a question before each operation would flush lazy work (rules 3 and 12).
        self.unchanged: dict[str, Any] = {}
        # The request that was admitted with nothing done since free_now was asked for.
        self.first_hit: Request | None = None
        # The results of the last settling: an object that is still the same was checked then.
        self.settled_tables: dict[str, list[int]] | None = None
        self.settled_free: list[int] | None = None
        self.settled_free_now: int | None = None
        self.avail: int | None = None
        self.stale = False
        self._every, self._settlings = 1, 0
        self.saw_evictable = False
        self.saw_growth = False
        self.lengths: dict[str, int] = {}

    def places_of_kv(self) -> Places:
        """Makes the places that transfers copy between: blocks of the KV memory, and units of tiers."""
        return Places(cast(SlotMemory, self.memory), self.traits.block_size)

    @property
    def subject(self) -> str | None:
        """After a Divergence the request that it concerns, None if it concerns none."""
        return self.checks.subject

    def spare(self, every: int) -> bool:
        """From now on only one settling in `every` looks at everything. Returns whether that changes anything."""
        self._every = every
        return every > 1

    def passes(self) -> bool:
        """Returns whether this settling looks at nothing; then the session does not know any more how things are."""
        self._settlings += 1
        self.stale = self._settlings % self._every > 0
        if self.stale:
            self.unchanged = {}
            self.first_hit = self.settled_free_now = None
        return self.stale

    def limbo(self, held: set[int] | None = None) -> int:
        """Asks how many slots wait to be released; 0 for a manager that releases at once.

        `held` are the blocks that requests hold; None if these are still the ones of the last settling.
        """
        if self.transfers is not None:
            return self.transfers.limbo(self.occupancy.held if held is None else held)
        return number(self.adapter.limbo) if self.traits.late_release else 0

    def holding(self) -> list[str]:
        """Returns the requests that hold slots."""
        return [*self.live, *self.loading]

    def poison(self, free: list[int]) -> None:
        """Spoils the content of free slots, but for those that a transfer still reads."""
        self.memory.poison(free if self.transfers is None else self.transfers.unpoisoned(free))

    def follow_transfers(self, waited: bool = False) -> list[Transfer]:
        """Takes in what the manager has submitted since the last time, or only what it has `waited` for.

        Returns what it has not taken in.
        """
        if self.transfers is None:
            return []
        # `before` is for batches that are decided before they are launched.
        submitted = [transfer._replace(before=False) for transfer in self.transfers.submitted()]
        self.transfers.start([one for one in submitted if one.waited or not waited], self.holding())
        return [one for one in submitted if waited and not one.waited]

    def allows(self, operation: str) -> bool:
        """Returns whether the traits and the state of the step allow an operation, whatever its arguments are."""
        match operation:
            case "chunk":
                return self.traits.chunk or any(request.loaded for request in self.live.values())
            case "forward":
                return bool(self.scheduled)
            case "finish" | "abort":
                return not self.scheduled
            case "fork":
                return self.traits.can_fork and not self.scheduled
            case "evict_all":
                return self.traits.can_evict_all and not self.scheduled
            case "reset":
                return self.traits.can_reset and not self.scheduled and self._resettable()
            case "ready":
                return bool(self.loading) and not self.scheduled
            case "poll":
                return self.transfers is not None and not self.scheduled
            case "lose":
                return self.transfers is not None and not self.scheduled and self.transfers.lose_any()
            case "complete" | "complete_all":
                return self.transfers is not None and bool(self.transfers.unended)
            case "fail" | "tear":
                return bool(self.traits.fails) and self.transfers is not None and bool(self.transfers.unended)
        return True  # the others depend on the request, or on the room in the pool

    def _resettable(self) -> bool:
        """Returns whether a reset may come with the transfers that are in flight."""
        return self.transfers is None or self.traits.reset_in_flight or not self.transfers.moving

    def withdrawable(self) -> list[str]:
        """Returns the requests whose schedule can be taken back: an admission just made, or any before admissions."""
        if not self.traits.can_withdraw:
            return []
        if self.admitting:
            return [name for name in self.scheduled if name == self.last_admission]
        return list(self.scheduled)

    def require_admissible(self, tokens: Sequence[int], n: int) -> None:
        """Raises NotEnabled unless a request of these tokens may ask for admission with a first chunk of `n`."""
        traits = self.traits
        require(tokens and n >= 1 and (traits.max_length is None or len(tokens) <= traits.max_length))
        require(n == len(tokens) or (traits.chunk and n < len(tokens) and n % traits.chunk_align == 0))

    def unscheduled(self, name: str) -> Request:
        """Returns a live request that may be scheduled or preempted now. Raises NotEnabled for any other name."""
        request = self.live.get(name)
        if request is None or request.pending or self.admitting:
            raise NotEnabled
        return request

    def between_steps(self, operation: str, name: str) -> Request:
        """Returns a live request, if the operation, one between steps, is allowed now. Raises NotEnabled otherwise."""
        request = self.live.get(name)
        if request is None or not self.allows(operation):
            raise NotEnabled
        return request
