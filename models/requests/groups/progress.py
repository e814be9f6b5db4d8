"""Progress of windows and states: what they have left and moved so far, for the goals of both request contracts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kvlockstep.models.core.model import Goal
from kvlockstep.models.requests.groups.answers import Tables
from kvlockstep.models.requests.request import Request
from kvlockstep.reference.kv_manager.groups.contract import Group, needed

WINDOW_GOALS = (
    Goal("hit_behind_window", "a hit is longer than what a window or a chunk still reads of it", "groups"),
    Goal("window_slides", "a running request gives back a block that its window has left", "groups"),
    Goal("slid_block_reused", "a block that a window has left is written by another request meanwhile", "groups"),
    Goal("resume_behind_window", "a preempted request comes back whose window had slid", "groups"),
)
STATE_GOALS = (
    Goal("state_hit", "a request starts from a published state", "groups"),
    Goal("state_in_place", "a state is written over where it was read", "groups"),
    Goal("state_moves", "a state goes on in another block than it was read from", "groups"),
    Goal("state_behind_draft", "a step saves states behind drafts that are rejected", "groups"),
)


class Progress:
    """What windows have left so far. `slid` are blocks by pool and request, as long as that lives.

    `held` are the blocks of each pool that requests held when it last looked.
    """

    def __init__(self, groups: Sequence[Group], met: Counter[str]) -> None:
        self._groups, self._met = groups, met
        self._before: Tables | None = None
        self.held: dict[str, set[int]] = {}
        self._free: Mapping[str, int] = {}
        self._slid: dict[tuple[str, str], set[int]] = {}

    def note(
        self, tables: Tables, held: dict[str, set[int]], free: Mapping[str, int]
    ) -> dict[str, set[tuple[str, int]]]:
        """Compares what is held, and how many blocks of each pool are free, with the last time.

        Returns the requests whose windows have given something back, with those blocks and their pools.
        """
        if tables == self._before and held == self.held:
            self._free = free
            return {}
        for pool, blocks in held.items() if self._before is not None else ():
            self._met["eviction"] += len(blocks - self.held.get(pool, set())) > self._free[pool]
        sliding: dict[str, set[tuple[str, int]]] = {}
        for name, groups in tables.items():
            old = (self._before or {}).get(name, {})
            for g, table in groups.items():
                if None not in table or table == old.get(g):
                    continue
                group = self._groups[g]
                left = {s for s, now in zip(old.get(g, ()), table, strict=False) if s is not None and now is None}
                self._met["window_slides"] += bool(left)
                gone = {slot // group.block_size for slot in left}
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
        ends = [needed(group, len(request.tokens) - 1, len(request.tokens)).start for group in groups]
        self._met["resume_behind_window"] += resumed and any(ends)


def unreachable(groups: Sequence[Group], prefix_cache: bool, drafts: bool) -> set[str]:
    """Returns the goals that these groups cannot reach."""
    kinds = {group.kind for group in groups}
    never = set() if kinds & {"window", "chunked"} else {goal.id for goal in WINDOW_GOALS}
    never |= set() if "state" in kinds else {goal.id for goal in STATE_GOALS}
    never |= set() if prefix_cache else {"hit_behind_window", "state_hit"}
    return never if drafts else never | {"state_behind_draft"}
