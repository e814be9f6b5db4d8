"""kv_schedulers with groups and a peer that are right in another way than the reference."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kvlockstep.reference.kv_manager.groups.contract import owed
from kvlockstep.reference.kv_scheduler.contract import NO_DRAFTS
from kvlockstep.reference.kv_scheduler.peered_groups import PeeredGroups, PeeredStates, PeeredWindow, PeeredWindows
from kvlockstep.reference.kv_scheduler.scheduler import Job, KVScheduler


class SendsAtEnd(PeeredGroups):
    """Stores what a request still holds when it ends by itself, and nothing before."""

    _ending = False

    def _commit(self, job: Job, n: int) -> None:
        KVScheduler._commit(self, job, n)

    def update(self, sampled: Mapping[str, int], accepted: Mapping[str, int] = NO_DRAFTS) -> Collection[str]:
        self._ending = True
        ended = super().update(sampled, accepted)
        self._ending = False
        return ended

    def abort(self, rid: str) -> None:
        for job in self._running:
            if job.rid == rid and self._ending:
                self._send(job)
        super().abort(rid)

    def _send(self, job: Job) -> None:
        for g, group in enumerate(self.groups):
            for place in self._sent(g, job):
                key = self._kv._key(g, job.tokens, job.extra_key, place)
                request: Any = self._kv._live[job.rid]
                number = request.states[g] if group.kind == "state" else request.tables[g][place]
                if not self._tier.knows(key):
                    self._store(key, self._block(g, number))

    def _sent(self, g: int, job: Job) -> Collection[int]:
        """The places of the blocks of a group that are sent."""
        return owed(self.groups[g], job.computed)


class SendsWindowAtEnd(PeeredWindow, SendsAtEnd):
    """Full attention and a window."""


class SendsStatesAtEnd(PeeredStates, SendsAtEnd):
    """Full attention, a window, and states in a pool of their own."""


class TakesAll(PeeredStates):
    """Takes every full block of an offer, as of a storage that several share."""

    def offer(self, tokens: list[int], extra_key: int | None) -> Sequence[Sequence[int | None]]:
        return [
            [self._tier.receive(self._kv._key(g, tokens, extra_key, i)) for i in range(len(tokens) // group.block_size)]
            for g, group in enumerate(self.groups)
        ]


GROUP_PEER_VARIANTS = {
    "peered-windows": PeeredWindows,
    "sends-window-at-end": SendsWindowAtEnd,
    "sends-states-at-end": SendsStatesAtEnd,
    "takes-all": TakesAll,
}
