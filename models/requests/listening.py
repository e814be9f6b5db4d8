"""Block events of a target, beside its hits and its loads (rule 14 of kv_manager)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.requests.adapter import events
from kvlockstep.models.requests.checks import Checks
from kvlockstep.models.requests.request import Request
from kvlockstep.models.requests.transfers.transfers import Transfers
from kvlockstep.properties.kv_manager import laws
from kvlockstep.properties.kv_manager.group_listener import GroupListener
from kvlockstep.properties.kv_manager.listener import Fetched, Hit, Listener, Room
from kvlockstep.properties.law import verdict
from kvlockstep.reference.kv_manager.contract import BlockRemoved


class Listening:
    """Passes a target's events to a listener, and finds hits that contradict them."""

    def __init__(
        self,
        adapter: Any,
        listener: Listener | GroupListener,
        checks: Checks,
        goals_met: Counter[str],
        transfers: Transfers | None = None,
    ) -> None:
        self._adapter, self._listener, self._checks, self._goals_met = adapter, listener, checks, goals_met
        self._transfers = transfers
        self._unannounced: str | None = None
        # By request: the violation that its hit is unless something is loaded for it.
        self._unless_loaded: dict[str, str] = {}

    @property
    def hears_of_tiers(self) -> bool:
        """True if events say what some tier has."""
        return self._transfers is not None and any(map(self._transfers.traits.announces, self._transfers.traits.tiers))

    def loaded(self, hit: Hit, tiers: Iterable[str] | None = None) -> Hit:
        """The same hit, if it may be loaded from these tiers; from any if nothing says from which."""
        assert self._transfers is not None, "nothing loads without tiers"
        known = self._transfers.traits
        return hit._replace(loads=True, silent=not all(map(known.announces, tiers or known.tiers)))

    def listen(self) -> None:
        """Takes in the events since the last time, each checked against those before it."""
        for event in events(self._adapter.events):
            self._take(event)

    def moments(self, facts: Sequence[Hit | Fetched]) -> None:
        """Takes in the events since the last time. Each fact must be right at some moment among them.

        One call of a scheduler makes several admissions, and evicts in between.
        """
        law = self._checks.of(laws.event_consistency)
        self._checks.evaluated[law.id] += len(facts)
        left = [(fact, wrong) for fact in facts if (wrong := verdict(law, self._listener, fact))]
        for event in events(self._adapter.events):
            self._take(event)
            left = [(fact, wrong) for fact, wrong in left if verdict(law, self._listener, fact)]
        self._goals_met["announced_hit"] += any(isinstance(fact, Hit) and fact.cached for fact in facts)
        # Kept until the forward has read the content of the hit: wrong content is the better finding.
        self._unannounced = self._unannounced or next((wrong for _, wrong in left), None)

    def between(self, *rooms: Room) -> None:
        """Takes in the events since the last time, and compares them with `rooms` and with what was loaded."""
        if self._transfers is None:
            self.moments(())
        else:
            back, known = self._transfers.came_back(), self._transfers.traits
            for blocks in back:
                self._listener.come_back(blocks)
            self.moments([load for load in self._transfers.fetched() if known.announces(load.medium)])
            self._listener.forget(back=not back)
            cached = {name: n for name, n in self._transfers.cached().items() if known.announces(name)}
            rooms = (*rooms, *(Room(n, f"tier({name!r})", name) for name, n in cached.items()))
        for room in rooms:
            self._checks.check(laws.event_consistency, self._listener, room)

    def computed(self, request: Request, start: int) -> None:
        """A request has computed its tokens from `start` on, which matters only beside what is brought back."""
        if self._transfers is not None:
            self._listener.computed(request.extra_key, request.tokens, start, request.computed)

    def compare(self, hit: Hit, name: str | None = None) -> None:
        """Checks a hit against the events; one that is too long is kept for `raise_unannounced`.

        The hit of a request with a `name` may go as far as pool and tiers reach together, if `launched` finds its load.
        """
        law = self._checks.of(laws.event_consistency)
        self._goals_met["announced_hit"] += hit.cached > 0
        wrong = verdict(law, self._listener, hit)
        if wrong is not None and name is not None and not verdict(law, self._listener, self.loaded(hit)):
            self._unless_loaded[name] = wrong
            return
        # Kept until the forward has read the content of the hit: wrong content is the better finding.
        if wrong is not None and hit.cached > self._listener.known(hit):
            self._unannounced = self._unannounced or wrong
        else:
            self._checks.check(laws.event_consistency, self._listener, hit)

    def launched(self, names: Iterable[str], loaded_for: Collection[str]) -> None:
        """A step of the requests `names` is launched, whose loads have been submitted by now."""
        wrong = [self._unless_loaded[name] for name in names if name in self._unless_loaded.keys() - loaded_for]
        self._unannounced = self._unannounced or next(iter(wrong), None)
        self._unless_loaded.clear()

    def raise_unannounced(self) -> None:
        """Raises Divergence if a hit was longer than the events said, and its content right."""
        if self._unannounced is not None:
            raise Divergence(laws.event_consistency.id, self._unannounced)

    def _take(self, event: Any) -> None:
        self._checks.check(laws.event_consistency, self._listener, event)
        self._listener.apply(event)
        self._goals_met["announced_removal"] += isinstance(event, BlockRemoved)
        self._goals_met["announced_tier"] += self._transfers is not None and getattr(event, "medium", None) is not None


def listening_to(session: Any, block_size: int) -> Listening | None:
    """What takes in the events of a target without groups; None if it sends none."""
    kind = session.traits.event_listener
    if not kind:
        return None
    listener = Listener(block_size, kind == "counting")
    return Listening(session.adapter, listener, session.checks, session.goals_met, session.transfers)
