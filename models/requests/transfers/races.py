"""Goals about transfers that meet one another, or a batch, or a reset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from kvlockstep.models.requests.transfers.moving import Moving
from kvlockstep.models.requests.transfers.places import Block
from kvlockstep.reference.kv.transfers import TierUnits

# A target that came so often near a goal in one episode can reach it.
ENOUGH = 20


class Races:
    """Counts goals in `goals_met`.

    No trait says whether a target can reach them. So `chances` counts how often an episode came near each: a goal is
    asked for once that was often enough.
    """

    def __init__(self, goals_met: Counter[str]) -> None:
        self._met = goals_met
        self.chances: Counter[str] = Counter()
        # The blocks whose stores have started in this operation, and whether the unit had been stored to before.
        self._stored: dict[Block, bool] = {}
        # The chances that lasted at the end of the last operation: each counts once, however long it lasts.
        self._lasting: set[tuple[str, str]] = set()

    def near(self, goal: str) -> bool:
        """Returns whether this episode had enough chances for a goal."""
        return self.chances[goal] >= ENOUGH

    def started(self, moving: Moving, unended: Iterable[Moving], reused: Sequence[bool]) -> None:
        """A transfer starts while `unended` are in flight. `reused`: of each target, if it was stored to before."""
        kind = moving.transfer.kind
        if kind == "store":
            self._stored.update((place.unit, again) for place, again in zip(moving.sources, reused, strict=True))
        if kind != "load":
            return
        blocks = {place.unit for place in moving.targets}
        victims = blocks.intersection(self._stored)
        self.chances["load_evicts"] += bool(victims)
        self._met["load_evicts"] += any(self._stored[block] for block in victims)
        self.written(blocks, unended)
        self.chances["loads_reordered"] += not is_own(moving) and any(map(is_load, unended))

    def waited(self, moving: Moving) -> None:
        """The worker waits for a transfer that has not landed."""
        self._met["fenced"] += moving.transfer.kind == "store"

    def written(self, blocks: Collection[Block], unended: Iterable[Moving]) -> None:
        """A batch, a copy or a load writes these blocks."""
        # Asked at every step: once is enough.
        if not self._met["retaken"]:
            stores = (moving for moving in unended if moving.transfer.kind == "store")
            self._met["retaken"] += any(place.unit in blocks for moving in stores for place in moving.sources)

    def ended(self, moving: Moving, unended: Iterable[Moving]) -> None:
        """A transfer ends. `unended` are those in flight, this one included, the oldest first."""
        oldest = next(filter(is_load, unended), moving)
        self._met["loads_reordered"] += is_load(moving) and moving is not oldest
        self._met["forgotten_end"] += moving.stale

    def launched(self, unended: Iterable[Moving]) -> None:
        """A batch runs while these are in flight."""
        self._met["step_behind_reset"] += any(moving.stale for moving in unended)

    def settled(self, views: Mapping[str, TierUnits], freed: bool) -> None:
        """An operation is over. `freed`: a block is being stored that nobody holds, and nothing is in limbo."""
        self._stored.clear()
        lasting = {("retaken", "")} if freed else set()
        for name, view in views.items():
            left = len(view.free) + len(view.cached) - len(view.pinned)
            self._met["tier_pinned"] += left == 0
            if left <= 1 and (view.storing or view.pinned):
                lasting.add(("tier_pinned", name))
        self.chances.update(goal for goal, _ in lasting - self._lasting)
        self._lasting = lasting


def is_own(moving: Moving) -> bool:
    """True for a load that ends with the batch that waits for it."""
    return moving.transfer.before and moving.transfer.kind == "load"


def is_load(moving: Moving) -> bool:
    """True for a load that ends by itself."""
    return moving.transfer.kind == "load" and not is_own(moving)
