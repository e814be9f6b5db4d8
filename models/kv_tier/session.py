"""Session of one kv_tier under its owners: what is known of its chunks, and what it shows between the operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import require
from kvlockstep.models.kv_tier.answers import heard_after
from kvlockstep.models.kv_tier.books import Books, Plan
from kvlockstep.models.kv_tier.content import Content
from kvlockstep.models.requests.adapter import events, number, numbers, read_traits
from kvlockstep.models.requests.checks import Checks
from kvlockstep.properties import kv_tier as laws
from kvlockstep.properties.law import ERROR_CONTRACT
from kvlockstep.reference.kv_tier.contract import Key, TierTraits


class TierSession:
    """State of the judge of a tier. Raises Divergence if the adapter's traits cannot be read.

    `books` has what the answers so far imply, `content` the units' bytes, `heard` the keys that the events say can be
    hit, and `pool` the answers of the tier after the last operation. `checks` evaluates the laws.
    """

    def __init__(self, adapter: Any, checks: Checks | None = None) -> None:
        self.adapter = adapter
        self.traits = read_traits(adapter, TierTraits)
        self.books = Books(self.traits.total)
        self.content = Content()
        self.checks = checks or Checks()
        self.goals_met: Counter[str] = Counter()
        self.heard: set[Key] = set()
        self.pool = self.look()
        self.settle()

    def allows(self, operation: str) -> bool:
        """Returns whether the traits and the plans in flight allow an operation, whatever its arguments are."""
        traits, books = self.traits, self.books
        match operation:
            case "reset":
                return traits.can_reset and (traits.reset_in_flight or not books.in_flight)
            case "write":
                return traits.holds_bytes
            case "damage":
                return traits.holds_bytes and traits.can_damage
            case "reopen":
                return traits.holds_bytes and traits.can_reopen
        return True

    def legal(self, keys: Sequence[Key]) -> None:
        """Raises NotEnabled unless these are different keys that the tier may be asked for."""
        require(keys and len(set(keys)) == len(keys))
        require(self.traits.extra_key or all(key.extra_key is None for key in keys))

    def settle(self, unchanged: laws.Pool | None = None) -> None:
        """Looks at the tier after an operation. `unchanged` is how it has to look, if there was nothing to do."""
        check = self.checks.check
        self.pool = pool = self.look()
        if unchanged is not None:
            check(laws.idempotent, unchanged, pool)
        # The laws that name a culprit come first; the last of them takes any wrong sum.
        check(laws.no_double_free, pool)
        check(laws.pinned, pool)
        check(laws.quiescence, pool)
        check(laws.tier_accounting, pool)
        self._listen()

    def look(self) -> laws.Pool:
        """Asks the tier for its free units, beside what the books say of the others."""
        free, avail = numbers(self.adapter.free_units), number(self.adapter.avail)
        if free is None:
            raise Divergence(ERROR_CONTRACT.id, "free_units answered None, not numbers")
        books = self.books
        return laws.Pool(free, avail, frozenset(books.chunks.values()), books.held, self.traits.total)

    def _listen(self) -> None:
        if not self.traits.announces:
            return
        for event in events(self.adapter.events):
            self.heard = heard_after(self.heard, event)
        self.checks.check(laws.event_consistency, laws.Announced(frozenset(self.heard), frozenset(self.books.chunks)))

    def in_flight(self, nth: int) -> Plan:
        """A plan in flight, counted from the oldest. Raises NotEnabled if there are not so many."""
        plans = list(self.books.in_flight.values())
        require(0 <= nth < len(plans))
        return plans[nth]
