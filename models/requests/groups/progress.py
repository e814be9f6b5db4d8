"""Progress of windows and states: which blocks they have left so far, for the goals of both request contracts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from kvlockstep.models.core.model import Goal
from kvlockstep.models.requests.groups import cuts
from kvlockstep.models.requests.groups.answers import Tables
from kvlockstep.models.requests.groups.memory import GroupMemory
from kvlockstep.models.requests.request import Request
from kvlockstep.reference.kv_manager.groups.contract import Group, needed

WINDOW_GOALS = (
    Goal("hit_behind_window", "a hit is longer than what a window or a chunk still reads of it", "groups"),
    Goal("window_slides", "a running request gives back a block that its window has left", "groups"),
    Goal("published_block_slides", "a window gives back a block that stays published", "groups"),
    Goal("slid_block_reused", "a block that a window has left is written by another request meanwhile", "groups"),
    Goal("resume_behind_window", "a preempted request comes back whose window had slid", "groups"),
    cuts.BY_WINDOW,
)
STATE_GOALS = (
    Goal("state_hit", "a request starts from a published state", "groups"),
    Goal("state_in_place", "a state is written over where it was read", "groups"),
    Goal("state_moves", "a state goes on in another block than it was read from", "groups"),
    Goal("state_behind_draft", "a step saves states behind drafts that are rejected", "groups"),
    Goal("draft_rejected_across", "drafts behind the end of a block of a state are rejected", "groups"),
    Goal("draft_accepted_across", "an accepted draft takes a state beyond the end of its block", "groups"),
    cuts.BY_STATE,
)
# More pools than any target has.
POOLS = ("first", "second", "third")
EVICTION_GOALS = tuple(
    Goal(f"{pool}_pool_evicts", f"a step takes more blocks of the {pool} pool than were free", "groups")
    for pool in POOLS
)
# Whether a pool is ever short by itself is a matter of its size, and where a state goes on is one of the target.
NEVER_ASKED = (*(f"{pool}_pool_{what}" for pool in POOLS for what in ("full", "evicts")), "state_in_place_across")


class Progress:
    """What windows have left so far. `slid` are blocks by pool and request, as long as that lives.

    `held` are the blocks of each pool that requests held when it last looked.
    """

    def __init__(self, groups: Sequence[Group], pools: Iterable[str], kv: GroupMemory, met: Counter[str]) -> None:
        self._groups, self._kv, self._met = groups, kv, met
        self._place = dict(zip(pools, POOLS, strict=False))
        self._cuts = set(cuts.GOALS.values()) - cuts.unreachable(groups, prefix_cache=True, tiers=False)
        self._before: Tables | None = None
        self.held: dict[str, set[int]] = {}
        self._free: Mapping[str, int] = {}
        self._slid: dict[tuple[str, str], set[int]] = {}

    def note(
        self,
        tables: Tables,
        held: dict[str, set[int]],
        free: Mapping[str, int],
        named: Mapping[str, Collection[int]],
    ) -> dict[str, set[tuple[str, int]]]:
        """Compares what is held, and how many blocks of each pool are free, with the last time.

        `named` are the free blocks by number, as far as the target names them.
        Returns the requests whose windows have given something back, with those blocks and their pools.
        """
        if tables == self._before and held == self.held:
            self._free = free
            return {}
        for pool, blocks in held.items() if self._before is not None else ():
            evicts = len(blocks - self.held.get(pool, set())) > self._free[pool]
            self._met["eviction"] += evicts
            if pool in self._place:
                self._met[f"{self._place[pool]}_pool_evicts"] += evicts
        sliding: dict[str, set[tuple[str, int]]] = {}
        for name, groups in tables.items():
            old = (self._before or {}).get(name, {})
            for g, table in groups.items():
                # In this order: to look for None takes longer than to compare a table that is the same.
                if table == old.get(g) or None not in table:
                    continue
                group = self._groups[g]
                if group.kind == "rolling":
                    # It gives back nothing before its request ends.
                    continue
                left = {s for s, now in zip(old.get(g, ()), table, strict=False) if s is not None and now is None}
                self._met["window_slides"] += bool(left)
                gone = {slot // group.block_size for slot in left}
                kept = gone.difference(held[group.pool], named.get(group.pool, gone))
                self._met["published_block_slides"] += bool(kept)
                if gone:
                    sliding.setdefault(name, set()).update((group.pool, block) for block in gone)
                    self._slid.setdefault((group.pool, name), set()).update(gone)
        for (pool, name), blocks in list(self._slid.items()):
            if name not in tables:
                del self._slid[pool, name]
            elif blocks & held[pool]:
                self._met["slid_block_reused"] += 1
                blocks -= held[pool]
        self._before, self.held, self._free = tables, held, free
        return sliding

    def hit(self, request: Request, resumed: bool) -> None:
        """Counts the goals of a request that starts."""
        groups = self._groups
        windows = [needed(group, request.hit, request.hit).start for group in groups if group.kind != "state"]
        self._met["hit_behind_window"] += any(windows)
        self._met["state_hit"] += request.hit > 0 and any(group.kind == "state" for group in groups)
        n = len(request.tokens)
        self._met["resume_behind_window"] += resumed and any(needed(group, n - 1, n).start for group in groups)
        if not all(self._met[goal] for goal in self._cuts):
            self._met.update(cuts.cut_by(self._kv, groups, request))

    def unseen(self, untold: Collection[int], shows_free: bool) -> set[str]:
        """Returns the goals that cannot be observed with what the target tells, and those that nobody asks for.

        `untold` are the groups of which it cannot tell what is held; it names its free blocks if it `shows_free`.
        """
        told = {"window", "chunked"}.isdisjoint(self._groups[g].kind for g in untold)
        never = set() if self._met["window_slides"] and told and shows_free else {"published_block_slides"}
        return never | {goal for goal in NEVER_ASKED if not self._met[goal]}

    def refused(self, short: Sequence[str]) -> None:
        """Counts a refusal that is due to one pool alone; `short` are the pools that have too little room."""
        self._met["one_pool_full"] += 0 < len(short) < len(self._place)
        if len(short) == 1 < len(self._place) and short[0] in self._place:
            self._met[f"{self._place[short[0]]}_pool_full"] += 1

    def drafted(self, start: int, kept: int, stop: int) -> None:
        """Counts the goals of a decode over [start, stop), behind which a request goes on at `kept`."""
        for group in self._groups:
            end = (start // group.block_size + 1) * group.block_size
            if group.kind == "state":
                self._met["draft_rejected_across"] += kept <= end < stop
                self._met["draft_accepted_across"] += end < kept > start + 1


def within_one_block(groups: Sequence[Group], longest: int | None) -> bool:
    """Tells whether requests of `longest` tokens take no state beyond the first block of its grid."""
    return longest is not None and all(group.block_size >= longest for group in groups if group.kind == "state")


def unreachable(
    groups: Sequence[Group], prefix_cache: bool, drafts: bool, tiers: bool, longest: int | None
) -> set[str]:
    """Returns the goals that these groups cannot reach with requests of `longest` tokens, None without a limit."""
    kinds = {group.kind for group in groups}
    never = set() if kinds & {"window", "chunked"} else {goal.id for goal in WINDOW_GOALS}
    never |= set() if "state" in kinds else {goal.id for goal in STATE_GOALS}
    never |= set() if prefix_cache else {"hit_behind_window", "state_hit", "published_block_slides"}
    never |= cuts.unreachable(groups, prefix_cache, tiers)
    if within_one_block(groups, longest):
        never |= {"draft_rejected_across", "draft_accepted_across"}
    return never if drafts else never | {"state_behind_draft", "draft_rejected_across", "draft_accepted_across"}
