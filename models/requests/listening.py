"""Block events of a target, beside its hits and its loads (rule 14 of kv_manager)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.requests.adapter import events
from kvlockstep.models.requests.checks import Checks
from kvlockstep.properties.kv_manager import laws
from kvlockstep.properties.kv_manager.listener import Fetched, Hit, Listener, Room
from kvlockstep.properties.law import verdict
from kvlockstep.reference.kv_manager.contract import BlockRemoved


class Listening:
    """Takes a target's events to a listener, and says where its hits and the events contradict each other."""

    def __init__(self, adapter: Any, listener: Listener, checks: Checks, goals_met: Counter[str]) -> None:
        self._adapter, self._listener, self._checks, self._goals_met = adapter, listener, checks, goals_met
        self._unannounced: str | None = None

    def listen(self, room: Room | None = None) -> None:
        """Takes in the events since the last time, each checked against those before it, then all against `room`."""
        for event in events(self._adapter.events):
            self._take(event)
        if room is not None:
            self._checks.check(laws.event_consistency, self._listener, room)

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
        # Its content is read in the forward: if that is wrong as well, the content is the better finding.
        self._unannounced = self._unannounced or next((wrong for _, wrong in left), None)

    def check(self, rooms: Sequence[Room]) -> None:
        """Checks how much is stored by the events."""
        for room in rooms:
            self._checks.check(laws.event_consistency, self._listener, room)

    def loaded(self, loads: Sequence[Sequence[tuple[int | None, Sequence[int]]]]) -> None:
        """Loads have ended well, each with its blocks; of earlier ones nothing more is announced if there are none."""
        if not loads:
            self._listener.forget_back()
        for blocks in loads:
            self._listener.come_back(blocks)

    def compare(self, hit: Hit) -> None:
        """Checks a hit against the events; one that is too long is kept for `raise_unannounced`."""
        self._goals_met["announced_hit"] += hit.cached > 0
        wrong = verdict(self._checks.of(laws.event_consistency), self._listener, hit)
        # Its content is read in the forward: if that is wrong as well, the content is the better finding.
        if wrong is not None and hit.cached > self._listener.known(hit):
            self._unannounced = self._unannounced or wrong
        else:
            self._checks.check(laws.event_consistency, self._listener, hit)

    def raise_unannounced(self) -> None:
        """Raises Divergence if a hit was longer than the events said, and its content right."""
        if self._unannounced is not None:
            raise Divergence(laws.event_consistency.id, self._unannounced)

    def _take(self, event: Any) -> None:
        self._checks.check(laws.event_consistency, self._listener, event)
        self._listener.apply(event)
        self._goals_met["announced_removal"] += isinstance(event, BlockRemoved)
        self._goals_met["announced_tier"] += getattr(event, "medium", None) is not None
