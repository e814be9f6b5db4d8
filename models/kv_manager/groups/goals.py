"""Goals of a kv_manager with groups: what its windows, states and pools must have gone through."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kvlockstep.models.core.model import Goal
from kvlockstep.models.kv_manager.groups.answers import GroupAnswers
from kvlockstep.models.requests.request import Request
from kvlockstep.reference.kv_manager.groups.contract import needed

if TYPE_CHECKING:
    from kvlockstep.models.kv_manager.groups.judge import GroupedJudge

GROUP_GOALS = (
    Goal("hit_behind_window", "a hit is longer than what a window or a chunk still reads of it", "groups"),
    Goal("window_slides", "a running request gives back a block that its window has left", "groups"),
    Goal("slid_block_reused", "a block that a window has left is written by another request meanwhile", "groups"),
    Goal("resume_behind_window", "a preempted request comes back whose window had slid", "groups"),
    Goal("state_hit", "a request starts from a published state", "groups"),
    Goal("state_in_place", "a state is written over where it was read", "groups"),
    Goal("state_moves", "a state goes on in another block than it was read from", "groups"),
    Goal("state_behind_draft", "a step saves states behind drafts that are rejected", "groups"),
    Goal("state_forked", "a request with a state is forked", "groups"),
    Goal("one_pool_full", "a refusal is due to one pool while another one has room", "groups"),
    Goal("chunk_cut", "the manager takes fewer tokens than it was asked for", "groups"),
)
WINDOWS = {"hit_behind_window", "window_slides", "slid_block_reused", "resume_behind_window"}
STATES = {"state_hit", "state_in_place", "state_moves", "state_behind_draft", "state_forked"}


class Progress:
    """What windows have left so far, for the goals. `slid` are blocks by pool and request, as long as that lives."""

    def __init__(self, judge: GroupedJudge) -> None:
        self._met: Counter[str] = judge.goals_met
        self._before: GroupAnswers | None = None
        self._held: dict[str, set[int]] = {}
        self._slid: dict[tuple[str, str], set[int]] = {}

    def note(self, judge: GroupedJudge, answers: GroupAnswers, held: dict[str, set[int]]) -> None:
        """Compares the answers between two steps with those before."""
        before = self._before
        for pool, blocks in held.items() if before is not None else ():
            assert before is not None
            fresh = len(blocks - self._held.get(pool, set()))
            self._met["eviction"] += fresh > before.free_now[pool]
        for name, groups in answers.tables.items():
            old = before.tables.get(name, {}) if before is not None else {}
            for g, table in groups.items():
                group = judge.groups.groups[g]
                left = {s for s, now in zip(old.get(g, ()), table, strict=False) if s is not None and now is None}
                self._met["window_slides"] += bool(left)
                gone = {slot // group.block_size for slot in left}
                self._slid.setdefault((group.pool, name), set()).update(gone)
        for (pool, name), blocks in list(self._slid.items()):
            if name not in answers.tables:
                del self._slid[pool, name]
            elif blocks & held[pool]:
                self._met["slid_block_reused"] += 1
                blocks -= held[pool]
        self._before, self._held = answers, held

    def hit(self, judge: GroupedJudge, request: Request, resumed: bool) -> None:
        """Counts the goals of a request that was admitted."""
        groups = judge.groups.groups
        windows = [needed(group, request.hit, request.hit).start for group in groups if group.kind != "state"]
        self._met["hit_behind_window"] += any(windows)
        self._met["state_hit"] += request.hit > 0 and bool(judge.groups.states)
        ends = [needed(group, len(request.tokens) - 1, len(request.tokens)).start for group in groups]
        self._met["resume_behind_window"] += resumed and any(ends)


def unreachable(judge: GroupedJudge) -> set[str]:
    """Returns the goals of groups that do not apply to these groups and traits."""
    never: set[str] = set()
    kinds = {group.kind for group in judge.groups.groups}
    never |= set() if kinds & {"window", "chunked"} else WINDOWS
    never |= set() if "state" in kinds else STATES
    if not judge.traits.prefix_cache:
        never |= {"hit_behind_window", "state_hit"}
    if judge.traits.tokens_per_decode == 1:
        never.add("state_behind_draft")
    if not judge.traits.can_fork:
        never.add("state_forked")
    if judge.traits.copies_at_commit:
        # What is published is a copy, so nothing makes a state leave its block.
        never.add("state_moves")
    if not judge.traits.cuts_chunks:
        never.add("chunk_cut")
    return never if len(judge.groups.pools) > 1 else never | {"one_pool_full"}
