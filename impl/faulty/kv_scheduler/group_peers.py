"""Faults of kv_scheduler with groups and a peer: what is sent of a window or a state, and what is taken of an offer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.kv_scheduler.caches_in_tier import CachesInTier
from kvlockstep.impl.variants.group_peers import SendsStatesAtEnd, SendsWindowAtEnd
from kvlockstep.reference.kv_manager.groups.in_tier import Block
from kvlockstep.reference.kv_manager.groups.pool import Key
from kvlockstep.reference.kv_scheduler.peered import SharedTier
from kvlockstep.reference.kv_scheduler.peered_groups import PeeredState, PeeredWindow
from kvlockstep.reference.kv_scheduler.scheduler import Job

FULL, WINDOW, STATE = range(3)


@fault("sched-window-unsent", law="delivery", seen=("mutant",))
class WindowUnsent(PeeredWindow):
    """A request's KV is stored for the full group, and not for the window."""

    def _filled(self, job: Job, first: int) -> Iterable[tuple[Key, Block]]:
        return [(key, block) for key, block in super()._filled(job, first) if key[0] == FULL]


@fault("sched-window-sent-one-short", law="delivery", seen=("mutant",))
class WindowSentOneShort(SendsWindowAtEnd):
    """A request that ends sends one block of its window, though the window reaches into two."""

    def _sent(self, g: int, job: Job) -> Collection[int]:
        sent = super()._sent(g, job)
        return list(sent)[-1:] if g == WINDOW else sent


@fault("sched-state-unsent", law="delivery", seen=("mutant",))
class StateUnsent(SendsStatesAtEnd):
    """A request that has ended sends its blocks of attention, and not the state that they belong to."""

    def _sent(self, g: int, job: Job) -> Collection[int]:
        return () if g == STATE else super()._sent(g, job)


@fault("sched-offer-window-head", law="prefix_soundness", seen=("mutant",))
class OfferWindowHead(CachesInTier, PeeredWindow):
    """The units of an offered window are taken for its first blocks, though they hold the last ones."""

    durable = False

    def offer(self, tokens: list[int], extra_key: int | None) -> Sequence[Sequence[int | None]]:
        full, window = super().offer(tokens, extra_key)
        taken = [unit for unit in window if unit is not None]
        return full, [*taken, *[None] * (len(window) - len(taken))]


@fault("sched-offer-state-early", law="state_soundness", seen=("mutant",))
class OfferStateEarly(CachesInTier, PeeredState):
    """A state that was offered is found for a prefix that is one block longer than what it stands for."""

    durable = False

    def offer(self, tokens: list[int], extra_key: int | None) -> Sequence[Sequence[int | None]]:
        full, states = super().offer(tokens, extra_key)
        return full, [*states[1:], None] if len(states) > 1 else states


@fault("sched-lost-window-kept", law="every_request_ends", seen=("mutant",))
class LostWindowKept(CachesInTier, PeeredWindow):
    """After a failed load the full group's blocks are forgotten; a lost window is loaded for ever."""

    class tier_type(SharedTier):
        def end_load(self, key: Key, unit: int, ok: bool) -> None:
            super().end_load(key, unit, ok or key[0] == WINDOW)
